"""Tasks: sentence pairs to learn from. One file here is one task, named after it; files that begin
with an underscore are what they share. `load` prepares the data of a config and gives a `Task`.
"""

import dataclasses
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.config import TaskConfig, one_of
from experiments.errors import UserError
from experiments.tasks._pairs import SPLITS, Definition, Ids, Log, Options, Split, Task, Texts
from experiments.vocabulary import Vocabulary

__all__ = ["TASKS", "Ids", "Split", "Task", "check", "cleaner", "load", "resolve"]

TASKS = tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))
PLACES = ("name", "tfds", "data_dir")  # the fields of a config that are no option of a task
OPTIONS = tuple(f.name for f in dataclasses.fields(TaskConfig) if f.name not in PLACES)


def _definition(config: TaskConfig) -> Definition:
    if not config.tfds:
        one_of("task.name", config.name, TASKS)
    name = "_translation_set" if config.tfds else config.name
    return importlib.import_module(f"experiments.tasks.{name}").TASK


def _options(task: Definition, config: TaskConfig) -> Options:
    values = {name: getattr(config, name) for name in task.defaults}
    given = {name: value for name, value in values.items() if value is not None}
    fixed = {name: value for name, value in task.defaults.items() if value is not None}
    return task.fill(fixed | given)


def resolve(config: TaskConfig) -> TaskConfig:
    """A copy with the task's own defaults in place of None; `name` is the set's where `tfds` is
    given, and `data_dir` stays as it is. Raises `UserError` as `check` does."""
    check(config)
    options: dict[str, Any] = {**_options(_definition(config), config)}
    return dataclasses.replace(config, name=config.tfds or config.name, **options)


def check(config: TaskConfig) -> None:
    """Raises `UserError` for what cannot work, without preparing data: an unknown task, an option
    it has not got, a value that is impossible, a package that is not installed."""
    task = _definition(config)
    name = config.tfds or config.name
    for option in OPTIONS:
        value = getattr(config, option)
        if value is None:
            continue
        if option not in task.defaults:
            has = ", ".join(task.defaults)
            raise UserError(f"task.{option}={value!r}: the task {name!r} has only {has}")
        if not isinstance(value, int) or value < 1:
            raise UserError(f"task.{option}={value!r} is not a whole number above 0")
    for package in task.packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"task {name!r} needs the package {package}: pip install {package}")
    task.check(_options(task, config), config)


def cleaner(config: TaskConfig) -> Callable[[str], str]:
    """The task's `clean`, without its data."""
    return _definition(config).clean


def load(config: TaskConfig, log: Log = print) -> Task:
    """The task of a config, its data prepared if they are not yet. `log` is told what takes time.
    Raises `UserError` as `check` does, and where data cannot be had or written."""
    config = resolve(config)
    task = _definition(config)
    options = _options(task, config)
    texts, directory = task.read(config, log) if task.read else _drawn(task, config, log)
    source, target = task.vocabularies(options, texts["train"], directory, log)
    splits = {name: _encoded(texts[name], source, target) for name in SPLITS}
    if task.drop_long:
        splits = _without_long(splits, options["max_length"], log)
    if not len(splits["train"]):
        raise UserError(f"the task {config.name!r} has no training pair with these options")
    return Task(config.name, source, target, splits, task.clean)


def _drawn(task: Definition, config: TaskConfig, log: Log) -> tuple[Mapping[str, Texts], Path]:
    """What the task draws, by way of the prepared data set."""
    from experiments.tasks import _storage

    assert task.draw
    draw, options = task.draw, _options(task, config)
    directory = _storage.prepared(
        name=config.name,
        options="-".join(f"{name}_{options[name]}" for name in task.stored) or "all",
        version=task.version,
        place=_storage.data_dir(config),
        draw=lambda: draw(options, log),
        log=log,
    )
    return _storage.texts(directory), directory


def _encoded(texts: Texts, source: Vocabulary, target: Vocabulary) -> Split:
    return Split(
        texts.source,
        texts.target,
        Ids.of([source.encode(text) for text in texts.source]),
        Ids.of([target.encode(text) for text in texts.target]),
    )


def _without_long(splits: Mapping[str, Split], longest: int, log: Log) -> dict[str, Split]:
    """Only the pairs with at most `longest` tokens on either side, <eos> not counted."""
    kept, left_out = {}, []
    for name, split in splits.items():
        fits = (split.source_ids.lengths <= longest) & (split.target_ids.lengths <= longest)
        kept[name] = split.select(np.flatnonzero(fits))
        if len(kept[name]) < len(split):
            left_out.append(f"{len(split) - len(kept[name]):,} of {len(split):,} {name}")
    if left_out:
        log(f"left out, longer than task.max_length={longest}: {', '.join(left_out)} pairs")
    return kept
