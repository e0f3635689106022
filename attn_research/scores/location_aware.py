"""Location-aware: ``logits[i, j] = v . tanh(W_q q_i + W_k k_j + U^T f_j + b)``, without scale.

``f_j = sum_m F[m] a_{j + m - width // 2}`` are r features of the weights a of the decoder step
before, around key j: a 1-D convolution (F as it stands, not mirrored), the weights outside of the
keys being 0. Chorowski, Bahdanau, Serdyuk, Cho, Bengio 2015, "Attention-Based Models for Speech
Recognition", equations 8 and 9 (there w, W s, V h, U f, b; 10 filters, 201 wide); it has no scale,
so neither has the default here. d = E, the number of terms in the outer sum. Parameters: ``{"query"
[Dq, E], "key" [Dk, E], "bias" [E], "v" [E], "filters" [width, r], "location" [r, E]}`` (U).

``score_state [..., N, S]`` (``[1, S]`` for one head) is a, in the first step None: zeros. (The
paper does not say what comes before the first step; its authors' program starts with all weight on
the first key: ``jax.nn.one_hot(0, S)`` in the shape of the state.) All queries of a call read the
same a, so a decoder that feeds its weights back calls with T = 1. Hidden keys must have weight 0 in
it, as they have in all weights of ``attention_weights``: the filters carry what stands there to
their neighbours.

>>> from attn_research import attention_weights
>>> params = {"query": jnp.zeros((1, 1)), "key": jnp.zeros((1, 1)), "bias": jnp.zeros(1)}
>>> params |= {"v": jnp.array([1e3]), "location": jnp.array([[1e-3]])}
>>> params |= {"filters": jnp.log(jnp.array([[6.0], [1.0], [1.0]]))}  # 6 times as much to the right
>>> options = dict(score="location_aware", score_params=params)
>>> x = jnp.ones((1, 1)), jnp.ones((3, 1))
>>> print(attention_weights(*x, score_state=jnp.array([[1.0, 0.0, 0.0]]), **options).round(4))
[[0.125 0.75  0.125]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import project, wide
from attn_research.scores import additive

DEFAULT_SCALE = "none"
PAIRWISE = "additive"
PARAMS = additive.PARAMS | {
    "bias": ("E",),
    "filters": ("width", "r"),
    "location": ("r", "E"),
}
STATE = ("N", "S")


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    dim: int | None = None,
    filters: int = 10,
    width: int = 31,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """That of ``additive``, bias 0, F normal with variance 1 and U with variance 1/r.

    The features f_j then have variance ``sum_m a_m^2`` over the weights in reach: 1 where the last
    step saw one key, 1/n where it saw n alike. So U f is as large as W_q q and W_k k at the keys
    around a sharp weight, and fades with its sharpness. ``dim`` is E, by default the key dimension;
    ``filters`` is r; an odd ``width`` is centred on the key.
    """
    for_additive, for_filters, for_location = jax.random.split(key, 3)
    params = additive.init(for_additive, query_dim, key_dim, dim=dim, use_bias=True, dtype=dtype)
    shape = (filters, params["v"].shape[0])
    return params | {
        "filters": jax.random.normal(for_filters, (width, filters), dtype),
        "location": jax.random.normal(for_location, shape, dtype) * filters**-0.5,
    }


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``W_q q``."""
    return additive.transform_query(params, x)


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``W_k k + b``."""
    return additive.transform_key(params, x)


def place(
    params: Any, query: jax.Array, key: jax.Array, state: Any, count: Any
) -> tuple[jax.Array, jax.Array]:
    """``W_k k_j + b + U^T f_j`` for ``state [..., S]``."""
    if state is None:
        return query, key
    state = jnp.asarray(state).astype(wide(key.dtype))
    features = project(_neighbours(state, params["filters"].shape[0]), params["filters"])
    return query, key + project(features, params["location"])


def _neighbours(x: jax.Array, width: int) -> jax.Array:
    """``[..., S, width]``: what stands around each place of ``x [..., S]``.

    >>> print(_neighbours(jnp.array([1.0, 2.0, 3.0]), 3).tolist())
    [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 0.0]]
    """
    left = width // 2
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(left, width - 1 - left)])
    return padded[..., jnp.arange(x.shape[-1])[:, None] + jnp.arange(width)]
