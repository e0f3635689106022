"""QK-norm with a learned factor: ``logits[i, j] = g q_i . k_j / (|q_i| |k_j|)``.

Henry, Dachapally, Pawar, Chen 2020, "Query-Key Normalization for Transformers": g takes the place
of 1/sqrt(d), so the scale here is 1 by default. For the other meaning of the name (a norm of q and
of k with gains, 1/sqrt(d) kept) see ``qk_rms_norm``. d = Dq = Dk. A zero vector has logits 0, and
gradient 0. Parameters: ``{"g" []}``.

>>> import attn_research as ar
>>> print(init(jax.random.key(0), 8, 8, length=64)["g"].round(4))  # log2(64 * 63)
11.9773
>>> q, k = jnp.array([[5.0, 0.0]]), jnp.array([[3.0, 4.0], [0.0, 7.0]])  # cosines 0.6 and 0
>>> print(ar.attention_weights(q, k, score="qk_norm", score_params={"g": 2.0}).round(4))
[[0.7685 0.2315]]
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import clip_finite
from attn_research.scores._norms import unit

DEFAULT_SCALE = "none"
PAIRWISE = "dot"
PARAMS: dict[str, tuple[str, ...]] = {"g": ()}
SAME_DIM = True


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    length: float = 64,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """``g = log2(L^2 - L)``; ``length`` is L, the 97.5th percentile of the sequence lengths.

    The cosine of independent vectors, one of them of any direction alike, has variance 1/d, so the
    logits g^2/d: 2.2 for L = 64, d = 64. The default length is that of sentences in subwords.
    """
    if not 1 < length < math.inf:
        raise ValueError(f"length must be a number of positions above 1: got {length}")
    return {"g": jnp.asarray(math.log2(length) + math.log2(length - 1), dtype)}


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``g q/|q|``."""
    return clip_finite(params["g"] * unit(x))


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``k/|k|``."""
    return unit(x)
