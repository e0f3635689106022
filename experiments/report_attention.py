"""The attention heatmaps that a report holds: some of those that the runs have drawn."""

import contextlib
import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.report_data import Sweep

HEATMAPS = 240  # sentences, over all runs
CELLS = 600_000  # weights of these, over all heads: 3 MB in the report
PRECISION = 10_000  # weights are whole multiples of 1 / PRECISION in it


@dataclasses.dataclass(frozen=True)
class Heatmaps:
    runs: list[dict[str, Any]]  # {"point", "examples": [{"name", "source", "target", "weights"}]}
    found: int  # files of all runs
    shown: int
    broken: int  # of those looked at, the ones that cannot be read


def gather(sweep: Sweep, heatmaps: int = HEATMAPS, cells: int = CELLS) -> Heatmaps:
    """The heatmaps of figures/attention_*.npz within these bounds: one seed of every condition,
    then the next; whole runs. Weights are [layers, heads, T, S], as integers."""
    order = [
        members[k]
        for k in range(max(map(len, sweep.members)))
        for members in sweep.members
        if k < len(members)
    ]
    files = {point: _files(sweep.points[point].path) for point in order}
    runs: list[dict[str, Any]] = []
    shown, broken = 0, 0
    for point in order:
        if not files[point] or shown + len(files[point]) > heatmaps or cells <= 0:
            continue
        examples = []
        for file in files[point]:
            one = _read(file)
            if one is None:
                broken += 1
            elif one[1] <= cells:
                examples.append(one[0])
                cells -= one[1]
        if examples:
            runs.append({"point": point, "examples": examples})
            shown += len(examples)
    runs.sort(key=lambda run: run["point"])
    return Heatmaps(runs, sum(map(len, files.values())), shown, broken)


def _files(path: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted((path / "figures").glob("attention_*.npz"))
    return []


def _read(file: Path) -> tuple[dict[str, Any], int] | None:
    """(the example, its number of cells); None for what figures.heatmap did not write."""
    try:
        with np.load(file) as saved:
            weights = np.asarray(saved["weights"], np.float64)
            source, target = (
                [str(one) for one in saved[f"{x}_tokens"]] for x in ("source", "target")
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if not 2 <= weights.ndim <= 4 or weights.shape[-2:] != (len(target), len(source)):
        return None
    if weights.size == 0:
        return None
    weights = weights.reshape((1,) * (4 - weights.ndim) + weights.shape)
    whole = (
        np.clip(np.nan_to_num(weights) * PRECISION, -1e9, 1e9).round().astype(int).astype(object)
    )
    whole[~np.isfinite(weights)] = None
    example = {"name": file.stem, "source": source, "target": target, "weights": whole.tolist()}
    return example, weights.size
