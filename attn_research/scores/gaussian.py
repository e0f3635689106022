"""Gaussian (RBF): ``logits[i, j] = -|q_i - k_j|^2 / (2 w^2)`` with a learned width w, unscaled.

With softmax, ``attend`` is then kernel regression, ``sum_j K(q_i - k_j) v_j / sum_j K(q_i - k_j)``
with K a gaussian of bandwidth w: Nadaraya 1964, "On Estimating Regression"; Watson 1964, "Smooth
Regression Analysis". w = exp(log_width), log_width held within +-80. A fixed width is the score
``squared_distance`` with a scale. d = Dq = Dk. Parameters: ``{"log_width" []}``.

The transforms divide by the power of two nearest to w, the pairwise kernel by the rest:
dividing q and k by anything else would round away the distance of two vectors near each other.

>>> import attn_research as ar
>>> q, k = jnp.array([[1.0, 1.0]]), jnp.array([[1.0, 2.0], [3.0, 1.0]])  # logits -1/8 and -4/8
>>> params = {"log_width": jnp.log(2.0)}
>>> print(ar.attention_weights(q, k, score="gaussian", score_params=params).round(4))
[[0.5927 0.4073]]
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import clip_finite, wide
from attn_research.scores._norms import power_of_two

DEFAULT_SCALE = "none"
PAIRWISE = "squared_distance"
PARAMS: dict[str, tuple[str, ...]] = {"log_width": ()}
SAME_DIM = True


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    width: float | None = None,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """``ln w``; ``width`` is w, by default d^(1/4).

    Then a logit is ``q.k/sqrt(d) - |k|^2/(2 sqrt(d))`` and what its row has in common: the scaled
    dot product, less for long keys. For unit variance q and k it has variance 2, of which 1.5 lies
    within rows: 1 from the dot product, 1/2 from the lengths of the keys.
    """
    width = key_dim**0.25 if width is None else width
    if not 0 < width < math.inf:
        raise ValueError(f"width must be positive and finite: got {width}")
    return {"log_width": jnp.asarray(math.log(width), dtype)}


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``q / 2^n``, ``2^n`` near w."""
    return _shrink(params, x)


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``k / 2^n``."""
    return _shrink(params, x)


def pairwise_params(params: Any) -> dict[str, jax.Array]:
    """``2^(2n) / (2 w^2)``: between 2/9 and 8/9."""
    log_width, power = _width(params)
    return {"factor": jnp.exp(2 * (jnp.log(power) - log_width)) / 2}


def _width(params: Any) -> tuple[jax.Array, jax.Array]:
    """``ln w``, and the power of two near w."""
    log_width = params["log_width"].astype(wide(params["log_width"].dtype))
    log_width = jnp.clip(log_width, -80, 80)
    return log_width, power_of_two(jnp.exp(log_width))


def _shrink(params: Any, x: jax.Array) -> jax.Array:
    _, power = _width(params)
    return clip_finite(x.astype(wide(x.dtype, power.dtype)) / power)
