"""The factor on the logits: resolved here, applied here, nowhere else.

``None`` is the score's own convention; ``"none"`` is 1, ``"rsqrt_dim"`` 1/sqrt(d) (Vaswani et al.
2017), ``"inverse_dim"`` 1/d (as in mu-parametrization, Yang et al. 2022); a number or a traced
scalar is itself. d is the number of terms in the pairwise sum.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.folders import unknown
from attn_research.numerics import clip_finite

NAMES = ("none", "rsqrt_dim", "inverse_dim")
Scale = None | str | float | jax.Array


def check(scale: Any) -> None:
    """Raises if ``scale`` is none of the kinds above."""
    if scale is None:
        return
    if isinstance(scale, str):
        if scale not in NAMES:
            raise ValueError(unknown("scale", scale, NAMES) + ", or a number, or None")
        return
    if isinstance(scale, bool) or not hasattr(scale, "__float__"):
        raise TypeError(f"scale must be None, a name or a number: got {type(scale).__name__}")
    if jnp.ndim(scale):
        raise ValueError(f"scale must be a scalar: got shape {jnp.shape(scale)}")


def resolve(scale: Any, default: str, dim: int) -> Any:
    """The factor itself: a float when it is known before tracing.

    >>> resolve(None, "rsqrt_dim", 64), resolve("inverse_dim", "none", 64), resolve(3, "none", 64)
    (0.125, 0.015625, 3)
    """
    scale = default if scale is None else scale
    if not isinstance(scale, str):
        return scale
    dim = max(dim, 1)
    return {"none": 1.0, "rsqrt_dim": 1 / math.sqrt(dim), "inverse_dim": 1 / dim}[scale]


def apply(logits: jax.Array, scale: Any, default: str, dim: int) -> jax.Array:
    """``logits * factor`` in the dtype of ``logits``; what would overflow saturates."""
    factor = resolve(scale, default, dim)
    if isinstance(factor, int | float):
        if factor == 1:
            return logits
        scaled = logits * factor
        return scaled if abs(factor) <= 1 else clip_finite(scaled)
    return clip_finite(logits * jnp.asarray(factor).astype(logits.dtype))
