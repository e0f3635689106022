"""The table of conditions as Markdown, to be kept beside text."""

from collections.abc import Mapping, Sequence

from experiments.report_data import Sweep, shown
from experiments.statistics import Comparison

# Of result.json: how well, how fast (exact match at a step), how sharply it attends.
_SHOWN = ("test/exact_match", "test/bleu", "@", "logit_std", "largest_weight")


def table(sweep: Sweep, compared: Mapping[str, Sequence[Comparison]]) -> str:
    """A row a condition: its factors, n, and of each metric mean and 95 % interval over seeds."""
    metrics = [name for name in sweep.metrics if any(part in name for part in _SHOWN)]
    metrics = metrics or sweep.metrics[:4]
    rows = [[*sweep.short, "n", *metrics]]
    rows.append(["---"] * len(rows[0]))
    for index, values in enumerate(sweep.values):
        found = [compared[metric][index] for metric in metrics]
        n = str(max((one.n for one in found), default=0))
        rows.append([*(str(shown(v)) for v in values), n, *(_cell(one) for one in found)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(one: Comparison) -> str:
    """
    >>> _cell(Comparison(3, 0.98123, 0.97, 0.99))
    '0.981 [0.970, 0.990]'
    """
    if one.mean is None:
        return ""
    text = _number(one.mean)
    return text if one.low is None else f"{text} [{_number(one.low)}, {_number(one.high or 0.0)}]"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
