"""The examples in the docstrings of experiments/."""

import doctest
import importlib
import pkgutil

import pytest

import experiments

NAMES = [
    module.name
    for module in pkgutil.walk_packages(experiments.__path__, "experiments.")
    if not module.ispkg
]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    failures, _ = doctest.testmod(importlib.import_module(name))
    assert not failures
