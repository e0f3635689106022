"""Concat: ``logits[i, j] = v . tanh(W [q_i; k_j])``, unscaled by default.

Luong, Pham, Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation",
equation 8, which has no scale: so neither has the default here. ``W [q; k] = W_q q + W_k k``: it is
the additive score, with ``W_q`` and ``W_k`` in one kernel. d = E. Parameters: ``{"kernel" [Dq + Dk,
E], "v" [E]}``, the rows for q first.

>>> import attn_research as ar
>>> params = {"kernel": jnp.array([[2.0], [1.0], [-1.0]]), "v": jnp.array([3.0])}
>>> q, k = jnp.array([[0.5]]), jnp.array([[1.0, 2.0], [0.0, 0.0]])  # 3 tanh(0), 3 tanh(1) = 2.2848
>>> print(ar.attention_weights(q, k, score="concat", score_params=params).round(4))
[[0.0924 0.9076]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import project

DEFAULT_SCALE = "none"
PAIRWISE = "additive"
PARAMS = {"kernel": ("Dq+Dk", "E"), "v": ("E",)}


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    dim: int | None = None,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """Normal with variance 1/fan_in; ``dim`` is E, by default the key dimension.

    The fan-in of the kernel is Dq + Dk: for unit variance q and k what goes into tanh has variance
    1 (2 in ``additive``), and a logit ``|v|^2 E[tanh^2] = 0.39``, whatever the sizes are.
    """
    dim = key_dim if dim is None else dim
    for_kernel, for_v = jax.random.split(key)
    fan_in = query_dim + key_dim
    return {
        "kernel": jax.random.normal(for_kernel, (fan_in, dim), dtype) * fan_in**-0.5,
        "v": jax.random.normal(for_v, (dim,), dtype) * dim**-0.5,
    }


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``W_q q``: the first Dq rows of the kernel."""
    return project(x, params["kernel"][: x.shape[-1]])


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``W_k k``: the last Dk rows of the kernel."""
    return project(x, params["kernel"][-x.shape[-1] :])
