"""Sparsemax: ``p = argmin_{p in simplex} |p - l|^2``, that is ``p_j = max(l_j - t, 0)``.

t makes the sum 1: keys far enough below the others get exactly 0. The Jacobian is
``diag(s) - s s^T / |S|``, s the indicator of the keys with p > 0. Martins, Astudillo 2016, "From
Softmax to Sparsemax". An empty row gives 0.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.normalizers._base import Normalizer
from attn_research.normalizers._threshold import above_threshold, below_top, hide, tangent


@jax.custom_jvp
def _weights(logits: jax.Array) -> jax.Array:
    return hide(above_threshold(below_top(logits), 1), logits)


@_weights.defjvp
def _weights_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    weights = _weights(*primals)
    return weights, tangent(jnp.sign(weights), tangents[0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sparsemax(Normalizer):
    """No options. Rows sum to 1; an empty one to 0.

    >>> print(Sparsemax().normalize(jnp.array([[1.0, 0.5, -1.0]])))
    [[0.75 0.25 0.  ]]
    """

    SUMS_TO_ONE = True
    STREAMS = "threshold"
    POWER = 1

    def normalize(self, logits: jax.Array) -> jax.Array:
        return _weights(logits)


NORMALIZER = Sparsemax
