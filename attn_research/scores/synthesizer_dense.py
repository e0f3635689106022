"""Dense Synthesizer: ``logits[i, j] = (W_2^T relu(W_1^T q_i + b_1) + b_2)_j``, unscaled by default.

Tay, Bahri, Metzler, Juan, Zhao, Zheng 2021, "Synthesizer: Rethinking Self-Attention for
Transformer Models": each query guesses its row of logits, without looking at the keys.
No scale in the paper, so neither has the default here. At most ``max_length`` keys, padding
included. d = H, the size of the hidden layer. Parameters: ``{"in_kernel" [Dq, H], "in_bias" [H],
"out_kernel" [H, max_length], "out_bias" [max_length]}``.

>>> from attn_research import attention_weights
>>> params = {"in_kernel": jnp.array([[1.0]]), "in_bias": jnp.array([-1.0])}
>>> params |= {"out_kernel": jnp.array([[0.0, jnp.log(3.0)]]), "out_bias": jnp.zeros(2)}
>>> weights = attention_weights(
...     jnp.array([[2.0], [0.5]]), jnp.zeros((2, 1)), score="synthesizer_dense", score_params=params
... )
>>> print(weights.round(4))  # relu(2 - 1) log 3, relu(0.5 - 1) log 3
[[0.25 0.75]
 [0.5  0.5 ]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import clip_finite, project
from attn_research.scores._place import append, columns

DEFAULT_SCALE = "none"
PAIRWISE = "dot"
PARAMS = {
    "in_kernel": ("Dq", "H"),
    "in_bias": ("H",),
    "out_kernel": ("H", "max_length"),
    "out_bias": ("max_length",),
}


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    dim: int | None = None,
    max_length: int = 512,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """Normal, variance 2/Dq in (relu halves the mean square) and 1/H out: the logits of queries
    with unit variance have variance 1. Biases 0; ``dim`` is H, by default the query dimension."""
    dim = query_dim if dim is None else dim
    for_in, for_out = jax.random.split(key)
    return {
        "in_kernel": jax.random.normal(for_in, (query_dim, dim), dtype) * (2 / query_dim) ** 0.5,
        "in_bias": jnp.zeros((dim,), dtype),
        "out_kernel": jax.random.normal(for_out, (dim, max_length), dtype) * dim**-0.5,
        "out_bias": jnp.zeros((max_length,), dtype),
    }


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``relu(W_1^T q + b_1)``."""
    return jax.nn.relu(clip_finite(project(x, params["in_kernel"]) + params["in_bias"]))


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """Identity: keys are counted, not read."""
    return x


def place(
    params: Any, query: jax.Array, key: jax.Array, state: Any, count: Any
) -> tuple[jax.Array, jax.Array]:
    """Column j of W_2, and (b_2)_j that meets a feature 1, stand in for key j."""
    table = jnp.concatenate([params["out_kernel"], params["out_bias"][None]])
    key = columns("synthesizer_dense", table, query, key)
    return append(query, jnp.ones((1,), query.dtype)), key
