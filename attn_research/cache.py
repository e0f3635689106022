"""Incremental decoding: keys and values that were computed before, kept for the queries to come."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attn_research import masks


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of the positions so far, in arrays of a fixed size. A pytree.

    ``attend(query, cache.key, cache.value, mask=cache.mask(t))`` for the newest t positions gives
    the rows of the full causal computation: one position at a time, a prompt at once, or anything
    between; with any score that does not depend on positions, under ``jit``, as the carry of a
    ``lax.scan``. Keys that depend on their position (``ar.positions.rope``) are appended as they
    are at theirs, ``cache.length`` and on.

    Attributes:
      key: ``[..., L, K, Dk]``, L the largest number of positions.
      value: ``[..., L, K, Dv]``.
      length: int32 scalar, the number of positions filled. What lies behind them influences
        nothing, so ``dataclasses.replace(cache, length=n)`` goes back to n positions.

    >>> cache = KVCache.empty((2,), max_length=8, heads=1, key_dim=4)
    >>> prompt, token = jnp.ones((2, 3, 1, 4)), jnp.ones((2, 1, 1, 4))
    >>> cache = cache.append(prompt, prompt).append(token, 2 * token)
    >>> cache.mask(1).as_array(1, 8).astype(int).tolist()
    [[1, 1, 1, 1, 0, 0, 0, 0]]
    >>> from attn_research import attend
    >>> print(attend(token, cache.key, cache.value, mask=cache.mask(1))[0, 0, 0, 0])  # of 1 1 1 2
    1.25
    """

    key: jax.Array
    value: jax.Array
    length: Any

    @classmethod
    def empty(
        cls,
        batch_shape: tuple[int, ...],
        max_length: int,
        heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dtype: Any = jnp.float32,
    ) -> "KVCache":
        """A cache of no positions, with room for ``max_length``; ``heads`` is K.

        ``value_dim`` is ``key_dim`` unless given. What is appended is stored as ``dtype``.
        """
        value_dim = key_dim if value_dim is None else value_dim
        sizes = dict(max_length=max_length, heads=heads, key_dim=key_dim, value_dim=value_dim)
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
                raise ValueError(f"{name} must be a positive integer: got {size}")
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(f"dtype must be floating: got {jnp.dtype(dtype)}")
        shape = (*batch_shape, max_length, heads)
        return cls(
            jnp.zeros((*shape, key_dim), dtype),
            jnp.zeros((*shape, value_dim), dtype),
            jnp.zeros((), jnp.int32),
        )

    def append(self, key: Any, value: Any) -> "KVCache":
        """A cache with ``key [..., t, K, Dk]``, ``value [..., t, K, Dv]`` as the next t positions.

        Positions that do not fit are a ValueError. Where ``length`` is traced (under ``jit``) they
        cannot be one: then the last t positions become NaN, ``length`` stays at the maximum, and
        whatever sees them is NaN.
        """
        key, value = jnp.asarray(key), jnp.asarray(value)
        for name, x, into in (("key", key, self.key), ("value", value, self.value)):
            _check_fits(name, x.shape, into.shape)
        if jnp.ndim(self.length):
            raise ValueError(
                f"length must be a scalar: got shape {jnp.shape(self.length)}; for a length of its "
                "own for each batch element, jax.vmap(KVCache.append)(cache, key, value)"
            )
        t, max_length = key.shape[-3], self.key.shape[-3]
        if value.shape[-3] != t:
            raise ValueError(
                f"key and value must have the same length: key has {t} positions, value has "
                f"{value.shape[-3]}"
            )
        length = self.length + t
        if not isinstance(length, jax.core.Tracer) and length > max_length:
            raise ValueError(
                f"the cache is full: {t} more positions after {self.length}, max_length is "
                f"{max_length}"
            )

        def write(x: jax.Array, into: jax.Array) -> jax.Array:
            x = jnp.where(length <= max_length, x.astype(into.dtype), jnp.nan)
            return lax.dynamic_update_slice_in_dim(into, x, self.length, into.ndim - 3)

        length_now = jnp.minimum(length, max_length)
        return KVCache(write(key, self.key), write(value, self.value), length_now)

    def mask(self, t: int, left: Any = None) -> masks.Mask:
        """What the queries of the newest ``t`` positions see: the keys up to their own position.

        With ``left``, a sliding window: at most ``left`` keys before it, and its own.
        """
        return masks.window(left, 0, offset=self.length - t)


def _check_fits(name: str, shape: tuple[int, ...], into: tuple[int, ...]) -> None:
    wanted = (*into[:-3], "t", *into[-2:])
    same = len(shape) == len(into) and (*shape[:-3], "t", *shape[-2:]) == wanted
    if not same or not 1 <= shape[-3] <= into[-3]:
        raise ValueError(
            f"{name} must be [{', '.join(map(str, wanted))}] with t in 1 .. {into[-3]}: got "
            f"{list(shape)}"
        )
