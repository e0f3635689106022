"""Squared distance (L2 attention): ``logits[i, j] = -|q_i - k_j|^2``, unscaled by default.

Kim, Papamakarios, Mnih 2021, "The Lipschitz Constant of Self-Attention", which divides by sqrt(d):
``scale="rsqrt_dim"`` (and ties W_Q to W_K). A fixed gaussian of width w is
``scale=1 / (2 * w**2)``; a learned one is the score ``gaussian``. Computed from the differences, so
that vectors near each other and far from 0 keep their distances. d = Dq = Dk. No parameters.

For unit variance q and k the logits have mean -2d and variance 8d, of which 6d lies within rows:
``1 / (2 * d**0.5)`` gives rows the variance 1.5 (1 comes from q.k/sqrt(d), the rest from |k|^2).

>>> import jax.numpy as jnp
>>> import attn_research as ar
>>> q, k = jnp.array([[1.0, 1.0]]), jnp.array([[1.0, 2.0], [3.0, 1.0]])  # logits -1 and -4
>>> print(ar.attention_weights(q, k, score="squared_distance").round(4))
[[0.9526 0.0474]]
"""

from typing import Any

import jax

DEFAULT_SCALE = "none"
PAIRWISE = "squared_distance"
PARAMS: dict[str, tuple[str, ...]] = {}
SAME_DIM = True


def init(key: jax.Array, query_dim: int, key_dim: int) -> dict[str, jax.Array]:
    """No parameters: ``{}``."""
    return {}


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """Identity."""
    return x


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """Identity."""
    return x
