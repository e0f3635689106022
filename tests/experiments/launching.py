"""Running launch.py as a user does, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = (  # a run of seconds: reverse, a small model
    "--config=configs/reverse.py:quick",
    "--config.task.train_examples=200",
    "--config.task.eval_examples=20",
    "--config.task.max_length=6",
    "--config.model.hidden_size=8",
    "--config.train.steps=40",
    "--config.train.log_every=3",
    "--config.train.eval_every=10",
)


def environment(tmp: Path, devices: int = 1) -> dict[str, str]:
    """Data under `tmp`, compiled programs beside it, so that a second run starts sooner."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return os.environ | {
        "TFDS_DATA_DIR": str(tmp / "data"),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "JAX_COMPILATION_CACHE_DIR": str(tmp.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def start(*arguments: str, env: dict[str, str], stdin: int | None = None) -> subprocess.Popen:
    """The process, its output in one pipe."""
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "launch.py", *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def launch(*arguments: str, env: dict[str, str], text: str | None = None) -> tuple[int, str]:
    """(exit status, all that was printed); `text` goes to its standard input."""
    process = start(*arguments, env=env, stdin=subprocess.PIPE if text is not None else None)
    out, _ = process.communicate(text, timeout=300)
    return process.returncode, out
