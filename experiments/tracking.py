"""Finished runs for the tools that people look at many runs with: TensorBoard and W&B."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import runs
from experiments.config import fields
from experiments.errors import UserError
from experiments.sweep import Point


def hparams(path: Path, config: Any, result: dict[str, Any]) -> None:
    """Adds the config's fields and the final numbers to tb/, as TensorBoard's HParams has them."""
    from tensorboardX import SummaryWriter
    from tensorboardX.summary import hparams

    known = {k: _plain(v) for k, v in fields(config).items() if v is not None}
    measured = {f"final/{k}": float(v) for k, v in result.items() if isinstance(v, int | float)}
    writer = SummaryWriter(str(path / "tb"), filename_suffix=".hparams")
    for part in hparams(known, measured):
        writer.file_writer.add_summary(part)
    for name, value in measured.items():
        writer.add_scalar(name, value, int(result.get("train/steps", 0)))
    writer.close()


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


def to_wandb(points: Sequence[Point], project: str, log: Any) -> None:
    """Sends each finished run, its config, metrics and result, to a project of Weights & Biases;
    with WANDB_MODE=offline to files in the run's directory. A run sent twice is the same run."""
    try:
        wandb = importlib.import_module("wandb")
    except ImportError:
        raise UserError("--wandb needs wandb: python -m pip install -e '.[wandb]'") from None
    done = [point for point in points if runs.done(point.path)]
    for point in done:
        run = wandb.init(
            project=project,
            id=runs.digest(point.config),
            name=point.path.name,
            group=point.path.parent.name,
            config=fields(point.config),
            dir=point.path,
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        for row in runs.read_metrics(point.path):
            run.log({k: v for k, v in row.items() if k != "step"}, step=int(row["step"]))
        run.summary.update(runs.result(point.path))
        run.finish()
    log(f"{len(done)} runs are in the W&B project {project}")
