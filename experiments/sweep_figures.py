"""Pictures of a sweep for papers, as wide as a column, 8-point text, in colours that colour-blind
readers tell apart. Each is NAME.png, NAME.pdf and, with the numbers that it shows, NAME.csv:

    METRIC_by_condition   a row a condition: mean and interval, the seeds as small dots
    METRIC_by_FIELD       against each numeric axis of the sweep, a line for each other combination
    learning_curves       loss and a validation metric against the step: mean and range over seeds

METRIC is what `report_data.PREFERRED` has first of what the runs measured, and a loss.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments import figures, report_data, statistics, summary
from experiments.report_data import Series, Sweep
from experiments.statistics import Comparison

WIDTH = 3.4  # inches: a column
STYLE: Any = figures.STYLE | {
    "font.size": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "pdf.fonttype": 42,  # text stays text
    "lines.linewidth": 1.2,
}
MORE = (("#E69F00", "v"), ("#56B4E9", "P"), ("#000000", "X"), ("#7F7F7F", "*"))
LINES = figures.LINES + MORE  # Okabe & Ito's colours, and grey
ROWS = 48  # conditions in a figure: a page


def write(
    folder: Path,
    sweep: Sweep,
    compared: Mapping[str, list[Comparison]],
    curves: Mapping[str, list[Series]],
) -> list[str]:
    """Draws what there is to draw; the names of the figures."""
    names = []
    short = sweep.short
    losses = [name for name in sweep.metrics if name.endswith("/loss")]
    early = [name for name in sweep.metrics if "@" in name]  # at a step on the way
    for metric in dict.fromkeys(sweep.metrics[:1] + early[:1] + losses[:1]):
        names.append(f"{_file_name(metric)}_by_condition")
        by_condition(folder / names[-1], sweep, metric, compared[metric])
        for axis, field in enumerate(short):
            if report_data.numeric(values[axis] for values in sweep.values):
                names.append(f"{_file_name(metric)}_by_{field}")
                by_axis(folder / names[-1], sweep, metric, compared[metric], axis)
    shown = [name for name in ("train/loss", *_validation(curves)) if name in curves]
    if shown:
        names.append("learning_curves")
        learning_curves(folder / names[-1], sweep, {name: curves[name] for name in shown})
    return names


def _validation(curves: Mapping[str, Any]) -> list[str]:
    """The first validation metric that there is, in the order of preference."""
    known = [n for n in report_data.PREFERRED if n.startswith("validation/") and n in curves]
    return known[:1]


def _file_name(metric: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", metric)


def by_condition(path: Path, sweep: Sweep, metric: str, found: Sequence[Comparison]) -> None:
    """Dots with their intervals, in the order of the sweep; the dotted line is the baseline's."""
    shown = min(len(found), ROWS)
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(0.75 + 0.17 * shown)
        for row, (one, members) in enumerate(zip(found[:shown], sweep.members, strict=False)):
            seeds = [sweep.table[point].get(metric) for point in members]
            there = [value for value in seeds if statistics.finite(value)]
            axes.plot(there, [row] * len(there), ".", color="#999999", ms=3, zorder=2)
            if one.mean is not None:
                _dot(axes, one, row)
        if found[0].mean is not None:
            axes.axvline(found[0].mean, color="#555555", ls=":", lw=0.8, zorder=1)
        labels = [_label(values) or "all runs" for values in sweep.values[:shown]]
        texts = [figures.readable(label, 40) for label in labels]
        axes.set_yticks(range(shown), labels=texts, parse_math=False)
        axes.set_ylim(shown - 0.4, -0.6)
        axes.set_xlabel(figures.readable(metric, 60), parse_math=False)
        axes.grid(axis="x", color="#dddddd", linewidth=0.5)
        title = " · ".join(sweep.short)
        if shown < len(found):
            title += f" (the first {shown} of {len(found)})"
        figure.suptitle(figures.readable(title, 70), fontsize=8, x=0.02, ha="left")
        rows = [
            _row(sweep, c) | {"n": one.n, "mean": one.mean, "low": one.low, "high": one.high}
            for c, one in enumerate(found)
        ]
        _save(figure, path, rows)


def _dot(axes: Axes, one: Comparison, row: float) -> None:
    colour, marker = LINES[0]
    if one.low is not None and one.high is not None:
        axes.plot([one.low, one.high], [row, row], "-", color=colour, zorder=3)
    axes.plot([one.mean or 0.0], [row], marker, color=colour, ms=4.5, zorder=4)


def by_axis(path: Path, sweep: Sweep, metric: str, found: Sequence[Comparison], axis: int) -> None:
    """The metric against one numeric field, a line for each combination of the other fields; what
    has no number there lies across the whole axis."""
    others: dict[str, list[int]] = {}
    for condition, values in enumerate(sweep.values):
        rest = _label([value for k, value in enumerate(values) if k != axis])
        others.setdefault(rest, []).append(condition)
    ticks = sorted({values[axis] for values in sweep.values} - {None})
    logarithmic = report_data.logarithmic(ticks)
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(2.4 + _legend_height(len(others)))
        for number, (label, conditions) in enumerate(list(others.items())[: len(LINES)]):
            conditions = [c for c in conditions if found[c].mean is not None]
            places = [(x, c) for c in conditions for x in _places(sweep.values[c][axis], ticks)]
            places.sort()
            x = np.array([x for x, _ in places], float)
            y = np.array([found[c].mean for _, c in places], float)
            ends = np.array([[found[c].low, found[c].high] for _, c in places], float)
            ends = ends.reshape(len(x), 2)  # NaN: no interval
            colour, marker = LINES[number]
            spread = number - (min(len(others), len(LINES)) - 1) / 2  # apart, so as to be seen
            x = x * 1.03**spread if logarithmic else x + 0.008 * spread * (ticks[-1] - ticks[0])
            style: dict[str, Any] = {"color": colour, "marker": marker, "ms": 4}
            axes.plot(x, y, label=figures.readable(label, 60) if label else None, **style)
            axes.vlines(x, ends[:, 0], ends[:, 1], color=colour, lw=1)
        if logarithmic:
            axes.set_xscale("log")
            axes.minorticks_off()
        if len(ticks) <= 8:
            axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        axes.set_xlabel(sweep.factors[axis])
        axes.set_ylabel(figures.readable(metric, 40), parse_math=False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
        rest_names = [name for k, name in enumerate(sweep.short) if k != axis]
        _legend(figure, " · ".join(rest_names), len(others))
        rows = [
            _row(sweep, c) | {"n": found[c].n, "mean": found[c].mean}
            | {"low": found[c].low, "high": found[c].high}
            for conditions in others.values()
            for c in conditions
        ]  # fmt: skip
        _save(figure, path, rows)


def _places(value: Any, ticks: list[Any]) -> list[Any]:
    return ticks if value is None else [value]


def learning_curves(path: Path, sweep: Sweep, curves: Mapping[str, Sequence[Series]]) -> None:
    """A panel a curve, a line a condition, with the range over its seeds."""
    count = len(sweep.values)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 1.7 * len(curves) + 0.3 + _legend_height(count)))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained")
        panels = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
        labels = [_label(values) for values in sweep.values]
        for axes, (name, series) in zip(panels, curves.items(), strict=True):
            for one in series:
                if one["condition"] >= len(LINES):
                    continue
                colour, _ = LINES[one["condition"]]
                label = figures.readable(labels[one["condition"]] or "all runs", 60)
                axes.plot(one["x"], one["y"], color=colour, label=label)
                axes.fill_between(one["x"], one["low"], one["high"], color=colour, alpha=0.18, lw=0)
            lowest = [y for one in series for y in one["y"]]
            if name.endswith("loss") and min(lowest) > 0 and max(lowest) > 10 * min(lowest):
                axes.set_yscale("log")
            axes.set_ylabel(figures.readable(name, 40), parse_math=False)
            axes.grid(axis="y", color="#dddddd", linewidth=0.5)
            axes.spines[["top", "right"]].set_visible(False)
        panels[-1].set_xlabel("step")
        _legend(figure, " · ".join(sweep.short), count)
        rows = [
            {"curve": name}
            | _row(sweep, one["condition"])
            | {"step": x, "n": n, "mean": y, "smallest": low, "largest": high}
            for name, series in curves.items()
            for one in series
            for x, n, y, low, high in zip(
                *(one[key] for key in ("x", "n", "y", "low", "high")), strict=True
            )
        ]
        _save(figure, path, rows)


def _label(values: Sequence[Any]) -> str:
    return " · ".join(str(report_data.shown(value)) for value in values)


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend_height(lines: int) -> float:
    """Inches of a legend below the axes, a line an entry and one for its title."""
    return 0.16 * (min(lines, len(LINES)) + 1) if lines > 1 else 0.0


def _legend(figure: Figure, title: str, lines: int) -> None:
    """Below all panels; says so where lines were left out."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if lines < 2 or not handles:
        return
    if lines > len(LINES):
        title += f" (the first {len(LINES)} of {lines}; the .csv has all)"
    legend = figure.legend(
        handles, labels, loc="outside lower left", title=figures.readable(title, 70),
        title_fontsize=7, frameon=False, alignment="left", handlelength=2,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _row(sweep: Sweep, condition: int) -> dict[str, Any]:
    return dict(zip(sweep.factors, sweep.values[condition], strict=True))


def _save(figure: Figure, path: Path, rows: Sequence[summary.Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    summary.write(path.with_name(path.name + ".csv"), rows)
    for suffix in ("pdf", "png"):
        draw = functools.partial(figure.savefig, format=suffix, dpi=300)
        figures.write_file(path, f".{suffix}", draw)
