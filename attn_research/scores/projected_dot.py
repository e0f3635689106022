"""Projected dot ("Mul-d"): ``logits[i, j] = (W_q q_i) . (W_k k_j)``, unscaled by default.

Britz, Goldie, Luong, Le 2017, "Massive Exploration of Neural Machine Translation Architectures",
where the multiplicative score of dimension d is compared with the additive one and has no scale: so
neither has the default here. d = E, the size of the projections. Parameters:
``{"query" [Dq, E], "key" [Dk, E]}``.

>>> import attn_research as ar
>>> params = {"query": jnp.array([[2.0]]), "key": jnp.array([[1.0], [-1.0]])}
>>> q, k = jnp.array([[0.5]]), jnp.array([[4.0, 1.0], [0.0, 0.0]])  # 1 * 3 and 1 * 0
>>> print(ar.attention_weights(q, k, score="projected_dot", score_params=params).round(4))
[[0.9526 0.0474]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import project

DEFAULT_SCALE = "none"
PAIRWISE = "dot"
PARAMS = {"query": ("Dq", "E"), "key": ("Dk", "E")}


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    dim: int | None = None,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """Normal with variance 1/fan_in; ``dim`` is E, by default the key dimension.

    For unit variance q and k the projections have variance 1 and logits E, the number of terms;
    ``scale="rsqrt_dim"`` brings it to 1.
    """
    dim = key_dim if dim is None else dim
    for_query, for_key = jax.random.split(key)
    return {
        "query": jax.random.normal(for_query, (query_dim, dim), dtype) * query_dim**-0.5,
        "key": jax.random.normal(for_key, (key_dim, dim), dtype) * key_dim**-0.5,
    }


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``W_q q``."""
    return project(x, params["query"])


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``W_k k``."""
    return project(x, params["key"])
