"""Normalized additive: ``logits[i, j] = g v/|v| . tanh(W_q q_i + W_k k_j + b)``, unscaled.

Raffel, Luong, Liu, Weiss, Eck 2017, "Online and Linear-Time Attention by Enforcing Monotonic
Alignments" (TensorFlow's ``BahdanauAttention(normalize=True)``): the additive score with a bias, v
reparametrized into length and direction (Salimans, Kingma 2016, "Weight Normalization"). v = 0 has
no direction: its logits and its gradient are 0. d = E. Parameters: ``{"query" [Dq, E], "key" [Dk,
E], "v" [E], "g" [], "bias" [E]}``.

>>> import attn_research as ar
>>> one, v = jnp.ones((1, 2)), jnp.array([3.0, 4.0])  # v/|v| = 0.6, 0.8
>>> params = {"query": one, "key": one, "v": v, "g": 2.0, "bias": jnp.zeros(2)}
>>> q, k = jnp.zeros((1, 1)), jnp.array([[1.0], [0.0]])  # 2.8 tanh(1) = 2.1325, and 0
>>> print(ar.attention_weights(q, k, score="normed_additive", score_params=params).round(4))
[[0.894 0.106]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import clip_finite, project
from attn_research.scores._norms import unit

DEFAULT_SCALE = "none"
PAIRWISE = "additive"
PARAMS = {"query": ("Dq", "E"), "key": ("Dk", "E"), "v": ("E",), "g": (), "bias": ("E",)}


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    dim: int | None = None,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """Normal with variance 1/fan_in, g = sqrt(1/E), bias 0; ``dim`` is E, by default Dk.

    For unit variance q and k, what goes into tanh has variance 2, and a logit ``g^2 E[tanh^2] =
    0.52 / E``, as |v/|v|| = 1: attention starts almost uniform (0.52 for ``additive``).
    """
    dim = key_dim if dim is None else dim
    for_query, for_key, for_v = jax.random.split(key, 3)
    return {
        "query": jax.random.normal(for_query, (query_dim, dim), dtype) * query_dim**-0.5,
        "key": jax.random.normal(for_key, (key_dim, dim), dtype) * key_dim**-0.5,
        "v": jax.random.normal(for_v, (dim,), dtype) * dim**-0.5,
        "g": jnp.asarray(dim**-0.5, dtype),
        "bias": jnp.zeros((dim,), dtype),
    }


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``W_q q``."""
    return project(x, params["query"])


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``W_k k + b``: the bias sits here because keys are transformed once, queries every step."""
    return project(x, params["key"]) + params["bias"]


def pairwise_params(params: Any) -> dict[str, jax.Array]:
    """``g v/|v|``."""
    return {"v": clip_finite(params["g"] * unit(params["v"]))}
