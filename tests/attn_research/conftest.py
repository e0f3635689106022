"""Inputs of attention calls, drawn afresh."""

import dataclasses
from typing import Any

import jax
import pytest

import attn_research as ar
from attn_research import scores


@dataclasses.dataclass
class Drawn:
    """NumPy float64 inputs of one attention call."""

    query: Any
    key: Any
    value: Any

    def __iter__(self):
        return iter((self.query, self.key, self.value))

    def cast(self, dtype) -> list[jax.Array]:
        return [jax.numpy.asarray(x, dtype) for x in self]


@pytest.fixture
def draw(rng):
    def draw(batch=(2,), T=3, S=5, N=2, K=None, Dq=4, Dk=4, Dv=3) -> Drawn:
        K = N if K is None else K
        shapes = ((*batch, T, N, Dq), (*batch, S, K, Dk), (*batch, S, K, Dv))
        return Drawn(*(rng.normal(size=shape) for shape in shapes))

    return draw


@pytest.fixture
def draw_params(rng):
    """Parameters of a score as NumPy float64 (filled at random, so that none is zero)."""

    def draw_params(name, Dq, Dk, num_heads=None, **options):
        params = ar.init_score(name, jax.random.key(0), Dq, Dk, num_heads=num_heads, **options)
        leaves = params.params if num_heads else params
        filled = {k: rng.normal(size=x.shape) * 0.5 for k, x in leaves.items()}
        return ar.PerHead(filled) if num_heads else filled

    return draw_params


@pytest.fixture
def key_dim():
    """A key size that fits a query size: another one where the score allows it."""
    return lambda name, Dq: Dq if getattr(scores.get(name), "SAME_DIM", False) else Dq + 2
