"""Coverage: ``logits[i, j] = v . tanh(W_q q_i + W_k k_j + w_c c_j (+ b))``, unscaled by default.

c_j is the sum of the weights that key j got in all decoder steps before this one: additive
attention (Bahdanau) that knows what it has read. Tu, Lu, Liu, Liu, Li 2016, "Modeling Coverage for
Neural Machine Translation" (linguistic coverage; with fertility, divide the weights of key j by
Phi_j before they are summed); See, Liu, Manning 2017, "Get To The Point: Summarization with
Pointer-Generator Networks", equation 11, which has the bias: ``use_bias=True``. No scale in either,
so neither has the default here. d = E, the number of terms in the sum. Parameters: ``{"query"
[Dq, E], "key" [Dk, E], "v" [E], "coverage" [E]}`` and, optionally, ``"bias" [E]``.

``score_state [..., N, S]`` (``[1, S]`` for one head) is c: start with None (zeros) and add the
weights of each step. All queries of a call read the same c, so a decoder that feeds it back calls
with T = 1. It must be finite: there is no looking into it for what the mask hides.

>>> from attn_research import attention_weights
>>> params = {"query": jnp.zeros((1, 1)), "key": jnp.zeros((1, 1)), "v": jnp.array([-1e3])}
>>> params |= {"coverage": jnp.array([1e-3])}  # each weight received lowers a logit by 1
>>> seen = jnp.array([[jnp.log(3.0), 0.0]])  # of key 0 and 1
>>> options = dict(score="coverage", score_params=params)
>>> x = jnp.ones((1, 1)), jnp.ones((2, 1))
>>> print(attention_weights(*x, **options))
[[0.5 0.5]]
>>> print(attention_weights(*x, score_state=seen, **options).round(2))
[[0.25 0.75]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import wide
from attn_research.scores import additive

DEFAULT_SCALE = "none"
PAIRWISE = "additive"
PARAMS = additive.PARAMS | {"coverage": ("E",)}
OPTIONAL_PARAMS = additive.OPTIONAL_PARAMS
STATE = ("N", "S")


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    dim: int | None = None,
    use_bias: bool = False,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """That of ``additive``, and w_c normal with variance 1: a key read once (c = 1) counts for as
    much as W_q q and W_k k do when the features of q and k have unit variance."""
    for_additive, for_coverage = jax.random.split(key)
    params = additive.init(
        for_additive, query_dim, key_dim, dim=dim, use_bias=use_bias, dtype=dtype
    )
    return params | {"coverage": jax.random.normal(for_coverage, params["v"].shape, dtype)}


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``W_q q``."""
    return additive.transform_query(params, x)


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``W_k k (+ b)``."""
    return additive.transform_key(params, x)


def place(
    params: Any, query: jax.Array, key: jax.Array, state: Any, count: Any
) -> tuple[jax.Array, jax.Array]:
    """``W_k k_j + w_c c_j`` for ``state [..., S]``."""
    if state is None:
        return query, key
    state = jnp.asarray(state).astype(wide(key.dtype))
    return query, key + state[..., None] * params["coverage"]


def coverage_loss(weights: jax.Array, state: jax.Array) -> jax.Array:
    """See's penalty for reading again what has been read: ``sum_j min(a_j, c_j)``.

    Args:
      weights: those of this step, ``[..., S]``.
      state: the sums of all weights before it, ``[..., S]``.

    Returns:
      ``[...]``, between 0 and 1. Its weight in the loss is 1 in the paper (equations 12 and 13).

    >>> weights, state = jnp.array([0.5, 0.5, 0.0]), jnp.array([0.25, 1.0, 0.75])
    >>> print(coverage_loss(weights, state))
    0.75
    """
    return jnp.minimum(weights, state).sum(-1)
