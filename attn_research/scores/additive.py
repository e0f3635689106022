"""Additive: ``logits[i, j] = v . tanh(W_q q_i + W_k k_j (+ b))``, unscaled by default.

Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to Align and
Translate", appendix A.1.2, which has no scale and no bias: so neither has the default here. d = E,
the number of terms in the sum. Parameters: ``{"query" [Dq, E], "key" [Dk, E], "v" [E]}``, and
``"bias" [E]`` with ``use_bias=True``.

>>> import attn_research as ar
>>> one = jnp.ones((1, 1))
>>> params = {"query": one, "key": -one, "v": jnp.array([3.0])}
>>> q, k = jnp.ones((1, 1)), jnp.array([[1.0], [0.0]])  # 3 tanh(0), 3 tanh(1) = 2.2848
>>> print(ar.attention_weights(q, k, score="additive", score_params=params).round(4))
[[0.0924 0.9076]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import project

DEFAULT_SCALE = "none"
PAIRWISE = "additive"
PARAMS = {"query": ("Dq", "E"), "key": ("Dk", "E"), "v": ("E",)}
OPTIONAL_PARAMS = {"bias": ("E",)}


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    dim: int | None = None,
    use_bias: bool = False,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """Normal with variance 1/fan_in, bias 0; ``dim`` is E, by default the key dimension.

    For unit variance q and k what goes into tanh has variance 2, and a logit ``|v|^2 E[tanh^2] =
    0.52``, whatever the sizes are: that is why this score needs no scale.
    """
    dim = key_dim if dim is None else dim
    for_query, for_key, for_v = jax.random.split(key, 3)
    params = {
        "query": jax.random.normal(for_query, (query_dim, dim), dtype) * query_dim**-0.5,
        "key": jax.random.normal(for_key, (key_dim, dim), dtype) * key_dim**-0.5,
        "v": jax.random.normal(for_v, (dim,), dtype) * dim**-0.5,
    }
    return params | {"bias": jnp.zeros((dim,), dtype)} if use_bias else params


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``W_q q``."""
    return project(x, params["query"])


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``W_k k (+ b)``: the bias sits here because keys are transformed once, queries every step."""
    out = project(x, params["key"])
    return out + params["bias"] if "bias" in params else out
