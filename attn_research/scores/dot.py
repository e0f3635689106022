"""Dot product: ``logits[i, j] = q_i . k_j``, scaled by 1/sqrt(d) unless said otherwise.

Luong, Pham, Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation"
(unscaled: ``scale="none"``); Vaswani et al. 2017, "Attention Is All You Need" (1/sqrt(d)). For unit
variance q and k the sum of d products has variance d: dividing by sqrt(d) brings it back to 1.
d = Dq = Dk. No parameters.

>>> import jax.numpy as jnp
>>> import attn_research as ar
>>> q, k = jnp.ones((1, 4)), jnp.array([[1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]])  # 6/2, 0/2
>>> print(ar.attention_weights(q, k).round(4))
[[0.9526 0.0474]]
"""

from typing import Any

import jax

DEFAULT_SCALE = "rsqrt_dim"
PAIRWISE = "dot"
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
