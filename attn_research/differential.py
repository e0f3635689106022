"""Differential attention: the difference of two attention maps, so that what both see cancels.

Ye, Dong, Xia, Sun, Zhu, Huang, Wei 2025, "Differential Transformer".
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.attend import attend
from attn_research.numerics import clip_finite, contract, wide
from attn_research.validate import floating_array


def differential_attention(
    query: Any, key: Any, value: Any, *, weight: Any, **options: Any
) -> jax.Array:
    """``(softmax(q_1 k_1^T / sqrt(d)) - weight softmax(q_2 k_2^T / sqrt(d))) v``.

    Args:
      query, key: ``[..., T, N, 2 d]``, ``[..., S, K, 2 d]``: q_1 and k_1 are the first d features,
        q_2 and k_2 the others (``[T, 2 d]``, ``[S, 2 d]`` for one head).
      value: ``[..., S, K, Dv]``; 2 d features in the paper.
      weight: lambda, a scalar or ``[N]``, usually learned: see ``ar.differential_weight``.
      **options: of ``attend``; ``score_params`` are used for both maps.

    Returns:
      ``[..., T, N, Dv]`` in the dtype of ``value``. The paper normalizes each head of it (RMSNorm)
      and multiplies by ``1 - initial_weight(layer)``.

    >>> q = k = jnp.array([[4.0, 0.0], [0.0, 4.0]])  # the second map of row 0 is uniform
    >>> v = jnp.array([[1.0], [0.0]])
    >>> print(differential_attention(q, k, v, weight=0.0).round(4)[:, 0])
    [1.  0.5]
    >>> print(differential_attention(q, k, v, weight=0.5).round(4)[:, 0])
    [0.75 0.5 ]
    """
    halves = [_halves(name, x) for name, x in (("query", query), ("key", key))]
    value = floating_array("value", value)
    if jnp.ndim(weight) and jnp.shape(weight) != jnp.shape(query)[-2:-1]:
        raise ValueError(
            "weight must be a scalar, or one number for each of the "
            f"{jnp.shape(query)[-2]} heads: got shape {jnp.shape(weight)}"
        )
    dtype = jnp.promote_types(value.dtype, jnp.float32)
    first, second = (
        attend(q, k, value.astype(dtype), **options) for q, k in zip(*halves, strict=True)
    )
    weight = jnp.asarray(weight).astype(dtype)
    return (first - (weight[:, None] if weight.ndim else weight) * second).astype(value.dtype)


def initial_weight(layer: int) -> float:
    """Lambda at the start in layer 1, 2, ...: ``0.8 - 0.6 exp(-0.3 (layer - 1))``.

    >>> round(initial_weight(1), 4), round(initial_weight(10), 4)
    (0.2, 0.7597)
    """
    return 0.8 - 0.6 * math.exp(-0.3 * (layer - 1))


def differential_weight(q_1: Any, k_1: Any, q_2: Any, k_2: Any, initial: Any) -> jax.Array:
    """Lambda from four learned vectors ``[..., d]``: ``exp(q_1 . k_1) - exp(q_2 . k_2) + initial``.

    ``initial`` is a constant: the paper's is ``initial_weight(layer)``. Computed and returned in at
    least float32. Exponents above 88 (709 in float64) count as 88, with derivative 0: finite inputs
    never give NaN.

    >>> zeros = jnp.zeros(4)
    >>> print(differential_weight(zeros, zeros, zeros, zeros, 0.2))
    0.2
    >>> tens = jnp.full(1, 10.0)
    >>> print(differential_weight(tens, tens, tens, 2 * tens, 0.2))  # exp(100) - exp(200)
    0.2
    """
    q_1, k_1, q_2, k_2, initial = (jnp.asarray(x) for x in (q_1, k_1, q_2, k_2, initial))
    dtype = wide(*(x.dtype for x in (q_1, k_1, q_2, k_2, initial)))
    limit = math.floor(math.log(jnp.finfo(dtype).max))

    def exp_dot(q: jax.Array, k: jax.Array) -> jax.Array:
        dot = contract("...d,...de->...e", q.astype(dtype), k.astype(dtype)[..., None])[..., 0]
        return jnp.exp(jnp.minimum(dot, limit))

    return clip_finite(exp_dot(q_1, k_1) - exp_dot(q_2, k_2) + initial)


def _halves(name: str, x: Any) -> tuple[jax.Array, jax.Array]:
    x = jnp.asarray(x)
    if x.ndim < 2 or x.shape[-1] % 2:
        raise ValueError(
            f"{name} must be [..., length, heads, 2 d], an even number of features: got shape "
            f"{x.shape}"
        )
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
