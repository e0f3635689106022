"""Cosine: ``logits[i, j] = q_i . k_j / (|q_i| |k_j|)``, times a temperature, 1 by default.

Graves, Wayne, Danihelka 2014, "Neural Turing Machines", equation 6; there the factor on it is a key
strength beta > 0 that the controller emits at each step: give it as ``scale``, which may be traced
and hold one number a head. With ``learn_scale=True`` it is a parameter, as in Liu et al. 2022,
"Swin Transformer V2", equation 2 (1/tau there): ``exp(min(log_scale, ln 100))``, at most 100. A
fixed one is ``scale=10.0``. d = Dq = Dk. Parameters: none, or ``{"log_scale" []}``.

A zero vector has cosine 0 with everything, and gradient 0.

>>> import attn_research as ar
>>> q, k = jnp.array([[1e-30, 0.0]]), jnp.array([[3e30, 4e30], [0.0, 7.0]])  # cosines 0.6 and 0
>>> print(ar.attention_weights(q, k, score="cosine", scale=10.0).round(4))
[[0.9975 0.0025]]
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import wide
from attn_research.scores._norms import unit

DEFAULT_SCALE = "none"
PAIRWISE = "dot"
PARAMS: dict[str, tuple[str, ...]] = {}
OPTIONAL_PARAMS: dict[str, tuple[str, ...]] = {"log_scale": ()}
SAME_DIM = True


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    learn_scale: bool = False,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """``{}``, or with ``learn_scale`` ln 10, as in SwinV2.

    The cosine of independent vectors, one of them of any direction alike, has variance 1/d: the
    logits start with 100/d, which is of order 1 in heads of 32 to 128 features.
    """
    return {"log_scale": jnp.asarray(math.log(10), dtype)} if learn_scale else {}


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``q/|q|``, times the learned temperature."""
    if not params:
        return unit(x)
    log_scale = params["log_scale"].astype(wide(params["log_scale"].dtype))
    return unit(x) * jnp.exp(jnp.minimum(log_scale, math.log(100)))


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``k/|k|``."""
    return unit(x)
