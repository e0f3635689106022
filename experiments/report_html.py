"""The report as one HTML file that needs no network: report_template.html, filled.

What is known before the page opens is written as escaped text here; the rest is the JSON that
report*.js turns into tables and plots.
"""

import collections
import html
import json
import math
import shlex
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import report_attention, report_data, statistics
from experiments.config import fields
from experiments.report_attention import Heatmaps
from experiments.report_data import Series, Sweep, shown
from experiments.statistics import Comparison

SCRIPTS = ("report.js", "report_plots.js", "report_attention.js")
RUN_METRICS = 8  # columns of the table of runs


def page(
    folder: Path,
    sweep: Sweep,
    compared: dict[str, list[Comparison]],
    curves: dict[str, list[Series]],
    command: Sequence[str],
    when: str,
) -> str:
    """The whole document; `compared`: the statistics of each metric; `when`: as of when."""
    from plotly.offline import get_plotlyjs

    here = Path(__file__).parent
    heatmaps = report_attention.gather(sweep)
    unfinished = report_data.unfinished(sweep)
    template = string.Template(_file(here / "report_template.html"))
    scripts = "\n".join(_file(here / name) for name in SCRIPTS)
    return template.substitute(
        title=escape(f"Sweep {folder.resolve().name}"),
        style=_file(here / "report.css"),
        status=escape(f"{counts(sweep)}. As of {when}."),
        what=_what(sweep, command),
        unfinished=_unfinished(folder, sweep, unfinished),
        how="".join(f"<p>{escape(paragraph)}</p>" for paragraph in statistics.HOW),
        curve_note=escape(_curve_note(curves)),
        attention_note=escape(_attention_note(heatmaps)),
        runs_note=escape(_runs_note(sweep)),
        data=embedded(_data(folder, sweep, compared, curves, heatmaps)),
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
        script=f"(() => {{\n{scripts}\n}})();",
    )


def escape(text: Any) -> str:
    """Any text as HTML that shows it, also within quotes.

    >>> escape("<script>'1' & \\"2\\"</script>")
    '&lt;script&gt;&#x27;1&#x27; &amp; &quot;2&quot;&lt;/script&gt;'
    """
    return html.escape(str(text).encode("utf-8", "replace").decode("utf-8"))


def embedded(value: Any) -> str:
    """JSON that nothing can end early within <script type="application/json">; what is no number
    is null.

    >>> embedded({"a": "</script><!--", "b": [float("nan"), 1.5]})
    '{"a":"\\\\u003c/script>\\\\u003c!--","b":[null,1.5]}'
    """
    text = json.dumps(_strict(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def counts(sweep: Sweep) -> str:
    """ "15 of 18 runs done, 1 diverged, 2 missing"."""
    found = collections.Counter(row["status"] for row in sweep.table)
    others = [f"{n} {status}" for status, n in sorted(found.items()) if status != "done"]
    return ", ".join([f"{found['done']} of {len(sweep.points)} runs done", *others])


def _what(sweep: Sweep, command: Sequence[str]) -> str:
    flat = fields(sweep.points[0].config)
    seeds = {repr(sweep.seed(point)) for point in range(len(sweep.points))}
    varying = [
        f"<code>{escape(name)}</code>: "
        + escape(", ".join(dict.fromkeys(str(shown(values[k])) for values in sweep.values)))
        for k, name in enumerate(sweep.factors)
    ]
    if len(seeds) > 1:
        varying.append(f"<code>seed</code>: {len(seeds)} values")
    rows = [("command", f"<pre>{escape(shlex.join(command))}</pre>")]
    rows.append(("varies", "<br>".join(varying) or "nothing"))
    if sweep.factors:
        rows.append(("baseline", escape(sweep.labels[0])))
    for name, answers in report_data.environments(sweep).items():
        texts = [
            escape(text) + (f" (runs: {n})" if len(answers) > 1 else "") for text, n in answers
        ]
        rows.append((name, "<br>".join(texts)))
    fixed = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(value)}</td></tr>"
        for name, value in flat.items()
        if name not in sweep.factors and (name != "seed" or len(seeds) == 1)
    ]
    items = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)
    return (
        f"<dl>{items}</dl><details><summary>Fields that are the same in all runs</summary>"
        f"{_scroll('Fields that are the same in all runs', ['field', 'value'], fixed)}</details>"
    )


def _unfinished(folder: Path, sweep: Sweep, found: Sequence[dict[str, Any]]) -> str:
    """The section on points that are not done; nothing where all are."""
    if not found:
        return ""
    rows = []
    for one in found:
        point = sweep.points[one["point"]]
        there = report_data.links(folder, point.path)
        files = " ".join(f'<a href="{escape(href)}">{escape(name)}</a>' for name, href in there)
        texts = (one["status"], run_labels(sweep)[one["point"]])
        cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
        cells += f'<td class="wrap">{escape(one["reason"])}</td><td class="links">{files}</td>'
        rows.append(f"<tr>{cells}</tr>")
    table = _scroll("Points that are not done", ["status", "point", "reason", "files"], rows)
    heading = '<h2 id="unfinished-title">Not done</h2>'
    return f'<section id="unfinished" aria-labelledby="unfinished-title">{heading}{table}</section>'


def _scroll(caption: str, columns: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def run_labels(sweep: Sweep) -> list[str]:
    """The runs in words: condition and seed."""
    out = [""] * len(sweep.points)
    for label, members in zip(sweep.labels, sweep.members, strict=True):
        for point in members:
            parts = [label] if sweep.factors else []
            seed = sweep.seed(point)
            out[point] = ", ".join(parts + ([f"seed={seed}"] if seed is not None else [])) or label
    return out


def _curve_note(curves: dict[str, list[Series]]) -> str:
    thinned = [one for series in curves.values() for one in series if len(one["x"]) < one["of"]]
    if not thinned:
        return ""
    longest, drawn = max(one["of"] for one in thinned), max(len(one["x"]) for one in thinned)
    return f"Of up to {longest} logged steps {drawn} are drawn; metrics.jsonl of each run has all."


def _attention_note(found: Heatmaps) -> str:
    text = f"{found.shown} of the runs' {found.found} heatmaps are in this file"
    if found.shown < found.found:
        text += "; the others would make it too large: see figures/attention_*.npz of the runs"
    if found.broken:
        text += f"; {found.broken} could not be read"
    return (
        f"{text}. Rows: output tokens; columns: source tokens. Weights are rounded to 4 decimals."
    )


def _runs_note(sweep: Sweep) -> str:
    left = len(sweep.metrics) - RUN_METRICS
    more = f" {left} more columns of numbers are there." if left > 0 else ""
    return f"summary.csv beside this file has the same rows.{more}"


def _data(
    folder: Path,
    sweep: Sweep,
    compared: dict[str, list[Comparison]],
    curves: dict[str, list[Series]],
    heatmaps: Heatmaps,
) -> dict[str, Any]:
    """What the scripts read."""
    columns = list(zip(*sweep.values, strict=True)) if sweep.factors else []
    short = sweep.short
    factors: list[dict[str, Any]] = []
    for name, brief, values in zip(sweep.factors, short, columns, strict=True):
        is_number = report_data.numeric(values)
        ticks = list(dict.fromkeys(shown(value) for value in values if value is not None))
        if is_number:
            ticks.sort()
        elif None in values:
            ticks.append(shown(None))
        log = is_number and report_data.logarithmic(ticks)
        one = {"name": name, "short": brief, "numeric": is_number, "logarithmic": log}
        factors.append(one | {"ticks": ticks})
    axes = [k for k, factor in enumerate(factors) if factor["numeric"]]
    axes.sort(key=lambda k: -len(factors[k]["ticks"]))  # the fewest lines
    condition_of = {point: c for c, members in enumerate(sweep.members) for point in members}
    labels = run_labels(sweep)
    return {
        "factors": factors,
        "axis": axes[0] if axes else 0 if factors else -1,
        "conditions": [
            {"label": label, "values": [shown(value) for value in values], "runs": members}
            for label, values, members in zip(
                sweep.labels, sweep.values, sweep.members, strict=True
            )
        ],
        "metrics": sweep.metrics,
        "run_metrics": sweep.metrics[:RUN_METRICS],
        "runs": [
            {
                "name": row["run"],
                "label": labels[point],
                "status": row["status"],
                "condition": condition_of[point],
                "seed": sweep.seed(point),
                "results": [number(row.get(name)) for name in sweep.metrics[:RUN_METRICS]],
                "values": [number(row.get(name)) for name in sweep.metrics],
                "links": report_data.links(folder, sweep.points[point].path),
            }
            for point, row in enumerate(sweep.table)
        ],
        "statistics": {
            name: [{k: number(v) for k, v in vars(one).items()} for one in found]
            for name, found in compared.items()
        },
        "curves": curves,
        "lengths": report_data.lengths(sweep),
        "attention": heatmaps.runs,
        "precision": report_attention.PRECISION,
    }


def number(value: Any) -> float | None:
    return report_data.rounded(value) if statistics.finite(value) else None


def _file(path: Path) -> str:
    return path.read_text(encoding="utf-8")
