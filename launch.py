"""Runs an experiment: python launch.py --config=configs/NAME.py[:variant] [--config.field=value]

The run's directory lies under --workdir. The same command again goes on from where it was stopped,
and skips what is done. With --mode=translate the sentences on standard input are translated by the
model that the same command without it has trained.
"""

import importlib
import sys
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags

from experiments import allocator, command_line, runs
from experiments.errors import UserError

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The experiment: configs/NAME.py[:variant]."
)
_WORKDIR = flags.DEFINE_string("workdir", "runs", "The directory that run directories lie in.")
_MODE = flags.DEFINE_enum(
    "mode", "run", ["run", "translate"], "Train and evaluate, or translate standard input."
)


def main(argv: list[str]) -> None:
    del argv
    allocator.keep_freed_memory()
    logging.set_verbosity(logging.ERROR)  # libraries' notes; the run's own lines are printed
    file, _, variant = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    experiment = command_line.experiment(_CONFIG.value.experiment)
    config = experiment.check(_CONFIG.value)
    changed = runs.changes(command_line.load_config(file, variant), _CONFIG.value)
    path = runs.directory(Path(_WORKDIR.value), Path(file).stem, variant, changed, config)
    if _MODE.value == "translate":
        if config.experiment != "train":
            raise UserError(f"--mode=translate: {file} trains no model that could translate")
        importlib.import_module("experiments.translate").run(config, path, sys.stdin)
    else:
        runs.execute(experiment.run, config, path)


if __name__ == "__main__":
    try:
        app.run(main, flags_parser=command_line.parse)
    except UserError as error:
        sys.exit(f"launch.py: {error}")
