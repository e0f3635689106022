"""Fresh inputs for every run: the seed is printed with a failure; TEST_SEED=... repeats it."""

import os
import secrets

import jax
import numpy as np
import pytest


@pytest.fixture
def seed():
    seed = int(os.environ.get("TEST_SEED") or secrets.randbits(31))
    print(f"TEST_SEED={seed}")
    return seed


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def quick_compile():
    """Half the compile time; not for tests of what XLA's fusions do to rounding."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
