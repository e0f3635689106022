"""A run's directory: where it lies, what is written there, and how nothing is left half-written.

<workdir>/<config name>/<run name>-<hash>/ holds config.json, env.json, metrics.jsonl, checkpoints/,
tb/, figures/, result.json, STATUS (running, done, failed, diverged, stopped) and, of what failed or
diverged, error.txt.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import signals
from experiments.config import fields
from experiments.errors import UserError, described

# Fields that say where or how often, and leave parameters and results as they are.
NOT_RESULT = ("task.data_dir",)
STATUSES = ("running", "done", "failed", "diverged", "stopped")
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sacrebleu")


class Diverged(Exception):
    """The loss stopped being a number; the message says at which step."""


def changes(default: Any, config: Any) -> dict[str, Any]:
    """The fields of `config` that the config file has otherwise, and that change the result."""
    before = fields(default)
    return {
        name: value
        for name, value in fields(config).items()
        if value != before[name] and name not in NOT_RESULT
    }


def directory(workdir: Path, name: str, variant: str, changed: dict[str, Any], config: Any) -> Path:
    """The run's own directory: its name says what was changed on the command line, its hash all
    that makes the result, `config` being resolved."""
    short = short_names(list(fields(config)))
    parts = ([variant] if variant else []) + [f"{short[name]}={changed[name]}" for name in changed]
    run = re.sub(r"[^A-Za-z0-9.,=_+-]", "_", ",".join(parts) or "default")[:100]
    return workdir / name / f"{run}-{digest(config)}"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """The last parts of the fields' names, as few as tell them apart.

    >>> list(short_names(["model.attention.score", "task.length", "decode.length"]).values())
    ['score', 'task.length', 'decode.length']
    """

    def last(name: str, parts: int) -> str:
        return ".".join(name.split(".")[-parts:])

    short = {}
    for name in names:
        parts = 1
        while sum(last(name, parts) == last(other, parts) for other in names) > 1:
            parts += 1
        short[name] = last(name, parts)
    return short


def digest(config: Any) -> str:
    """Eight hexadecimal digits of all that changes the result."""
    result = {name: value for name, value in fields(config).items() if name not in NOT_RESULT}
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:8]


def create(path: Path) -> None:
    """Makes the directory and makes sure that it can be written to. UserError if not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"--workdir: cannot write to {path} ({error.strerror}); name a directory that can be "
            "written to, --workdir=DIRECTORY"
        ) from None


class Busy(UserError):
    """Another process holds the run."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the run for this process, or raises Busy; a killed process lets go of it by itself."""
    with open(path / ".lock", "w") as file:
        for wait in (0.05, 0.1, 0):  # whoever asks `busy` holds it for a moment
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(wait)
        else:
            raise Busy(f"{path} is being run by another process; wait for it") from None
        yield


def busy(path: Path) -> bool:
    """Whether a process holds the run now."""
    try:
        with locked(path):
            return False
    except Busy:
        return True
    except OSError:
        return False


def write_text(path: Path, text: str) -> None:
    """Writes the file whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """`write_text` of strict JSON: a number that is not finite becomes null."""
    write_text(path, json.dumps(_finite(value), indent=1, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def set_status(path: Path, status: str) -> None:
    write_text(path / "STATUS", status + "\n")


def status(path: Path) -> str:
    """'' for a run that never began; what is no status stands for a run that was stopped."""
    try:
        found = (path / "STATUS").read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError:
        found = ""
    return found if found in STATUSES else "stopped"


def describe(path: Path, config: Any) -> None:
    """Writes config.json and env.json."""
    import jax

    write_json(path / "config.json", dataclasses.asdict(config))
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    env = {
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "devices": [f"{device.platform}: {device.device_kind}" for device in jax.local_devices()],
        "versions": versions,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_diff": _git("diff", "HEAD"),
    }
    write_json(path / "env.json", env)


def _git(*arguments: str) -> str | None:
    """Git's answer for the checkout this file is in; None where there is none."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def log(line: str) -> None:
    """A line for whoever is watching; nobody need be."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def execute(run: Callable[..., dict[str, Any]], config: Any, path: Path) -> None:
    """Runs `run(config, path, log)` unless it is done, and keeps STATUS and result.json true."""
    create(path)
    with locked(path):
        if done(path):
            log(f"done before: {path} (remove it to run again)")
            log((path / "result.json").read_text(encoding="utf-8").strip())
            return
        log(f"run directory: {path}")
        begin(path, config)
        try:
            with signals.stopping():
                end(path, config, run(config, path, log))
        except BaseException as error:
            fail(path, error)
            if isinstance(error, signals.Stopped):
                log(f"{error}; the same command goes on from there")
                return
            if isinstance(error, Diverged):
                raise UserError(f"diverged: {error}; try a lower optim.learning_rate") from None
            raise
        log(f"\nresult: {path / 'result.json'}\nfigures: {path / 'figures'}")


def done(path: Path) -> bool:
    return status(path) == "done" and bool(result(path))


def result(path: Path) -> dict[str, Any]:
    """The run's result.json; empty where there is none that can be read."""
    try:
        found = json.loads((path / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def begin(path: Path, config: Any) -> None:
    """The run is about to start, or to go on."""
    describe(path, config)
    (path / "error.txt").unlink(missing_ok=True)
    set_status(path, "running")


def end(path: Path, config: Any, result: dict[str, Any]) -> None:
    """The run is done."""
    importlib.import_module("experiments.tracking").hparams(path, config, result)
    write_json(path / "result.json", result)
    set_status(path, "done")


def fail(path: Path, error: BaseException) -> None:
    """The run ended otherwise: STATUS says how, error.txt why, in its first line."""
    if isinstance(error, signals.Stopped | KeyboardInterrupt):
        set_status(path, "stopped")
        return
    if isinstance(error, Diverged | UserError):
        text = f"{error}\n"
    else:
        text = f"{described(error)[:300]}\n\n{''.join(traceback.format_exception(error))}"
    write_text(path / "error.txt", text)
    set_status(path, "diverged" if isinstance(error, Diverged) else "failed")


def reason(path: Path) -> str:
    """Why a run failed or diverged, in a line; '' for others."""
    try:
        text = (path / "error.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.partition("\n")[0]


class Metrics:
    """metrics.jsonl (a line a logged step, nothing in it depends on the clock) and tb/."""

    def __init__(self, path: Path, step: int) -> None:
        """Opens both for appending, and drops what an earlier process wrote after `step`."""
        from tensorboardX import SummaryWriter

        self._path = path / "metrics.jsonl"
        if self._path.exists():
            kept = [row for row in read_metrics(path) if row["step"] <= step]
            write_text(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = open(self._path, "a", encoding="utf-8")
        self._tb = SummaryWriter(str(path / "tb"), purge_step=step + 1 if step else None)

    def write(self, step: int, values: dict[str, float]) -> None:
        """One line: {"step": step, **values}."""
        self._file.write(json.dumps({"step": step} | _finite(values)) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._tb.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        self._tb.close()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a run's metrics.jsonl; what is none (a line cut short by a kill) is left out."""
    rows = []
    text = (path / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            row = json.loads(line)
            if isinstance(row, dict) and "step" in row:
                rows.append(row)
    return rows
