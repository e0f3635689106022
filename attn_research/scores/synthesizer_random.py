"""Random Synthesizer: ``logits[i, j] = R[i, j]``, a learned matrix; unscaled by default.

Tay, Bahri, Metzler, Juan, Zhao, Zheng 2021, "Synthesizer: Rethinking Self-Attention for
Transformer Models": one table of logits serves every input. No scale in the paper, so
neither has the default here. Queries and keys are not read, only their positions: below
``max_length``, padding included. ``score_state``, an integer or one for each batch element, is the
position of the first query (None is 0), for decoding step by step; a position without a row in R
gives NaN where it cannot be refused (a traced state). There is no sum: for scales by name d is Dq.
Parameters: ``{"logits" [max_length, max_length]}``.

>>> from attn_research import attention_weights
>>> params = {"logits": jnp.log(jnp.array([[1.0, 3.0], [1.0, 1.0]]))}
>>> options = dict(score="synthesizer_random", score_params=params)
>>> x = jnp.zeros((2, 3))
>>> print(attention_weights(x, x, **options).round(4))
[[0.25 0.75]
 [0.5  0.5 ]]
>>> print(attention_weights(x[1:], x, score_state=1, **options).round(4))
[[0.5 0.5]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.scores._place import append, check_length, positions

DEFAULT_SCALE = "none"
PARAMS = {"logits": ("max_length", "max_length")}
STATE: tuple[str, ...] = ()


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    max_length: int = 512,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """Normal with variance 1: that of scaled dot products of queries and keys of unit variance."""
    return {"logits": jax.random.normal(key, (max_length, max_length), dtype)}


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """Identity: queries are counted, not read."""
    return x


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """Identity: keys are counted, not read."""
    return x


def place(
    params: Any, query: jax.Array, key: jax.Array, state: Any, count: Any
) -> tuple[jax.Array, jax.Array]:
    """The position is the only feature left."""
    rows = params["logits"].shape[0]
    check_length("synthesizer_random", "query", query.shape[-2], rows, state)
    check_length("synthesizer_random", "key", key.shape[-2], rows)
    i, j = positions(query.shape[-2], state), positions(key.shape[-2], None)
    return append(query[..., :0], i), append(key[..., :0], j)


def _look_up(params: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    i, j = query[:, 0].astype(int), key[:, 0].astype(int)
    return (
        params["logits"]
        .at[i[:, None], j]
        .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    )


PAIRWISE = _look_up
