"""Sigmoid, each key by itself: ``p_j = 1 / (1 + exp(-(l_j + b)))``, by default ``b = -ln n``.

n is the number of visible keys of the row, so that at l = 0 the weights sum to ``n / (n + 1)``
whatever n. Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid
Self-Attention". An empty row gives 0.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.normalizers._base import Normalizer, option, spread_nan, visible_count


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sigmoid(Normalizer):
    """``bias``: None for -ln n, or a scalar or ``[N]``, may be traced and learned.

    >>> logits = jnp.array([[0.0, jnp.log(2.0)]])
    >>> print(Sigmoid().normalize(logits).round(4))  # 1 / (1 + 2), 2 / (2 + 2)
    [[0.3333 0.5   ]]
    >>> print(Sigmoid(bias=0.0).normalize(logits).round(4))
    [[0.5    0.6667]]
    """

    bias: Any = None

    SUMS_TO_ONE = False
    STREAMS = "elementwise"

    def __post_init__(self) -> None:
        if isinstance(self.bias, int | float) and not abs(self.bias) < math.inf:
            raise ValueError(f"bias of sigmoid must be finite (or None): got {self.bias}")

    def normalize(self, logits: jax.Array) -> jax.Array:
        return spread_nan(self.weigh(logits, visible_count(logits)), logits)

    def weigh(self, logits: jax.Array, count: jax.Array) -> jax.Array:
        bias = -jnp.log(count) if self.bias is None else option("bias", self.bias, logits)
        return jax.nn.sigmoid(logits + bias)


NORMALIZER = Sigmoid
