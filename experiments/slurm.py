"""The points of a sweep as a Slurm job array, a job a group, through submitit (an extra)."""

import importlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import allocator, local, runs, signals
from experiments.errors import UserError
from experiments.sweep import Point

_POLL = 2.0  # seconds between two looks at the queue
_MINUTES = 240  # of a job, where --slurm=timeout_min=... says nothing


def work(
    points: Sequence[Point], experiment: Any, retry_failed: bool, folder: Path, options: list[str]
) -> None:
    """Submits what is not done and waits for the jobs. `folder`, which all nodes see, takes their
    output; `options` are submitit's parameters, "timeout_min=60" each. Raises Stopped on Ctrl-C;
    the jobs go on."""
    submitit = _submitit()
    if shutil.which("sbatch") is None:
        raise UserError("--executor=slurm: there is no sbatch here; run it where Slurm is")
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    parameters = {"name": "attn_research", "timeout_min": _MINUTES} | _parameters(options)
    try:
        executor.update_parameters(**parameters)
    except (TypeError, ValueError, NameError, NotImplementedError) as error:
        raise UserError(f"--slurm: {' '.join(str(error).split())}") from None
    root = os.getcwd()
    todo = [
        [point for point in group if not runs.done(point.path)]
        for group in local.groups(points, experiment)
    ]
    try:
        with executor.batch():
            jobs = [
                executor.submit(_job, root, group, experiment.__name__, retry_failed)
                for group in todo
                if group
            ]
    except submitit.core.utils.FailedJobError as error:
        raise UserError(f"Slurm refused the jobs: {' '.join(str(error).split())}") from None
    if not jobs:
        return
    number = jobs[0].job_id.partition("_")[0]  # of the array
    runs.log(f"submitted {len(jobs)} jobs, {jobs[0].job_id} ... {jobs[-1].job_id}; logs: {folder}")
    try:
        with signals.stopping():
            while _queued(number):
                time.sleep(_POLL)
    except signals.Stopped as stopped:
        raise signals.Stopped(f"{stopped}; the jobs go on (scancel {number} ends them)") from None


def _queued(number: str) -> bool:
    """Whether jobs of the array wait or run. Not asked of submitit: it asks Slurm's accounting,
    which not every Slurm has."""
    command = ["squeue", "--noheader", f"--jobs={number}", "--format=%T"]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        return "Invalid job id" not in found.stderr  # long gone; or the controller is busy
    return bool(found.stdout.strip())


def _submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise UserError(
            "--executor=slurm needs submitit: python -m pip install -e '.[slurm]'"
        ) from None


def _parameters(options: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in options:
        name, equal, value = option.partition("=")
        if not equal:
            raise UserError(f"--slurm={option} is not name=value")
        found[name] = int(value) if value.isdigit() else value
    return found


def _job(root: str, points: Sequence[Point], experiment: str, retry_failed: bool) -> None:
    """On a node."""
    os.chdir(root)
    allocator.keep_freed_memory()
    local.work(points, importlib.import_module(experiment), retry_failed)
