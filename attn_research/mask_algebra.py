"""What every mask can do, how masks combine, and arrays as masks.

To what computes attention, a mask of any size is three methods, each of a block of queries
``row .. row + rows - 1`` and keys ``col .. col + cols - 1``:

- ``block``: its values;
- ``some``: False only if surely no pair in it is visible, so that the block can be skipped;
- ``all``: True only if surely every pair in it is visible, so that masking can be skipped.

``rows`` and ``cols`` are ints >= 1, ``row`` and ``col`` ints >= 0 or traced int32 scalars. A block
may stick out beyond the last query or key: its values there mean nothing, and no other value moves.

>>> from attn_research import masks
>>> future = ~masks.causal()
>>> print(future.block(4, 4, 2, 3).astype(int))
[[0 1 1]
 [0 0 1]]
>>> [future.some(row, 4, 2, 2) for row in (0, 4, 8)]
[True, True, False]
>>> [future.all(row, 4, 2, 2) for row in (0, 4, 8)]
[True, False, False]
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

    def block(self, row: Any, col: Any, rows: int, cols: int) -> jax.Array:
        """The values of a block: boolean, broadcastable to ``[..., N, rows, cols]``."""
        raise NotImplementedError

    def some(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        """False only if no pair of the block is visible, for any batch element and head.

        A bool if what it depends on is known, else a boolean scalar. It may be True without need:
        where nothing better is said, it always is.
        """
        return True

    def all(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        """True only if every pair of the block is visible, for all batch elements and heads.

        A bool or a scalar like ``some``; it may be False without need.
        """
        return False

    def element(self, index: tuple[Any, ...]) -> "Mask":
        """The mask of one batch element: ``index`` has a number (traced or not) for each batch axis
        of what the mask is for, to which its own are broadcast."""
        raise NotImplementedError

    def as_array(self, T: int, S: int) -> jax.Array:
        """The mask for T queries and S keys: boolean, broadcastable to ``[..., N, T, S]``.

        Arrays and ids that the mask was made of keep their own size, which must be that of T and S
        or 1: ``attend`` checks it.
        """
        return self.block(0, 0, T, S)

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

    def __bool__(self) -> bool:
        raise TypeError("a mask is neither true nor false: combine masks with & | ~, not with and")


def as_mask(mask: Any) -> Mask:
    """``mask`` itself, or a boolean array as a mask."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, bool | list | tuple):
        mask = np.asarray(mask)
    if not hasattr(mask, "dtype"):
        raise TypeError(
            f"mask must be a boolean array or made by ar.masks: got {type(mask).__name__}; there "
            "are ar.masks.causal, .window, .lengths, .segments, .prefix, .dilated, .dense, "
            "combined with & | ~"
        )
    if mask.dtype != jnp.bool_:
        raise TypeError(
            f"mask must be boolean (True = visible): got {mask.dtype}; "
            "use mask.astype(bool), or bias= for numbers that are added to the logits"
        )
    return Dense(mask)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A boolean array, broadcastable to ``[..., N, T, S]``."""

    array: Any

    def block(self, row: Any, col: Any, rows: int, cols: int) -> jax.Array:
        array = jnp.asarray(self.array)
        array = array if array.ndim > 1 else jnp.atleast_2d(array)  # which copies
        T, S = array.shape[-2:]
        at_start = isinstance(row, int) and isinstance(col, int) and row == col == 0
        if at_start and T in (1, rows) and S in (1, cols):
            return array
        if T == 0 or S == 0:  # all of the block is beyond the end
            return jnp.zeros((1, 1), bool)
        # Not a slice: that would be shifted where it sticks out
        i, j = indices(row, rows, T), indices(col, cols, S)
        return array.at[..., i[:, None], j].get(mode="clip")

    def element(self, index: tuple[Any, ...]) -> Mask:
        return Dense(pick(self.array, index, 3))

    def as_array(self, T: int, S: int) -> jax.Array:
        return jnp.asarray(self.array)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pair(Mask):
    left: Any
    right: Any

    @staticmethod
    def combine(left: Any, right: Any) -> Any:
        raise NotImplementedError

    def block(self, row: Any, col: Any, rows: int, cols: int) -> jax.Array:
        at = row, col, rows, cols
        return self.combine(self.left.block(*at), self.right.block(*at))

    def some(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        at = row, col, rows, cols
        return self.combine(self.left.some(*at), self.right.some(*at))

    def all(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        at = row, col, rows, cols
        return self.combine(self.left.all(*at), self.right.all(*at))

    def element(self, index: tuple[Any, ...]) -> Mask:
        return type(self)(self.left.element(index), self.right.element(index))

    def as_array(self, T: int, S: int) -> jax.Array:
        left, right = self.left.as_array(T, S), self.right.as_array(T, S)
        try:
            jnp.broadcast_shapes(left.shape, right.shape)
        except ValueError:
            raise ValueError(
                "masks that are combined must broadcast to one shape: got "
                f"{list(left.shape)} and {list(right.shape)}"
            ) from None
        return self.combine(left, right)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class And(_Pair):
    """Visible in both."""

    @staticmethod
    def combine(left: Any, right: Any) -> Any:
        return left & right


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Or(_Pair):
    """Visible in one or the other."""

    @staticmethod
    def combine(left: Any, right: Any) -> Any:
        return left | right


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Not(Mask):
    """Visible where the other is not."""

    mask: Any

    def block(self, row: Any, col: Any, rows: int, cols: int) -> jax.Array:
        return ~self.mask.block(row, col, rows, cols)

    def some(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        return self.mask.all(row, col, rows, cols) ^ True

    def all(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        return self.mask.some(row, col, rows, cols) ^ True

    def element(self, index: tuple[Any, ...]) -> Mask:
        return Not(self.mask.element(index))

    def as_array(self, T: int, S: int) -> jax.Array:
        return ~self.mask.as_array(T, S)


def positions(start: Any, size: int) -> jax.Array:
    """``start .. start + size - 1``."""
    return start + lax.iota(jnp.int32, size)


def indices(start: Any, size: int, length: int) -> jax.Array:
    """The positions of a block on an axis of an array, where length 1 broadcasts."""
    return lax.iota(jnp.int32, 1) if length == 1 else positions(start, size)


def pick(x: Any, index: tuple[Any, ...], own: int) -> Any:
    """The element of ``x [...]`` at ``index`` of its batch axes, which come before ``own`` others
    and are broadcast: from the right, and where their size is 1."""
    batch = np.shape(x)[: max(np.ndim(x) - own, 0)]
    if not batch:
        return x
    at = tuple(i if size > 1 else 0 for size, i in zip(batch, index[-len(batch) :], strict=True))
    return jnp.asarray(x)[at]
