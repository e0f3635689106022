"""Runs an experiment: python launch.py --config=configs/NAME.py[:variant] [--config.field=value]

The run's directory lies under --workdir. The same command again goes on from where it was stopped,
and skips what is done. With --sweep it runs every point of the config file's sweep(variant), and
ends in a table and a report of them all; --dry_run shows what that would be. With --mode=report the
report is written again from what is there; with --mode=translate the sentences on standard input
are translated by the model that the same command without it has trained.
"""

import errno
import importlib
import sys
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags

from experiments import allocator, command_line, runs, signals, sweep, sweeping, tracking
from experiments.errors import UserError

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The experiment: configs/NAME.py[:variant]."
)
_WORKDIR = flags.DEFINE_string("workdir", "runs", "The directory that run directories lie in.")
_MODE = flags.DEFINE_enum(
    "mode",
    "run",
    ["run", "report", "translate"],
    "Train and evaluate, write a sweep's report again, or translate standard input.",
)
_SWEEP = flags.DEFINE_bool("sweep", False, "Run all points of the config file's sweep(variant).")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Show the points of the sweep and run nothing.")
_RETRY_FAILED = flags.DEFINE_bool(
    "retry_failed", False, "Run the points again that failed or diverged before."
)
_EXECUTOR = flags.DEFINE_enum(
    "executor", "local", ["local", "slurm"], "Run the sweep here, or as a Slurm job array."
)
_PROCESSES = flags.DEFINE_integer(
    "processes",
    1,
    "Processes that share the sweep on this machine: one an accelerator, or one a few cores.",
    lower_bound=1,
)
_SLURM = flags.DEFINE_list(
    "slurm", [], "Parameters of submitit: --slurm=timeout_min=60,gpus_per_node=1"
)
_WANDB = flags.DEFINE_string("wandb", "", "A project of Weights & Biases that finished runs go to.")


def main(argv: list[str]) -> None:
    del argv
    allocator.keep_freed_memory()
    logging.set_verbosity(logging.ERROR)  # libraries' notes; the run's own lines are printed
    file, _, variant = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    experiment = command_line.experiment(_CONFIG.value.experiment)
    command_line.check_flags()
    module = command_line.load_module(file)
    if _SWEEP.value or _MODE.value == "report":
        workdir = Path(_WORKDIR.value)
        points = sweep.points(module, file, variant, _CONFIG.value, workdir, experiment)
        if _DRY_RUN.value:
            runs.log(sweeping.dry_run(points, experiment, _RETRY_FAILED.value))
        elif _MODE.value == "report":
            sweeping.report(points, _WANDB.value)
        else:
            sweeping.run(
                points,
                experiment,
                executor=_EXECUTOR.value,
                processes=_PROCESSES.value,
                retry_failed=_RETRY_FAILED.value,
                slurm_options=_SLURM.value,
                wandb=_WANDB.value,
            )
        return
    config = experiment.check(_CONFIG.value)
    changed = runs.changes(module.get_config(variant), _CONFIG.value)
    path = runs.directory(Path(_WORKDIR.value), Path(file).stem, variant, changed, config)
    if _MODE.value == "translate":
        if config.experiment != "train":
            raise UserError(f"--mode=translate: {file} trains no model that could translate")
        importlib.import_module("experiments.translate").run(config, path, sys.stdin)
    else:
        runs.execute(experiment.run, config, path)
        if _WANDB.value:
            tracking.to_wandb([sweep.Point(config, path)], _WANDB.value, runs.log)


if __name__ == "__main__":
    try:
        app.run(main, flags_parser=command_line.parse)
    except (UserError, signals.Stopped, KeyboardInterrupt) as error:
        sys.exit(f"launch.py: {str(error) or 'stopped'}")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.exit(f"launch.py: {error}; the same command goes on when there is space")
