"""Softmax: ``p_j = exp(l_j) / sum_i exp(l_i)``; the log of the denominator is the lse.

Bridle 1990; in attention since Bahdanau et al. 2015. Rows sum to 1, an empty one to 0; streams.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.normalizers._base import Normalizer


@jax.custom_jvp
def weights_and_lse(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights ``[..., S]`` and log-sum-exp ``[...]`` in the dtype of ``logits [..., S]``.

    >>> weights, lse = weights_and_lse(jnp.array([[0.0, jnp.log(3.0)], [-jnp.inf, -jnp.inf]]))
    >>> print(weights.round(4).tolist(), lse.round(4))
    [[0.25, 0.75], [0.0, 0.0]] [1.3863   -inf]
    """
    # The minimum lets +inf saturate. It also stands between the product that made the logits and
    # the difference below: fused into one multiply-add, that is not 0 at the top logit but its
    # rounding error, 1e22 for logits of 1e30.
    logits = jnp.minimum(logits, jnp.finfo(logits.dtype).max)
    top = jnp.max(logits, axis=-1, keepdims=True)
    exps = jnp.exp(logits - jnp.where(top == -jnp.inf, 0, top))
    total = jnp.sum(exps, axis=-1, keepdims=True)
    weights = exps / jnp.where(total == 0, 1, total)
    return weights, (top + jnp.log(jnp.where(total == 0, 1, total)))[..., 0]


@weights_and_lse.defjvp
def _weights_and_lse_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    weights, lse = weights_and_lse(*primals)
    weighted = weights * tangents[0]
    mean = jnp.sum(weighted, axis=-1, keepdims=True)
    return (weights, lse), (weighted - weights * mean, mean[..., 0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Softmax(Normalizer):
    """No options.

    >>> print(Softmax().normalize(jnp.array([[0.0, jnp.log(3.0)]])).round(4))
    [[0.25 0.75]]
    """

    SUMS_TO_ONE = True
    STREAMS = "softmax"

    def normalize(self, logits: jax.Array) -> jax.Array:
        return weights_and_lse(logits)[0]

    def normalize_with_lse(self, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        return weights_and_lse(logits)


NORMALIZER = Softmax
