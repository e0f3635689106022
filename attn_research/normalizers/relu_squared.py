"""Squared ReLU over the number of visible keys: ``p_j = max(l_j, 0)^2 / n``.

Hua, Dai, Liu, Le 2022, "Transformer Quality in Linear Time" (attention); So et al. 2021, "Primer"
(squared ReLU). Weights are not bounded by 1; a square too large for the dtype saturates, with
derivative 0. An empty row gives 0.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attn_research.normalizers._base import Normalizer, spread_nan, visible_count


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReluSquared(Normalizer):
    """No options. Rows sum to the mean of the squared positive parts; an empty one to 0.

    >>> print(ReluSquared().normalize(jnp.array([[3.0, -1.0, 0.0, 6.0]])))
    [[2.25 0.   0.   9.  ]]
    """

    SUMS_TO_ONE = False
    STREAMS = "elementwise"

    def normalize(self, logits: jax.Array) -> jax.Array:
        return spread_nan(self.weigh(logits, visible_count(logits)), logits)

    def weigh(self, logits: jax.Array, count: jax.Array) -> jax.Array:
        root = float(jnp.finfo(logits.dtype).max) ** 0.5
        return jnp.square(jax.nn.relu(jnp.minimum(logits, root))) / count


NORMALIZER = ReluSquared
