"""Pictures of a run, each with the numbers that it shows in a file beside it.

    heatmap             path.png + path.npz   attention weights, output tokens x source tokens
    accuracy_by_length  path.png + path.csv   the metrics against the length of the source
    learning_curves     path.png + path.csv   loss and validation metrics against the step

`path` comes without a suffix; folders are made; a file appears whole or not at all. Figures are
matplotlib `Figure` objects drawn by Agg: no pyplot, no display, no state but the files. Data is
drawn as it is written: a `$` starts no formula, and a character that the font lacks becomes □.
"""

import csv
import functools
import io
import math
import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

FONT = "DejaVu Sans"  # comes with matplotlib
STYLE: Any = {"font.family": FONT, "text.usetex": False, "axes.unicode_minus": True}
TITLE: dict[str, Any] = {"fontsize": 9, "ha": "center", "parse_math": False}
DPI = 200
# Okabe & Ito's colours, told apart by colour-blind readers; each line has its own marker as well.
LINES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))
LONGEST_LABEL = 24  # characters
PRINTED = 25  # rows and columns up to which each cell has its number

FRACTIONS = {"exact_match": "exact match", "token_accuracy": "token accuracy"}
SCORES = {"bleu": "BLEU", "chrf": "chrF"}  # 0..100


def heatmap(
    path: str | os.PathLike,
    weights: Any,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    title: str = "",
) -> Path:
    """Draws attention weights [T, S], or [H, T, S] as a panel a head; returns the PNG's path.

    Row i is the i-th OUTPUT token and column j the j-th source token, <eos> included where the
    model sees or says it. Up to 25 x 25 each cell holds its weight without the leading 0 (a plain
    0 is exactly that: masked); beyond, a colour bar says what the shades mean.

    The `.npz` beside it holds `weights` as given, `source_tokens` [S] and `target_tokens` [T].
    """
    given = np.asarray(weights)
    if given.dtype.kind not in "biuf":  # bfloat16, which a .npz cannot hold
        given = given.astype(np.float32)
    heads = np.atleast_3d(given) if given.ndim != 2 else given[None]
    if given.ndim not in (2, 3) or heads.shape[1:] != (len(target_tokens), len(source_tokens)):
        raise ValueError(
            f"weights {given.shape} are not [T, S] or [H, T, S] with T = {len(target_tokens)} "
            f"target tokens and S = {len(source_tokens)} source tokens"
        )
    if heads.size == 0:
        raise ValueError(f"weights {given.shape} have nothing to draw")
    tokens = {"source_tokens": source_tokens, "target_tokens": target_tokens}
    arrays: Any = {name: np.array(list(texts), dtype=np.str_) for name, texts in tokens.items()}
    with matplotlib.rc_context(STYLE):
        figure = _heatmap(heads.astype(np.float64), source_tokens, target_tokens, title)
        write_file(path, ".npz", lambda file: np.savez(file, weights=given, **arrays))
        box: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.05}
        return write_file(path, ".png", lambda file: figure.savefig(file, format="png", **box))


def _heatmap(
    heads: np.ndarray, source_tokens: Sequence[str], target_tokens: Sequence[str], title: str
) -> Figure:
    """Lays the panels out in inches, from the cells outwards, so that labels never overlap."""
    number, rows, columns = heads.shape
    printed = max(rows, columns) <= PRINTED
    cell = 0.27 if printed else min(0.14, 12 / max(rows, columns))
    size = 8 if printed else 7
    width, height = columns * cell, rows * cell
    figure = Figure(dpi=DPI)
    canvas = FigureCanvasAgg(figure)
    left = 0.15 + _widest(canvas, target_tokens, size)
    top = 0.08 + _widest(canvas, source_tokens, size) + (0.18 if number > 1 else 0)
    down = math.ceil(number / max(1, 18 // (width + 0.2)))
    across = math.ceil(number / down)
    heading = 0.22 if title else 0.0
    total = (left + across * (width + 0.2) + 0.9, heading + down * (top + height + 0.1) + 0.1)
    figure.set_size_inches(*total)

    finite = heads[np.isfinite(heads)]
    low, high = min(0.0, finite.min(initial=0.0)), finite.max(initial=0.0)
    colours = matplotlib.colormaps["Blues" if low == 0 else "PuOr"].with_extremes(bad="#999999")
    limits = (low, max(high, 1.0)) if low == 0 else (-max(high, -low), max(high, -low))
    for head, panel in enumerate(heads):
        row, column = divmod(head, across)
        x = left + column * (width + 0.2)
        y = total[1] - heading - row * (top + height + 0.1) - top - height
        box = (x / total[0], y / total[1], width / total[0], height / total[1])
        axes = figure.add_axes(box)
        image = axes.imshow(panel, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
        _token_axes(axes, source_tokens, target_tokens if column == 0 else [], size, cell)
        if number > 1:
            axes.set_xlabel(f"head {head}", fontsize=size, labelpad=2)
            axes.xaxis.set_label_position("bottom")
        if printed:
            _print_cells(axes, panel, limits)
    if not printed:
        bar = (x + width + 0.15) / total[0], box[1], 0.12 / total[0], min(height, 2) / total[1]
        figure.colorbar(image, cax=figure.add_axes(bar)).ax.tick_params(labelsize=size)
    if title:
        middle = left + (across * (width + 0.2) - 0.2) / 2
        figure.text(middle / total[0], 1, readable(title, 100), **TITLE, va="top")
    return figure


def _token_axes(
    axes: Axes, source_tokens: Sequence[str], target_tokens: Sequence[str], size: int, cell: float
) -> None:
    every = math.ceil(size / 72 / cell / 1.05)  # cells smaller than a line of text: thin the labels
    for axis, tokens in ((axes.xaxis, source_tokens), (axes.yaxis, target_tokens)):
        labels = [readable(token) for token in tokens[::every]]
        axis.set_ticks(range(0, len(tokens), every), labels=labels, fontsize=size, parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", labelrotation=90)
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set(color="#999999", linewidth=0.5)


def _print_cells(axes: Axes, panel: np.ndarray, limits: tuple[float, float]) -> None:
    for (i, j), weight in np.ndenumerate(panel):
        dark = abs(weight) > 0.55 * limits[1]
        text = "0" if weight == 0 else f"{weight:.2f}".replace("0.", ".", 1)
        colour = "white" if dark else "#888888" if abs(weight) < 0.005 else "black"
        fits = 6.5 if len(text) <= 4 else 5.0
        axes.text(j, i, text, ha="center", va="center", fontsize=fits, color=colour)


def accuracy_by_length(
    path: str | os.PathLike,
    rows: Sequence[Mapping[str, Any]],
    title: str,
    train_max_length: float | None = None,
) -> Path:
    """Draws the rows of `metrics.Metrics.by_length`; returns the PNG's path.

    Above: exact match, with its 95% Wilson interval, and token accuracy; below, if the rows have
    them: BLEU and chrF. `train_max_length` marks the longest source seen in training. The `.csv`
    beside it holds the rows.
    """
    middles = np.array([(row["length_low"] + row["length_high"]) / 2 for row in rows])
    with matplotlib.rc_context(STYLE):
        figure, panels = _lines(rows, middles, [FRACTIONS, SCORES], title)
        if any("exact_match" in row for row in rows):
            counts = np.array([row["n"] for row in rows])
            low, high = wilson(_column(rows, "exact_match"), counts)
            panels[0].fill_between(middles, low, high, color=LINES[0][0], alpha=0.2, lw=0)
        if train_max_length is not None:
            style: dict[str, Any] = {"color": "#555555", "ls": "--", "lw": 1}
            for axes in panels:
                axes.axvline(train_max_length, label="longest in training", **style)
        spans = [f"{row['length_low']}–{row['length_high']}\nn={row['n']}" for row in rows]
        panels[-1].set_xticks(middles, labels=spans)
        panels[-1].set_xlabel("source tokens (n: sentences)", fontsize=8)
        return _save_lines(figure, path, rows)


def learning_curves(
    path: str | os.PathLike, rows: Sequence[Mapping[str, Any]], title: str = ""
) -> Path:
    """Draws `metrics.jsonl`: rows with "step" and any of "train/loss", "validation/loss",
    "validation/exact_match", "validation/token_accuracy", "validation/bleu", "validation/chrf";
    returns the PNG's path.

    A row need not have every key, and a value that is None, infinite or NaN is a gap. Losses that
    span more than a factor of 10 are on a logarithmic axis. The `.csv` beside it holds the rows.
    """
    losses = {"train/loss": "loss, train", "validation/loss": "loss, validation"}
    groups = [{f"validation/{k}": v for k, v in names.items()} for names in (FRACTIONS, SCORES)]
    with matplotlib.rc_context(STYLE):
        figure, panels = _lines(rows, _column(rows, "step"), [losses, *groups], title)
        panels[-1].set_xlabel("step", fontsize=8)
        return _save_lines(figure, path, rows)


def readable(text: str, longest: int = LONGEST_LABEL) -> str:
    """The text as one line that the font can draw: composed accents, spaces and controls made
    visible, □ for what DejaVu Sans lacks, … where it was cut.

    >>> readable("▁caf" + "e\u0301"), readable("漢字 €"), readable("a\\nb"), readable("")
    ('▁café', '□□ €', 'a␣b', '␣')
    """
    text = "".join("␣" if ord(c) < 32 else c for c in unicodedata.normalize("NFC", text))
    text = text if text.strip() else "␣" * max(1, len(text))
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(c if ord(c) in _glyphs() else "□" for c in text)


def wilson(fraction: np.ndarray, n: np.ndarray, z: float = 1.96) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval (1927) of a fraction of n >= 1 trials: 95% for z = 1.96, within 0..1."""
    middle = (fraction + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(fraction * (1 - fraction) / n + z**2 / (4 * n**2))
    return np.maximum(middle - half, 0), np.minimum(middle + half, 1)


@functools.cache
def _glyphs() -> frozenset[int]:
    """The code points that the font can draw."""
    return frozenset(get_font(findfont(FONT)).get_charmap())


def _widest(canvas: FigureCanvasAgg, tokens: Sequence[str], size: float) -> float:
    """Inches of the longest label."""
    renderer, font = canvas.get_renderer(), FontProperties(family=FONT, size=size)
    widths = [
        renderer.get_text_width_height_descent(readable(token), font, False)[0] for token in tokens
    ]
    return max(widths) / DPI


def _lines(
    rows: Sequence[Mapping[str, Any]], x: np.ndarray, groups: list[dict[str, str]], title: str
) -> tuple[Figure, list[Axes]]:
    """A panel a group of {name: what to call it} of which the rows have any, above one another, as
    wide as a column of text. A row without the name is skipped, one without a number is a gap."""
    found = {name for row in rows for name in row}
    groups = [{k: v for k, v in names.items() if k in found} for names in groups]
    groups = [names for names in groups if names]
    if not groups:
        raise ValueError("the rows have nothing to draw")
    figure = Figure(figsize=(4.2, 0.6 + 1.9 * len(groups)), dpi=DPI, layout="constrained")
    panels = list(figure.subplots(len(groups), 1, sharex=True, squeeze=False)[:, 0])
    panels[0].set_title(readable(title, 60) if title else "", **TITLE)
    for axes, names in zip(panels, groups, strict=True):
        for (name, shown), (colour, marker) in zip(names.items(), LINES, strict=False):
            there = np.array([name in row for row in rows])
            style: dict[str, Any] = {"color": colour, "lw": 1.3, "ms": 3.5, "zorder": 3}
            style["marker"] = marker if there.sum() <= 40 else ""
            axes.plot(x[there], _column(rows, name)[there], **style, label=shown, clip_on=False)
        values = np.concatenate([_column(rows, name) for name in names])
        _limits(axes, values[np.isfinite(values)], next(iter(names)).split("/")[-1])
        axes.tick_params(labelsize=7, which="both")
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _limits(axes: Axes, values: np.ndarray, name: str) -> None:
    """The whole range of a metric that has one; from 0 or, over a factor of 10, log for a loss."""
    if name in FRACTIONS or name in SCORES:
        axes.set_ylim(0, 1 if name in FRACTIONS else 100)
    elif values.size and values.min() > 0 and values.max() > 10 * values.min():
        axes.set_yscale("log")
    elif values.size and values.min() >= 0:
        axes.set_ylim(0, 1.05 * values.max() or 1.0)


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """float [rows], NaN where the row has no finite number of that name."""
    values = [row.get(name) for row in rows]
    numbers = np.array([math.nan if value is None else float(value) for value in values])
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _save_lines(figure: Figure, path: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Adds the legends; writes the rows as CSV (every key a column, in order of appearance)."""
    for axes in figure.axes:
        axes.legend(fontsize=7, frameon=False, loc="best")

    def write(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        table = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
        table.writeheader()
        table.writerows(rows)
        text.detach()

    write_file(path, ".csv", write)
    return write_file(path, ".png", lambda file: figure.savefig(file, format="png"))


def write_file(path: str | os.PathLike, suffix: str, write: Callable[[BinaryIO], Any]) -> Path:
    """Lets `write` fill `path` + suffix, which comes into being whole, by renaming, or not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(path.name.removesuffix(".png") + suffix)
    part = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            write(file)
        os.replace(part, whole)
    finally:
        part.unlink(missing_ok=True)
    return whole
