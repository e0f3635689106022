"""Dropout on the weights: each is set to 0 with probability ``rate``, the others grow to make up.

Srivastava et al. 2014; on attention weights: Vaswani et al. 2017. Which are dropped is a pure
function of the key and of the position in ``[..., N, T, S]``, so that an implementation which goes
through the weights block by block drops the same ones.
"""

from typing import Any

import jax
import jax.numpy as jnp


def check(rate: Any, key: Any) -> None:
    """Raises unless ``rate`` is a probability below 1 and, if it is not 0, a key is there."""
    if jnp.ndim(rate):
        raise ValueError(f"dropout_rate must be a scalar: got shape {jnp.shape(rate)}")
    if isinstance(rate, int | float):
        if not 0 <= rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1): got {rate}")
        if rate == 0:
            return
    if key is None:
        raise ValueError("dropout_rate needs dropout_key, such as jax.random.key(0): got None")
    if not hasattr(key, "dtype") or not (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == jnp.uint32
    ):
        raise TypeError(f"dropout_key must be a jax.random key: got {type(key).__name__}")


def drop(weights: jax.Array, rate: Any, key: Any) -> jax.Array:
    """``weights [..., N, T, S]`` times 0 or 1 / (1 - rate).

    >>> kept = drop(jnp.ones((1, 100, 100)), 0.25, jax.random.key(0))
    >>> print(jnp.unique(kept).round(4), bool(abs(kept.mean() - 1) < 0.05))
    [0.     1.3333] True
    """
    if isinstance(rate, int | float) and rate == 0:
        return weights
    *lead, rows, columns = weights.shape
    kept = keep(seeds(key, tuple(lead)), rate, jnp.arange(rows), jnp.arange(columns))
    scale = 1 / (1 - jnp.asarray(rate, weights.dtype))
    return jnp.where(kept, weights * scale, 0)


def seeds(key: Any, lead: tuple[int, ...]) -> jax.Array:
    """Two words ``[..., N, 2]`` for each batch element and head."""
    return jax.random.bits(key, (*lead, 2), jnp.uint32)


def keep(seeds: jax.Array, rate: Any, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Which weights stay, ``[..., N, rows, columns]``, for these positions of queries and keys."""
    seed, other = seeds[..., 0, None, None], seeds[..., 1, None, None]
    row = _mix(seed ^ _mix(rows.astype(jnp.uint32))[:, None])
    bits = _mix(row ^ _mix(other ^ columns.astype(jnp.uint32)))
    return bits.astype(jnp.float32) * 2.0**-32 >= jnp.asarray(rate, jnp.float32)


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit words in which every bit of the result depends on every bit of x:
    xor-shifts and odd multipliers, the multipliers of "lowbias32" (Wellons 2018)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
