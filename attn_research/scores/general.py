"""General (bilinear): ``logits[i, j] = q_i^T W k_j``, unscaled by default.

Luong, Pham, Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation",
equation 8, which has no scale: so neither has the default here. d = Dq, the number of terms in the
sum ``q . (W k)``. Parameters: ``{"kernel" [Dq, Dk]}``.

>>> import attn_research as ar
>>> params = {"kernel": jnp.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])}
>>> q, k = jnp.array([[1.0, 3.0]]), jnp.array([[0.0, 1.0, 1.0], [2.0, 0.0, 0.0]])  # logits 5 and 2
>>> print(ar.attention_weights(q, k, score="general", score_params=params).round(4))
[[0.9526 0.0474]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import project

DEFAULT_SCALE = "none"
PAIRWISE = "dot"
PARAMS = {"kernel": ("Dq", "Dk")}


def init(
    key: jax.Array, query_dim: int, key_dim: int, *, dtype: Any = jnp.float32
) -> dict[str, jax.Array]:
    """Normal with variance 1/Dk: ``W k`` has the variance of k, so logits have variance Dq for unit
    variance q and k, as in a plain dot product; ``scale="rsqrt_dim"`` brings it to 1."""
    return {"kernel": jax.random.normal(key, (query_dim, key_dim), dtype) * key_dim**-0.5}


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """Identity."""
    return x


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``W k``."""
    return project(x, params["kernel"].T)
