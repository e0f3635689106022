"""Masks as data: small pytrees that combine with ``&``, ``|`` and ``~``.

True means visible. A mask is turned into a boolean array, broadcastable to ``[..., N, T, S]``, only
where it is used, so it costs nothing to carry and passes through ``jit`` with traced contents.

>>> print((causal() & lengths(2)).as_array(3, 3)[0].astype(int))
[[1 0 0]
 [1 1 0]
 [1 1 0]]
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Mask:
    """Base of all masks."""

    __array_ufunc__ = None  # numpy arrays leave & and | to the methods below

    def as_array(self, T: int, S: int) -> jax.Array:
        """The mask for T queries and S keys: boolean, broadcastable to ``[..., N, T, S]``."""
        raise NotImplementedError

    def __and__(self, other: Any) -> "Mask":
        return And(self, as_mask(other))

    def __or__(self, other: Any) -> "Mask":
        return Or(self, as_mask(other))

    def __rand__(self, other: Any) -> "Mask":
        return And(as_mask(other), self)

    def __ror__(self, other: Any) -> "Mask":
        return Or(as_mask(other), self)

    def __invert__(self) -> "Mask":
        return Not(self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Causal(Mask):
    """See ``causal``."""

    offset: Any

    def as_array(self, T: int, S: int) -> jax.Array:
        offset = jnp.asarray(self.offset)
        if offset.ndim:
            offset = offset[..., None, None, None]
        # j - i, so that no offset overflows
        return (
            lax.broadcasted_iota(jnp.int32, (T, S), 1) - lax.broadcasted_iota(jnp.int32, (T, S), 0)
        ) <= offset


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Lengths(Mask):
    """See ``lengths``."""

    key_lengths: Any

    def as_array(self, T: int, S: int) -> jax.Array:
        return jnp.arange(S) < jnp.asarray(self.key_lengths)[..., None, None, None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Dense(Mask):
    """See ``dense``."""

    array: Any

    def as_array(self, T: int, S: int) -> jax.Array:
        return jnp.asarray(self.array)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class And(Mask):
    """Visible in both."""

    left: Any
    right: Any

    def as_array(self, T: int, S: int) -> jax.Array:
        return self.left.as_array(T, S) & self.right.as_array(T, S)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Or(Mask):
    """Visible in one or the other."""

    left: Any
    right: Any

    def as_array(self, T: int, S: int) -> jax.Array:
        return self.left.as_array(T, S) | self.right.as_array(T, S)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Not(Mask):
    """Visible where the other is not."""

    mask: Any

    def as_array(self, T: int, S: int) -> jax.Array:
        return ~self.mask.as_array(T, S)


def causal(offset: Any = 0) -> Mask:
    """Query i sees the keys j <= i + offset.

    ``offset`` is an integer or an integer array (traced or not); with batch axes it differs per
    batch element. For queries that continue a sequence of P keys, say ``causal(P)``.

    >>> print(causal(1).as_array(2, 4).astype(int))
    [[1 1 0 0]
     [1 1 1 0]]
    """
    _check_integer("causal(offset)", offset)
    return Causal(offset)


def lengths(key_lengths: Any) -> Mask:
    """Each batch element sees its first ``key_lengths`` keys.

    ``key_lengths [...]`` are integers, one for each element of the batch axes (or broadcastable to
    them), 0 allowed.

    >>> lengths(jnp.array([3, 0])).as_array(5, 4).shape
    (2, 1, 1, 4)
    """
    _check_integer("lengths(key_lengths)", key_lengths)
    return Lengths(key_lengths)


def dense(array: Any) -> Mask:
    """A boolean array, broadcastable to ``[..., N, T, S]``, as a mask."""
    dtype = array.dtype if hasattr(array, "dtype") else np.asarray(array).dtype
    if dtype != jnp.bool_:
        raise TypeError(
            f"mask must be boolean (True = visible): got {dtype}; "
            "use mask.astype(bool), or bias= for numbers that are added to the logits"
        )
    return Dense(array)


def as_mask(mask: Any) -> Mask:
    """``mask`` itself, or a boolean array wrapped by ``dense``."""
    if isinstance(mask, Mask):
        return mask
    if hasattr(mask, "dtype") or isinstance(mask, bool | list | tuple):
        return dense(mask)
    raise TypeError(
        f"mask must be a boolean array or made by ar.masks: got {type(mask).__name__}; "
        "there are ar.masks.causal, .lengths, .dense, combined with & | ~"
    )


def _check_integer(what: str, x: Any) -> None:
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    if not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(f"{what} must be integers: got {dtype}")
