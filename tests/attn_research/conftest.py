"""Inputs of attention calls, drawn afresh."""

import dataclasses
from typing import Any

import jax
import pytest

from attn_research import choose, scores
from attn_research.kernels import layout
from attn_research.kernels.blocks import Sizes
from tests.attn_research import oracles


def pytest_addoption(parser):
    parser.addoption(
        "--implementation",
        choices=("blocked", "blocked_any_mode"),
        help="what attend chooses, in blocks of 2 x 3, wherever it can (default: dense, as small)",
    )


@pytest.fixture(autouse=True)
def chosen_implementation(request, monkeypatch):
    name = request.config.getoption("--implementation")
    if name and not request.node.path.name.startswith("test_blocked"):  # they have their own
        in_tiny_blocks(monkeypatch, name)
    return name


@pytest.fixture
def forward_mode(chosen_implementation, monkeypatch):
    """For tests that need it: "blocked" has forward over reverse alone."""
    if chosen_implementation == "blocked":
        in_tiny_blocks(monkeypatch, "blocked_any_mode")


def in_tiny_blocks(monkeypatch, name: str) -> None:
    """``name`` is chosen wherever it can be, in blocks that cut even the smallest arrays."""

    def preferred(inputs, options, with_lse):
        refused = choose.why_not_blocked(dataclasses.replace(options, implementation=name))
        return "dense" if refused else name

    monkeypatch.setattr(choose, "preferred", preferred)
    monkeypatch.setattr(layout, "block_sizes", lambda *shape: Sizes(1, 2, 3, 2))


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
    """``oracles.draw_params`` from this test's seed."""

    def draw_params(name, Dq, Dk, num_heads=None, **options):
        return oracles.draw_params(name, rng, Dq, Dk, num_heads, **options)

    return draw_params


@pytest.fixture
def key_dim():
    """A key size that fits a query size: another one where the score allows it."""
    return lambda name, Dq: Dq if getattr(scores.get(name), "SAME_DIM", False) else Dq + 2
