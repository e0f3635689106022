"""What a sweep's report shows, gathered from the run directories as they are now.

A condition is the values of all varying fields but `seed`; its runs repeat it. The first point's
condition is the baseline. Nothing here writes, and a file that is missing or broken is skipped.
"""

import collections
import contextlib
import csv
import dataclasses
import json
import math
import os
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import runs, statistics, summary
from experiments.config import fields
from experiments.sweep import Point, varying

# Metrics in the order in which they are offered; others follow by name.
PREFERRED = tuple(
    f"{split}/{name}"
    for split in ("test", "validation")
    for name in ("exact_match", "token_accuracy", "bleu", "chrf", "loss")
) + ("train/seconds", "train/target_tokens_per_second")
LINKED = ("config.json", "env.json", "result.json", "metrics.jsonl", "test_predictions.jsonl")
CURVE_POINTS = 60_000  # that all learning curves have together
FEWEST_POINTS = 20  # of one curve, however many there are

# {"condition", "of", "x", "y", "low", "high", "n"}: the last five are lists of one length, and "of"
# is how long they would be if nothing were left out.
Series = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The points in groups, and their rows of summary.csv."""

    points: Sequence[Point]
    table: Sequence[summary.Row]
    factors: list[str]  # the varying fields, without seed
    values: list[list[Any]]  # [condition][factor]
    members: list[list[int]]  # [condition]: indices of points
    metrics: list[str]  # of result.json, the numbers

    @property
    def short(self) -> list[str]:
        """The factors' names, no longer than need be."""
        return list(runs.short_names(self.factors).values())

    @property
    def labels(self) -> list[str]:
        """A condition in words, `score=additive, dim=64`."""
        return [
            ", ".join(
                f"{name}={shown(value)}" for name, value in zip(self.short, values, strict=True)
            )
            or self.points[0].path.parent.name
            for values in self.values
        ]

    def seed(self, point: int) -> Any:
        return fields(self.points[point].config).get("seed")

    def compare(self, metric: str) -> list[statistics.Comparison]:
        """The statistics of a metric, a condition each."""
        groups: list[dict[Any, float]] = []
        for members in self.members:
            groups.append({})
            for point in members:
                value = self.table[point].get(metric)
                if statistics.finite(value):
                    groups[-1].setdefault(self.seed(point), float(value))
        return statistics.compare(groups)


def group(points: Sequence[Point], table: Sequence[summary.Row]) -> Sweep:
    """The points by condition, in the order in which these first appear."""
    changing = varying(points)
    factors = [name for name in changing if name != "seed"]
    found: dict[tuple[str, ...], list[int]] = {}
    flat = [fields(point.config) for point in points]
    for index, one in enumerate(flat):
        found.setdefault(tuple(repr(one[name]) for name in factors), []).append(index)
    members = list(found.values())
    values = [[flat[indices[0]][name] for name in factors] for indices in members]
    own = {"run", "status", "reason", *changing}
    there = [
        name
        for name in table[0]
        if name not in own and any(statistics.finite(row[name]) for row in table)
    ]
    metrics = [name for name in PREFERRED if name in there]
    metrics += [name for name in there if name not in metrics]
    return Sweep(points, table, factors, values, members, metrics)


def shown(value: Any) -> Any:
    """A field's value as it is shown: a number, or its text.

    >>> shown(3 * 0.1), shown(64), shown(None), shown(True)
    (0.3, 64, 'None', 'True')
    """
    if not statistics.finite(value):
        return str(value)
    return float(f"{value:.12g}") if isinstance(value, float) else value


def numeric(values: Iterable[Any]) -> bool:
    """Whether all are numbers, of more than one size: an axis. None is a condition that has no such
    number and lies across the whole axis."""
    there = {value for value in values if value is not None}
    return all(statistics.finite(value) for value in there) and len(there) > 1


def logarithmic(values: Iterable[float]) -> bool:
    """Whether numbers belong on a logarithmic axis: positive, over a factor of 8 or more."""
    values = list(values)
    return bool(values) and min(values) > 0 and max(values) >= 8 * min(values)


def unfinished(sweep: Sweep) -> list[dict[str, Any]]:
    """The points that are not done: index, status and the reason or how far they are."""
    out = []
    for index, (point, row) in enumerate(zip(sweep.points, sweep.table, strict=True)):
        status, reason = row["status"], row["reason"]
        if status == "done":
            continue
        if status == "missing":
            reason = reason or "has not begun"
        elif not reason:
            rows = metrics_of(point.path)
            steps = fields(point.config).get("train.steps")
            reason = f"at step {rows[-1]['step']}" if rows else "before its first logged step"
            reason += f" of {steps}" if rows and steps else ""
            if status == "stopped":
                reason += "; the same command goes on from what is saved"
        out.append({"point": index, "status": status, "reason": reason})
    return out


def metrics_of(path: Path) -> list[dict[str, Any]]:
    """metrics.jsonl; empty where there is none."""
    with contextlib.suppress(OSError):
        return runs.read_metrics(path)
    return []


def curves(sweep: Sweep) -> dict[str, list[Series]]:
    """train/loss and validation/* against the step: mean and range over the seeds that are there,
    a Series a condition; also of runs that are not done."""
    found: dict[str, dict[int, dict[float, list[float]]]] = {}
    for condition, members in enumerate(sweep.members):
        for point in members:
            for row in metrics_of(sweep.points[point].path):
                for name, value in row.items():
                    shown = name == "train/loss" or name.startswith("validation/")
                    if shown and statistics.finite(value):
                        steps = found.setdefault(name, {}).setdefault(condition, {})
                        steps.setdefault(row["step"], []).append(value)
    count = sum(len(conditions) for conditions in found.values())
    limit = max(FEWEST_POINTS, CURVE_POINTS // max(count, 1))
    return {
        name: [_series(condition, steps, limit) for condition, steps in conditions.items()]
        for name, conditions in found.items()
    }


def _series(condition: int, steps: Mapping[float, list[float]], limit: int) -> Series:
    """Mean and range at each x; of more than `limit` xs, as many, evenly spread, with both ends."""
    order = sorted(steps)
    count = len(order)
    if count > limit:
        order = [order[k] for k in np.linspace(0, count - 1, limit).round().astype(int)]
    return {
        "condition": condition,
        "of": count,
        "x": order,
        "y": [rounded(sum(steps[x]) / len(steps[x])) for x in order],
        "low": [rounded(min(steps[x])) for x in order],
        "high": [rounded(max(steps[x])) for x in order],
        "n": [len(steps[x]) for x in order],
    }


def lengths(sweep: Sweep) -> dict[str, list[Series]]:
    """The metrics of figures/accuracy_by_length.csv against the source length (the middle of its
    bin): mean and range over seeds, a Series a condition."""
    found: dict[str, dict[int, dict[float, list[float]]]] = {}
    for condition, members in enumerate(sweep.members):
        for point in members:
            for row in _csv(sweep.points[point].path / "figures" / "accuracy_by_length.csv"):
                low, high = row.pop("length_low", None), row.pop("length_high", None)
                if low is None or high is None:
                    continue
                for name, value in row.items():
                    if name != "n":
                        bins = found.setdefault(name, {}).setdefault(condition, {})
                        bins.setdefault((low + high) / 2, []).append(value)
    return {
        name: [_series(condition, bins, 1000) for condition, bins in conditions.items()]
        for name, conditions in found.items()
    }


def _csv(path: Path) -> list[dict[str, float]]:
    """The cells that are finite numbers; empty for a file that is not there."""
    out: list[dict[str, float]] = []
    with contextlib.suppress(OSError, csv.Error, UnicodeDecodeError):
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                out.append({})
                for name, text in row.items():
                    with contextlib.suppress(TypeError, ValueError):
                        if math.isfinite(float(text)):
                            out[-1][name] = float(text)
    return out


def environments(sweep: Sweep) -> dict[str, list[tuple[str, int]]]:
    """What env.json says of commit, machine and versions: each answer with its number of runs."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for point in sweep.points:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            env = json.loads((point.path / "env.json").read_text(encoding="utf-8"))
            commit = env.get("git_commit") or "unknown: not run from a git checkout"
            changed = " with uncommitted changes (git_diff in env.json)"
            counts["git commit"][commit + (changed if env.get("git_diff") else "")] += 1
            devices = collections.Counter(env.get("devices") or ["?"])
            where = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in devices.items())
            machine = f"{env.get('platform')}; {env.get('cpus')} CPUs; devices: {where}"
            counts["machine"][machine] += 1
            packages = {"python": env.get("python"), **(env.get("versions") or {})}
            counts["versions"][", ".join(f"{k} {v}" for k, v in packages.items())] += 1
            counts["started"][str(env.get("started"))[:10]] += 1
    return {name: counter.most_common(8) for name, counter in counts.items()}


def links(folder: Path, path: Path) -> list[tuple[str, str]]:
    """(name, address relative to the sweep's directory) of the run's files that are there."""
    names = [name for name in (*LINKED, "error.txt") if (path / name).exists()]
    with contextlib.suppress(OSError):
        names += sorted(f"figures/{one.name}" for one in (path / "figures").glob("*.png"))
    base = urllib.parse.quote(Path(os.path.relpath(path, folder)).as_posix())
    return [(name, f"{base}/{urllib.parse.quote(name)}") for name in names]


def rounded(value: float) -> float:
    """Six digits: what a plot can show, in half the bytes."""
    return float(f"{value:.6g}")
