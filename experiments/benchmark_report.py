"""What the benchmark's rows say: summary.csv, the targets beside what was reached, the plots.

A row is {"work", "implementation", "T", "pass", "milliseconds", "temporary_megabytes",
"fraction_of_machine"}; the last two may be None, which is an empty field.
"""

import csv
import dataclasses
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import figures, runs
from experiments.peers import PASSES, WORKS

Row = Mapping[str, Any]

COLUMNS = ("work", "implementation", "T", "pass", "milliseconds", "temporary_megabytes") + (
    "fraction_of_machine",
)
COMPARED = ("work", "T", "against", "quantity", "pass", "target", "reached", "met")

# name: (what it is called, colour, marker): Okabe & Ito's colours, as in `figures`
LINES = {
    "blocked": ("this library, blocked", "#0072B2", "o"),
    "dense": ("this library, dense", "#D55E00", "s"),
    "default": ("this library, as it chooses", "#56B4E9", "*"),
    "own_dot": ("this library, dot", "#999999", "d"),
    "jax_nn": ("jax.nn", "#009E73", "^"),
    "flax": ("flax.linen", "#CC79A7", "D"),
    "torch": ("PyTorch", "#000000", "v"),
    "textbook": ("broadcast tanh", "#E69F00", "P"),
    "keras": ("Keras", "#009E73", "X"),
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Of `ours` against another implementation of the same work, at the worst of `lengths`.

    "time": how many times as fast, at least; "memory": what share of the temporary memory, at most.
    `against` "half_T" is `ours` itself at T / 2.
    """

    work: str
    lengths: tuple[int, ...]
    against: str
    quantity: str
    bounds: tuple[float, float]  # forward, forward + backward
    ours: str = "blocked"


TARGETS = (
    Target("dot", (2048,), "jax_nn", "time", (2.5, 2.8)),
    Target("dot", (4096,), "jax_nn", "time", (4.0, 3.5)),
    Target("dot", (4096,), "torch", "time", (1.2, 1.0)),
    Target("dot", (4096,), "jax_nn", "memory", (0.03, 0.04)),
    Target("dot", (128, 256, 512), "jax_nn", "time", (1.0, 1.0), ours="default"),
    Target("dot_causal", (4096,), "own_dot", "time", (1.6, 1.6)),
    Target("additive", (512, 1024), "textbook", "time", (10.0, 6.0)),
    Target("additive", (512, 1024), "keras", "time", (10.0, 6.0)),
    Target("additive", (1024,), "textbook", "memory", (0.01, 0.01)),
    Target("additive", (1024,), "keras", "memory", (0.01, 0.01)),
    *(Target(w, (2048,), "own_dot", "time", (0.85, 0.7)) for w in ("general", "cosine")),
    Target("gaussian", (2048,), "own_dot", "time", (0.85, 0.7)),
    Target("function", (1024,), "dense", "time", (1.0, 0.8)),
    *(Target(work, (8192,), "half_T", "memory", (2.0, 2.0)) for work in WORKS),
)


def write(
    run_dir: Path, rows: Sequence[Row], absent: Sequence[str], log: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Writes summary.csv, ratios.csv and the figures, logs the table; returns ratios.csv's rows."""
    compared = compare(rows, absent)
    runs.write_text(run_dir / "summary.csv", _csv(rows, COLUMNS))
    runs.write_text(run_dir / "ratios.csv", _csv(compared, COMPARED))
    for line in table(compared):
        log(line)
    units = {"time": ("milliseconds", "ms"), "memory": ("temporary_megabytes", "MB")}
    for name, (column, unit) in units.items():
        log(f"plot {plot(run_dir / 'figures' / name, rows, column, unit).relative_to(run_dir)}")
    return compared


def compare(
    rows: Sequence[Row], absent: Sequence[str], targets: Sequence[Target] = TARGETS
) -> list[dict[str, Any]]:
    """A row of COMPARED for each target and pass.

    `met` is yes or no; "not installed" for a peer in `absent`; "not measured" if the run has not
    all of its lengths: then `reached` is None.
    """
    columns = {"time": "milliseconds", "memory": "temporary_megabytes"}
    found = {}
    for row in rows:
        for quantity, column in columns.items():
            key = (quantity, row["work"], row["T"], row["pass"], row["implementation"])
            found[key] = row[column]

    compared = []
    for target in targets:
        for passes, bound in zip(PASSES, target.bounds, strict=True):
            shares: list[float] = []  # ours / the other's
            for T in target.lengths:
                half = target.against == "half_T"
                other = (T // 2, passes, target.ours) if half else (T, passes, target.against)
                mine = found.get((target.quantity, target.work, T, passes, target.ours))
                theirs = found.get((target.quantity, target.work, *other))
                if mine is not None and theirs:
                    shares.append(mine / theirs)
            worst = max(shares) if len(shares) == len(target.lengths) else None
            reached = 1 / worst if worst and target.quantity == "time" else worst
            if reached is None:
                met = "not installed" if target.against in absent else "not measured"
            else:
                enough = reached >= bound if target.quantity == "time" else reached <= bound
                met = "yes" if enough else "no"
            lengths = " ".join(map(str, target.lengths))
            values = (target.work, lengths, target.against, target.quantity, passes, bound)
            compared.append(dict(zip(COMPARED, (*values, reached, met), strict=True)))
    return compared


def table(compared: Sequence[Row]) -> list[str]:
    """Lines to print: a target with both of its passes; how many were not measured."""
    lines = [f"{'ours, against':42}{'forward':<28}forward + backward"]
    pairs = list(zip(compared[::2], compared[1::2], strict=True))
    shown = [pair for pair in pairs if any(row["met"] != "not measured" for row in pair)]
    for forward, backward in shown:
        what = f"{forward['quantity']}, {forward['against']}"
        line = f"{forward['work']:<11}T={forward['T']:<12}{what:<17}"
        for row in (forward, backward):
            bound = (">=" if row["quantity"] == "time" else "<=") + f" {row['target']:g}"
            reached = "" if row["reached"] is None else f"{row['reached']:.3g}"
            line += f"{reached:>6} {bound:<8}{row['met']:<13}"
        lines.append(line.rstrip())
    if len(shown) < len(pairs):
        lines.append(
            f"{len(pairs) - len(shown)} targets are about works or lengths not measured here"
        )
    return lines


def plot(path: Path, rows: Sequence[Row], column: str, unit: str) -> Path:
    """path.png: `column` against T, both logarithmic, a row of panels a work, a column a pass, a
    line an implementation; path.csv beside it holds the numbers. Returns the PNG's path."""
    known = [row for row in rows if row[column] is not None]
    works = [work for work in WORKS if any(row["work"] == work for row in known)]
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = ("work", "implementation", "T", "pass", column)
    runs.write_text(path.with_suffix(".csv"), _csv(known, kept))
    with matplotlib.rc_context(figures.STYLE):
        size = (7.2, 0.5 + 1.9 * len(works))
        figure = Figure(figsize=size, dpi=figures.DPI, layout="constrained")
        grid = figure.subplots(len(works), 2, sharex=True, sharey="row", squeeze=False)
        for panels, work in zip(grid, works, strict=True):
            for axes, passes in zip(panels, PASSES, strict=True):
                part = [row for row in known if (row["work"], row["pass"]) == (work, passes)]
                _panel(axes, part, column)
            panels[0].set_ylabel(f"{work.replace('_', ', ')}\n{unit}", fontsize=8)
            panels[0].legend(fontsize=6, frameon=False, loc="best")
        for axes, title in zip(grid[0], ("forward", "forward + backward"), strict=True):
            axes.set_title(title, **figures.TITLE)
        for axes in grid[-1]:
            axes.set_xlabel("T = S", fontsize=8)
        part_file = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            figure.savefig(part_file, format="png")
            os.replace(part_file, path.with_suffix(".png"))
        finally:
            part_file.unlink(missing_ok=True)
    return path.with_suffix(".png")


def _panel(axes: Axes, rows: Sequence[Row], column: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for name, (shown, colour, marker) in LINES.items():
        line = sorted((row["T"], row[column]) for row in rows if row["implementation"] == name)
        if line:
            style: Any = {"color": colour, "marker": marker, "lw": 1.3, "ms": 3.5, "zorder": 3}
            axes.plot(*zip(*line, strict=True), **style, label=shown)
    lengths = sorted({row["T"] for row in rows})
    axes.set_xticks(lengths, labels=[str(T) for T in lengths])
    axes.minorticks_off()
    axes.tick_params(labelsize=7, which="both")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
