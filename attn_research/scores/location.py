"""Location: ``logits[i, j] = (W^T q_i)_j``, from the query alone; unscaled by default.

Luong, Pham, Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation",
equation 8 ("location"), which has no scale: so neither has the default here. The content of the
keys is not read, only their positions 0, 1, ...: so there can be at most ``max_length`` keys,
padding included. d = Dq, the number of terms in the sum ``q . w_j``. Parameters:
``{"kernel" [Dq, max_length]}``, whose column j is w_j.

>>> from attn_research import attention_weights
>>> params = {"kernel": jnp.log(jnp.array([[1.0, 3.0, 9.0], [1.0, 1.0, 4.0]]))}
>>> query, two_keys = jnp.eye(2), jnp.zeros((2, 5))
>>> print(attention_weights(query, two_keys, score="location", score_params=params).round(4))
[[0.25 0.75]
 [0.5  0.5 ]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.scores._place import columns

DEFAULT_SCALE = "none"
PAIRWISE = "dot"
PARAMS = {"kernel": ("Dq", "max_length")}


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    max_length: int = 512,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """Normal with variance 1/Dq: the logits have the variance of the features of q."""
    shape = (query_dim, max_length)
    return {"kernel": jax.random.normal(key, shape, dtype) * query_dim**-0.5}


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """Identity."""
    return x


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """Identity: keys are counted, not read."""
    return x


def place(
    params: Any, query: jax.Array, key: jax.Array, state: Any, count: Any
) -> tuple[jax.Array, jax.Array]:
    """w_j stands in for key j."""
    return query, columns("location", params["kernel"], query, key)
