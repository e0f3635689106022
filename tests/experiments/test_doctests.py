"""The examples in the docstrings of experiments/."""

import pkgutil

import pytest

import experiments
from tests import examples

NAMES = [
    module.name
    for module in pkgutil.walk_packages(experiments.__path__, "experiments.")
    if not module.ispkg
]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    assert not examples.failures(name)
