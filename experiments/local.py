"""The points of a sweep, run on this machine: in this process, or in several that share the work.

Nobody hands out work. Each process goes through all points, takes what is neither done nor held by
another, and waits for the rest; a run's lock goes with its process. So any number of them, started
at any time, by hand or by Slurm, make one sweep.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import allocator, runs, signals, summary
from experiments.config import fields
from experiments.errors import UserError
from experiments.sweep import Point

MEMBERS = 16  # runs that one program trains together, a device
_POLL = 0.5  # seconds between two looks at what another process holds


def groups(points: Sequence[Point], experiment: Any) -> list[list[Point]]:
    """The points that share a program, those first that come first."""
    found: dict[str, list[Point]] = {}
    for point in points:
        key = str(point.path)
        if hasattr(experiment, "program"):
            key = json.dumps(fields(experiment.program(point.config)), sort_keys=True)
        found.setdefault(key, []).append(point)
    return list(found.values())


def work(points: Sequence[Point], experiment: Any, retry_failed: bool) -> None:
    """Until every point has ended, here or elsewhere. Raises Stopped when asked to."""
    tried: set[Path] = set()
    left = groups(points, experiment)
    _keep_compiled(points[0].path.parent)
    with signals.stopping():
        while left:
            # First a program that no other process has compiled and works with.
            group = next((one for one in left if not any(runs.busy(p.path) for p in one)), left[0])
            left.remove(group)
            if not _ended(group, experiment, retry_failed, tried):
                left.append(group)
                time.sleep(_POLL)


def _keep_compiled(folder: Path) -> None:
    """Compiled programs are kept in the sweep's directory, unless $JAX_COMPILATION_CACHE_DIR says
    where: for a sweep that was killed, and processes that share one. CPUs of other kinds have
    others."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0]
            kind = hashlib.sha256(flags.encode()).hexdigest()[:8]
            jax.config.update("jax_compilation_cache_dir", str(folder / ".compiled" / kind))


def _ended(group: list[Point], experiment: Any, retry_failed: bool, tried: set[Path]) -> bool:
    """Runs those of a group that are to be run and that no other process holds; whether nothing of
    it is left."""

    def wanted(point: Point) -> bool:
        state = summary.state(point.path)
        if state in ("failed", "diverged"):
            return retry_failed and point.path not in tried
        return state != "done"

    todo = [point for point in group if wanted(point)]
    # What is tried again would set back the others of a group that goes on.
    again = [point for point in todo if summary.state(point.path) in ("failed", "diverged")]
    together = len(todo) > 1 and hasattr(experiment, "prepare") and _population().vmaps()
    size = MEMBERS * _population().devices() if together else 1
    prepare = functools.cache(lambda: experiment.prepare(todo[0].config, _logger(todo[:1])))
    ended = True
    parts = [
        some[start : start + size]
        for some in ([point for point in todo if point not in again], again)
        for start in range(0, len(some), size)
    ]
    for part in parts:
        try:
            with contextlib.ExitStack() as locks:
                for point in part:
                    runs.create(point.path)
                    locks.enter_context(runs.locked(point.path))
                part = [point for point in part if wanted(point)]  # another may have run it
                tried.update(point.path for point in part)
                _run(part, experiment, prepare)
        except runs.Busy:
            ended = False
    return ended


def _population() -> Any:
    return importlib.import_module("experiments.population")


def _run(part: list[Point], experiment: Any, prepare: Any) -> None:
    """A run, or several as one program; all are locked. What fails is recorded; raises Stopped."""
    log = _logger(part)
    outcomes: list[Any] = []
    try:
        for point in part:
            runs.begin(point.path, point.config)
        if len(part) > 1:
            outcomes = _population().run(
                [point.config for point in part], [point.path for point in part], log, prepare()
            )
        elif part:
            prepared = {"prepared": prepare()} if hasattr(experiment, "prepare") else {}
            outcomes = [experiment.run(part[0].config, part[0].path, log, **prepared)]
    except BaseException as error:
        with contextlib.suppress(OSError):  # the disk is full, say
            for point in part:
                if runs.status(point.path) == "running":
                    runs.fail(point.path, error)
        if not isinstance(error, Exception):
            raise
    for point, outcome in zip(part, outcomes, strict=False):
        if isinstance(outcome, Exception):
            runs.fail(point.path, outcome)
        else:
            runs.end(point.path, point.config, outcome)


def _logger(part: Sequence[Point]) -> Any:
    """What a run says goes to log.txt in its directory."""

    def log(line: str) -> None:
        for point in part:
            with open(point.path / "log.txt", "a", encoding="utf-8") as file:
                file.write(line + "\n")

    return log


def work_in_processes(
    points: Sequence[Point], experiment: Any, retry_failed: bool, count: int
) -> None:
    """`work` in `count` processes: each has an accelerator of its own where there are any, or else
    its share of the CPU's cores."""
    context = multiprocessing.get_context("spawn")
    arguments = points, experiment.__name__, retry_failed, count
    children = [context.Process(target=_child, args=(*arguments, i)) for i in range(count)]
    came: list[int] = []

    def forward(number: int, frame: Any) -> None:
        came.append(number)
        for child in children:
            if child.is_alive() and child.pid:
                os.kill(child.pid, signal.SIGTERM)

    with signals.handling(forward):
        for child in children:
            child.start()
        for child in children:
            child.join()
    if came:
        raise signals.Stopped(f"stopped by {signal.Signals(came[0]).name}")
    lost = [child.exitcode for child in children if child.exitcode]
    if lost:
        raise UserError(f"{len(lost)} of {count} processes ended early (exit status {lost[0]})")


def _child(
    points: Sequence[Point], experiment: str, retry_failed: bool, count: int, number: int
) -> None:
    """One of the processes; nothing of JAX has run in it yet."""
    allocator.keep_freed_memory()
    os.environ["CUDA_VISIBLE_DEVICES"] = _own_device(number)
    cores = sorted(os.sched_getaffinity(0))
    share = cores[number * len(cores) // count : (number + 1) * len(cores) // count]
    os.sched_setaffinity(0, share or cores)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(signals.Stopped):
        work(points, importlib.import_module(experiment), retry_failed)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _own_device(number: int) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(number + 1)]
    return names[number % len(names)]
