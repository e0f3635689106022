"""1.5-entmax: ``p_j = max(l_j / 2 - t, 0)^2``, t such that the sum is 1.

Between softmax and sparsemax: it gives exact zeros, and has a continuous derivative
``diag(g) - g g^T / sum(g)`` with ``g_j = sqrt(p_j)``. Peters, Niculae, Martins 2019, "Sparse
Sequence-to-Sequence Models". An empty row gives 0.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.normalizers._base import Normalizer
from attn_research.normalizers._threshold import above_threshold, below_top, hide, tangent


@jax.custom_jvp
def _weights(logits: jax.Array) -> jax.Array:
    return hide(jnp.square(above_threshold(below_top(logits) / 2, 2)), logits)


@_weights.defjvp
def _weights_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    weights = _weights(*primals)
    zero = weights == 0
    slopes = jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, weights)))
    return weights, tangent(slopes, tangents[0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Entmax15(Normalizer):
    """No options. Rows sum to 1; an empty one to 0.

    >>> weights = Entmax15().normalize(jnp.array([0.4, 0.0, -2.0]))
    >>> [round(float(weight), 4) for weight in weights]  # t = -0.6
    [0.64, 0.36, 0.0]
    """

    SUMS_TO_ONE = True
    STREAMS = "threshold"
    POWER = 2

    def normalize(self, logits: jax.Array) -> jax.Array:
        return _weights(logits)


NORMALIZER = Entmax15
