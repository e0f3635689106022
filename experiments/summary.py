"""The runs of a sweep as a table: one row a run, read from the run directories at any time."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import runs
from experiments.config import fields
from experiments.sweep import Point, varying

FILE = "summary.csv"
TIMES = (  # the columns in which two runs of one sweep differ
    "train/seconds",
    "train/compile_seconds",
    "train/validation_seconds",
    "train/target_tokens_per_second",
)
Row = dict[str, Any]


def rows(points: Sequence[Point]) -> list[Row]:
    """A row a point, in their order: `run` (its directory), `status` (missing: it never began),
    `reason` (of one that failed or diverged), every field that varies, and what result.json holds.
    A run that is not done has no results: these cells are None."""
    names = varying(points)
    found = []
    for point in points:
        flat = fields(point.config)
        row: Row = {"run": point.path.name, "status": state(point.path)}
        row["reason"] = runs.reason(point.path)
        row |= {name: flat[name] for name in names}
        found.append((row, runs.result(point.path) if row["status"] == "done" else {}))
    columns = sorted({name for _, measured in found for name in measured})
    return [row | {name: measured.get(name) for name in columns} for row, measured in found]


def state(path: Path) -> str:
    """The run's STATUS as it is: missing where it never began, and stopped where the process that
    was running it has gone."""
    status = runs.status(path) or "missing"
    if status == "running" and not runs.busy(path):
        return "stopped"
    return "stopped" if status == "done" and not runs.done(path) else status


def write(path: Path, table: Sequence[Row]) -> None:
    """The table as a CSV file, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    runs.write_text(path, text.getvalue())
