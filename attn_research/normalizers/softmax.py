"""Softmax: ``p_j = exp(l_j) / sum_i exp(l_i)``; the log of the denominator is the lse.

Bridle 1990; in attention since Bahdanau et al. 2015.
"""

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_jvp
def normalize(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights ``[..., S]`` and log-sum-exp ``[...]`` in the dtype of ``logits [..., S]``.

    >>> weights, lse = normalize(jnp.array([[0.0, jnp.log(3.0)], [-jnp.inf, -jnp.inf]]))
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


@normalize.defjvp
def _normalize_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    weights, lse = normalize(*primals)
    weighted = weights * tangents[0]
    mean = jnp.sum(weighted, axis=-1, keepdims=True)
    return (weights, lse), (weighted - weights * mean, mean[..., 0])
