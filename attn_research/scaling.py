"""The factor on the logits: resolved here, applied here, nowhere else.

``None`` is the score's own convention; ``"none"`` is 1, ``"rsqrt_dim"`` 1/sqrt(d) (Vaswani et al.
2017), ``"inverse_dim"`` 1/d (as in mu-parametrization, Yang et al. 2022); a number or a traced
scalar is itself, an array ``[N]`` one factor a head (learned, say). d is the number of terms in the
pairwise sum. ``"log_n"`` is ``log_n(1)``.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.folders import unknown
from attn_research.numerics import clip_finite

NAMES = ("none", "rsqrt_dim", "inverse_dim", "log_n")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LogN:
    """See ``log_n``."""

    s: Any


def log_n(s: Any = 1.0) -> LogN:
    """Scalable softmax: the score's own scale times ``s ln(n)``, n the number of visible keys.

    It keeps attention from flattening as sequences grow: the top weight of ``exp(s z ln n) /
    sum_j exp(s z_j ln n) = n^(s z) / sum_j n^(s z_j)`` does not vanish with n. n is counted row by
    row, so a causal mask gives row i its own. ``s`` is a number or an array ``[N]``, often learned.

    Nakanishi 2025, "Scalable-Softmax Is Superior for Attention".

    >>> log_n(0.4)
    LogN(s=0.4)
    """
    return LogN(s)


def as_log_n(scale: Any) -> LogN | None:
    """What a scale that counts visible keys is; None for any other."""
    if isinstance(scale, str) and scale == "log_n":
        return LogN(1.0)
    return scale if isinstance(scale, LogN) else None


def check(scale: Any, num_heads: int, dtype: Any) -> None:
    """Raises if ``scale`` is none of the kinds above, or no finite number of ``dtype``."""
    if scale is None:
        return
    if isinstance(scale, str):
        if scale not in NAMES:
            raise ValueError(unknown("scale", scale, NAMES) + ", or a number, or None")
        return
    if isinstance(scale, LogN):
        scale = scale.s
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not number and not hasattr(scale, "dtype"):
        raise TypeError(f"scale must be None, a name or a number: got {type(scale).__name__}")
    if jnp.ndim(scale) and jnp.shape(scale) != (num_heads,):
        raise ValueError(
            f"scale must be a scalar, or one number for each of the {num_heads} heads: got shape "
            f"{jnp.shape(scale)}"
        )
    if number and not abs(scale) <= float(jnp.finfo(dtype).max):
        raise ValueError(f"scale must be a finite number of {dtype}: got {scale}")


def resolve(scale: Any, default: str, dim: int) -> Any:
    """The factor itself, but for ``log_n``: a float when it is known before tracing.

    >>> resolve(None, "rsqrt_dim", 64), resolve("inverse_dim", "none", 64), resolve(3, "none", 64)
    (0.125, 0.015625, 3)
    """
    scale = default if scale is None else scale
    if not isinstance(scale, str):
        return scale
    dim = max(dim, 1)
    return {"none": 1.0, "rsqrt_dim": 1 / math.sqrt(dim), "inverse_dim": 1 / dim}[scale]


def apply(
    logits: jax.Array, scale: Any, default: str, dim: int, visible: jax.Array | None
) -> jax.Array:
    """``logits [..., N, T, S]`` times the factor, in their dtype; what would overflow saturates."""
    counting = as_log_n(scale)
    if counting is not None:
        own = apply(logits, None, default, dim, visible)
        return clip_finite(own * per_head(counting.s, logits.dtype) * _ln_count(logits, visible))
    factor = resolve(scale, default, dim)
    if isinstance(factor, int | float):
        if factor == 1:
            return logits
        scaled = logits * factor
        return scaled if abs(factor) <= 1 else clip_finite(scaled)
    return clip_finite(logits * per_head(factor, logits.dtype))


def per_head(x: Any, dtype: Any) -> jax.Array:
    """A scalar, or ``[N]`` as ``[N, 1, 1]``."""
    x = jnp.asarray(x).astype(dtype)
    return x[:, None, None] if x.ndim else x


def _ln_count(logits: jax.Array, visible: jax.Array | None) -> Any:
    """``ln n`` as ``[..., N | 1, T | 1, 1]``, or a number."""
    keys = logits.shape[-1]
    if visible is None:
        return math.log(max(keys, 1))
    count = count_visible(visible, keys)[..., None]
    return jnp.log(jnp.maximum(count, 1).astype(logits.dtype))


def count_visible(visible: jax.Array, keys: int) -> jax.Array:
    """Visible keys of each row: ``[..., N | 1, T | 1]`` integers, of a mask broadcastable to
    ``[..., N, T, S]``."""
    count = jnp.sum(visible, axis=-1)
    return count if visible.shape[-1] == keys else count * keys
