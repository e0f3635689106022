"""Masks that know positions and ids, and compute their blocks from them; ``masks.py`` makes them.

Their fields are ints or int32 arrays (ids: any integers), with a value for each element of the
batch axes.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_research.mask_algebra import Mask, indices, pick, positions

INT32 = np.iinfo(np.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Band(Mask):
    """Visible where ``low <= j - i <= high``; None is no bound. ``some`` and ``all`` are exact.

    See ``causal`` and ``window``.
    """

    low: Any
    high: Any

    def block(self, row: Any, col: Any, rows: int, cols: int) -> jax.Array:
        # j - i, so that no bound overflows
        ahead = positions(col, cols) - positions(row, rows)[:, None]
        visible = [] if self.low is None else [ahead >= _per_element(self.low)]
        visible += [] if self.high is None else [ahead <= _per_element(self.high)]
        return visible[0] & visible[-1] if visible else jnp.ones((1, 1), bool)

    def some(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        low, high = self._bounds()
        least, most = col - (row + rows - 1), col + cols - 1 - row
        return _over_batch("any", (low <= most) & (high >= least) & (low <= high))

    def all(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        low, high = self._bounds()
        least, most = col - (row + rows - 1), col + cols - 1 - row
        return _over_batch("all", (low <= least) & (high >= most))

    def element(self, index: tuple[Any, ...]) -> Mask:
        return Band(pick(self.low, index, 0), pick(self.high, index, 0))

    def _bounds(self) -> tuple[Any, Any]:
        low = INT32.min if self.low is None else self.low
        return low, (INT32.max if self.high is None else self.high)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FirstKeys(Mask):
    """Visible where ``j < count``. ``some`` and ``all`` are exact.

    See ``lengths`` and ``prefix``.
    """

    count: Any

    def block(self, row: Any, col: Any, rows: int, cols: int) -> jax.Array:
        return positions(col, cols) < jnp.asarray(self.count)[..., None, None, None]

    def some(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        return _over_batch("any", self.count > col)

    def all(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        return _over_batch("all", self.count >= col + cols)

    def element(self, index: tuple[Any, ...]) -> Mask:
        return FirstKeys(pick(self.count, index, 0))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Segments(Mask):
    """Visible where ``q_ids[i] == k_ids[j]``; ``k_ids`` None is ``q_ids``.

    ``some`` is whether their ranges overlap, exact for ids that ascend. See ``segments``.
    """

    q_ids: Any
    k_ids: Any

    def block(self, row: Any, col: Any, rows: int, cols: int) -> jax.Array:
        return _equal(*self._cut(row, col, rows, cols))

    def some(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        q, k = self._cut(row, col, rows, cols)
        return ((q.min(-1) <= k.max(-1)) & (k.min(-1) <= q.max(-1))).any()

    def all(self, row: Any, col: Any, rows: int, cols: int) -> Any:
        q, k = self._cut(row, col, rows, cols)
        return ((q.min(-1) == k.max(-1)) & (k.min(-1) == q.max(-1))).all()

    def element(self, index: tuple[Any, ...]) -> Mask:
        return Segments(pick(self.q_ids, index, 1), pick(self.k_ids, index, 1))

    def as_array(self, T: int, S: int) -> jax.Array:
        return _equal(*self._ids())

    def _ids(self) -> tuple[jax.Array, jax.Array]:
        q = jnp.asarray(self.q_ids)
        return q, q if self.k_ids is None else jnp.asarray(self.k_ids)

    def _cut(self, row: Any, col: Any, rows: int, cols: int) -> tuple[jax.Array, jax.Array]:
        q, k = self._ids()
        return _take(q, row, rows), _take(k, col, cols)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Dilated(Mask):
    """Visible where ``i + phase - j`` is a multiple of ``step``; ``0 <= phase < step``.

    See ``dilated``.
    """

    step: Any
    phase: Any

    def block(self, row: Any, col: Any, rows: int, cols: int) -> jax.Array:
        step, phase = _per_element(self.step), _per_element(self.phase)
        i, j = positions(row, rows)[:, None] % step, positions(col, cols) % step
        # (i + phase) % step, without a sum that overflows
        return jnp.where(i < step - phase, i + phase, i - (step - phase)) == j

    def element(self, index: tuple[Any, ...]) -> Mask:
        return Dilated(pick(self.step, index, 0), pick(self.phase, index, 0))


def _per_element(x: Any) -> Any:
    """``x [...]``, a value for each batch element, against ``[..., N, rows, cols]``."""
    return jnp.asarray(x)[..., None, None, None] if jnp.ndim(x) else x


def _take(ids: jax.Array, start: Any, size: int) -> jax.Array:
    length = ids.shape[-1]
    if length == 0:  # all of the block is beyond the end
        return jnp.zeros((*ids.shape[:-1], 1), ids.dtype)
    return ids.at[..., indices(start, size, length)].get(mode="clip")


def _equal(q_ids: jax.Array, k_ids: jax.Array) -> jax.Array:
    return q_ids[..., None, :, None] == k_ids[..., None, None, :]


def _over_batch(how: str, x: Any) -> Any:
    """``any`` or ``all``: a bool if ``x`` is known."""
    return getattr(x, how)() if isinstance(x, jax.Array) else bool(getattr(np, how)(x))
