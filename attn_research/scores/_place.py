"""What scores that depend on positions share: positions as features, columns of a table."""

import operator
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import wide


def append(x: jax.Array, feature: jax.Array) -> jax.Array:
    """``x [..., L, E]`` with one more feature, ``[..., L | 1]``, in at least float32 (16 bits count
    positions to 256 or 2048 only)."""
    dtype = wide(x.dtype, feature.dtype)
    shape = jnp.broadcast_shapes(x.shape[:-1], feature.shape)
    x = jnp.broadcast_to(x.astype(dtype), (*shape, x.shape[-1]))
    return jnp.concatenate([x, jnp.broadcast_to(feature.astype(dtype), shape)[..., None]], axis=-1)


def positions(length: int, start: Any) -> jax.Array:
    """``start, start + 1, ...`` as ``[..., length]`` integers; ``start [...]`` may differ for each
    batch element, None is 0.

    >>> print(positions(3, jnp.array([0, 4])).tolist())
    [[0, 1, 2], [4, 5, 6]]
    """
    start = jnp.asarray(0 if start is None else start)
    return start[..., None] + jnp.arange(length)


def columns(score: str, table: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """Columns 0 .. S-1 of ``table [E, max_length]`` in the place of ``key [..., S, D]``:
    ``[..., S, E]``, so that a dot product with the query picks them out."""
    length = key.shape[-2]
    check_length(score, "key", length, table.shape[1])
    batch, shared = key.shape[:-2], query.shape[:-2]
    if jnp.broadcast_shapes(batch, shared) == shared:
        batch = ()  # the same for every batch element, so kept once
    return jnp.broadcast_to(table[:, :length].T, (*batch, length, table.shape[0]))


def check_length(score: str, name: str, length: int, max_length: int, start: Any = None) -> None:
    """Raises if there are more positions than parameters (a traced ``start`` is not known here)."""
    try:
        first = 0 if start is None else operator.index(start)
    except (TypeError, jax.errors.ConcretizationTypeError):
        first = 0
    if first < 0:
        raise ValueError(f"score_state of score {score!r} is a position, at least 0: got {first}")
    if first + length > max_length:
        raise ValueError(
            f"score_params of score {score!r} are for {max_length} positions, {name} needs "
            f"{first + length}: make them with ar.init_score({score!r}, ..., "
            f"max_length={first + length})"
        )
