"""The fields of a config that a compiled program takes as numbers: runs that differ in nothing else
share one program.

A config may hold traced arrays in these fields; whoever reads one must not branch on it.
"""

from typing import Any

from experiments.config import Config, fields, replaced

_SCALE, _DROPOUT = "model.attention.scale", "model.dropout"
_FIELDS = ("optim.learning_rate", "optim.weight_decay", _DROPOUT, _SCALE)


def numbers(model: Any, config: Config) -> dict[str, float]:
    """What the program takes: the number of each traced field that this config makes use of."""
    flat = fields(config) | {_SCALE: 1.0}
    if config.model.attention.score != "none":
        flat[_SCALE] = model.scale_of(config.model)
    used = {name: float(flat[name]) for name in _FIELDS}
    if not config.model.dropout:
        del used[_DROPOUT]  # dropout at rate 0 is no dropout, and costs nothing
    return used


def put(config: Config, values: dict[str, Any]) -> Config:
    """The config with these values in its fields, for use within a program."""
    return replaced(config, values)


def program(model: Any, config: Config) -> Config:
    """Equal for two configs exactly if one program serves both: without the seed and what
    `numbers` holds."""
    return replaced(config, dict.fromkeys(numbers(model, config)) | {"seed": 0})
