"""A whole sweep: shown before it runs (--dry_run), run, and told of at its end."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import local, progress, runs, signals, slurm, summary, tracking
from experiments.config import fields
from experiments.errors import UserError
from experiments.sweep import Point, varying


def run(
    points: Sequence[Point],
    experiment: Any,
    *,
    executor: str,
    processes: int,
    retry_failed: bool,
    slurm_options: list[str],
    wandb: str,
) -> None:
    """Runs all that is not done, then writes the report. UserError if a point failed, diverged or
    was lost on the way: the others are done by then."""
    folder = points[0].path.parent
    runs.create(folder)
    runs.log(overview(points, experiment))
    try:
        with progress.shown(points):
            if executor == "slurm":
                slurm.work(points, experiment, retry_failed, folder / "slurm", slurm_options)
            elif processes > 1:
                local.work_in_processes(points, experiment, retry_failed, processes)
            else:
                local.work(points, experiment, retry_failed)
    except signals.Stopped as stopped:
        runs.log(f"{stopped}; the same command goes on from there")
        report(points, "")
        sys.exit(1)
    report(points, wandb)
    _raise_failures(points)


def report(points: Sequence[Point], wandb: str) -> None:
    """summary.csv, report.html and figures/ in the sweep's directory, from what is there now;
    finished runs go to the W&B project `wandb`, if it is named."""
    from experiments import report

    folder = points[0].path.parent
    if not folder.exists():
        raise UserError(f"{folder} does not exist: nothing of this sweep has run")
    command = ["python", *(part for part in sys.argv if part != "--mode=report")]
    with signals.stopping():
        report.write(folder, points, command, runs.log)
        if wandb:
            tracking.to_wandb(points, wandb, runs.log)
    runs.log(f"table: {folder / summary.FILE}\nreport: {folder / 'report.html'}")


def _raise_failures(points: Sequence[Point]) -> None:
    states = {point.path: summary.state(point.path) for point in points}
    bad = [path for path, state in states.items() if state != "done"]
    if not bad:
        return
    lines = [f"{len(bad)} of {len(points)} points are not done:"]
    for path in bad:
        why = runs.reason(path)
        lines.append(f"  {states[path]}: {path}" + (f" ({why})" if why else ""))
    if any(states[path] in ("failed", "diverged") for path in bad):
        lines.append("what failed or diverged is tried again with --retry_failed")
    raise UserError("\n".join(lines))


def overview(points: Sequence[Point], experiment: Any) -> str:
    """How many points, how many are done, and which share a program."""
    states = Counter(summary.state(point.path) for point in points)
    known = ", ".join(f"{n} {state}" for state, n in states.most_common() if state != "missing")
    sizes = [len(group) for group in local.groups(points, experiment)]
    head = f"{_counted(len(points), 'point')} in {points[0].path.parent}"
    lines = [head + (f": {known}" if known else "")]
    if max(sizes) > 1:
        shared = Counter(sizes)
        words = ", ".join(f"{n} of {size}" for size, n in sorted(shared.items(), reverse=True))
        programs = _counted(len(sizes), "compiled program")
        lines.append(f"{programs} for them all (groups by size: {words})")
    return "\n".join(lines)


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def dry_run(points: Sequence[Point], experiment: Any, retry_failed: bool) -> str:
    """What `run` would do: a table of the points, steps, and the time once a point has run."""
    names = varying(points)
    group_of = {
        point.path: number
        for number, group in enumerate(local.groups(points, experiment), start=1)
        for point in group
    }
    table = [["point", "group", *names, "status"]]
    for number, point in enumerate(points, start=1):
        flat = fields(point.config)
        values = [str(flat[name]) for name in names]
        state = summary.state(point.path)
        table.append([str(number), str(group_of[point.path]), *values, state])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    lines += ["", overview(points, experiment)]
    ends = ("done",) if retry_failed else ("done", "failed", "diverged")
    left = [point for point in points if summary.state(point.path) not in ends]
    if all("train.steps" in fields(point.config) for point in points):
        steps = [sum(p.config.train.steps for p in some) for some in (points, left)]
        lines.append(f"steps: {steps[0]:,} in all, {steps[1]:,} left")
    seconds = [_seconds(point.path) for point in points if runs.done(point.path)]
    known = [value for value in seconds if value is not None]
    if known:
        expected = sum(known) / len(known) * len(left)
        lines.append(f"time: about {progress.clock(expected)} left, by {len(known)} done")
    else:
        lines.append("time: not known before a point has run")
    return "\n".join(lines)


def _seconds(path: Path) -> float | None:
    """How long the run trained."""
    value = runs.result(path).get("train/seconds")
    return float(value) if isinstance(value, int | float) else None
