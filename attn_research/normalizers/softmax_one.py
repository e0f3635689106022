"""Softmax with one more in the denominator: ``p_j = exp(l_j) / (1 + sum_i exp(l_i))``.

Miller 2023, "Attention Is Off By One". A head may attend to nothing: if all logits fall, the sum of
its weights goes to 0. It equals a sink of logit 0 (``sinks.py``). An empty row gives 0.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attn_research.normalizers._base import Normalizer, share
from attn_research.normalizers.sinks import weights_and_rest


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SoftmaxOne(Normalizer):
    """No options. Rows sum to less than 1; an empty one to 0.

    >>> print(SoftmaxOne().normalize(jnp.log(jnp.array([[1.0, 2.0]]))).round(4))
    [[0.25 0.5 ]]
    """

    SUMS_TO_ONE = False
    STREAMS = "sinks"

    def normalize(self, logits: jax.Array) -> jax.Array:
        return weights_and_rest(logits, jnp.zeros((), logits.dtype))[0]

    def kept(self, lse: jax.Array) -> jax.Array:
        return share(lse, 0)


NORMALIZER = SoftmaxOne
