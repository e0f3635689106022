"""The layout of the blocked kernel: what it computes with, and the blocks of that.

Heads are computed as ``[M, H, G, ...]``: M = B batch elements times groups of H key heads, which
are computed together, and G query heads to a key head. Queries, keys and values stay in the order
that they come in, and each of the M takes its own: a copy of all in another order would be most of
the memory. T' and S' are T and S rounded up to whole blocks of ``rows`` queries and ``cols`` keys.
A block is ``[H, G, rows, cols]``, or *turned* ``[H, cols, G, rows]``: so the gradient needs it,
where turning it costs as much as computing it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attn_research import dropout
from attn_research.mask_algebra import Mask
from attn_research.numerics import HARMLESS, shrink


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of the blocks: key heads together, queries (of the gradient: ``back_rows``), keys."""

    together: int
    rows: int
    cols: int
    back_rows: int  # divides rows


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known before tracing.

    ``logits(shared, own, q [H, G, rows, E], k [H, cols, E], bias, count, shrunk, turned)`` gives
    the logits of a block, finite or NaN, and which of them the score keeps (None: all). If ``bare``
    is not None, ``bare(shared, own, q, k, shrunk)`` gives logits and the largest of each row ``[H,
    G, rows]`` in less time, where there is neither bias nor count and ``may_be_bare(q)`` (None:
    always). ``shrunk``, for dot, is ``numerics.shrink`` of q ``[H, G rows, E]``, or turned of k:
    the same for all blocks of a row, or column.
    """

    logits: Callable[..., tuple[jax.Array, Any]]
    bare: Callable[..., tuple[jax.Array, jax.Array]] | None
    may_be_bare: Callable[[jax.Array], jax.Array] | None
    stream: Any
    elements: int  # M
    batch: tuple[int, ...]
    T: int
    S: int
    sizes: Sizes
    axes: frozenset[str] = frozenset()  # of a mesh, over which the inputs vary


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
    """What has gradients."""

    query: jax.Array  # [B, T', N, E]
    key: jax.Array  # [B, S', K, E]
    value: jax.Array  # [B, S', K, Dv]
    bias: jax.Array | None  # [batch | 1, ..., N | 1, T' | 1, S' | 1]
    shared: Any  # parameters that all heads share
    own: Any  # leaves [N / (H G), H, G, ...]: those of each head
    normalizer: Any  # likewise: its options


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Constants:
    """What has none, or None."""

    mask: Mask | None
    bad_query: Any  # [B, T', N, 1]: what must not be read, if it is still there
    bad_key: Any  # [B, S', K, 1]
    bad_value: Any
    shrinking: Any  # [B, T', N, 1], [B, S', K, 1]: for dot, of query and key
    count: Any  # [M, H, G, T']: visible keys
    seeds: Any  # [M, H, G, 2]: of dropout
    rate: Any


class Element:
    """Element m of the layout, its blocks turned or not."""

    def __init__(
        self, plan: Plan, inputs: Inputs, constants: Constants, m: Any, turned: bool
    ) -> None:
        self.plan, self.constants, self.m, self.turned = plan, constants, m, turned
        self.rows = plan.sizes.back_rows if turned else plan.sizes.rows
        self.cols = plan.sizes.cols
        self.bias, self.shared = inputs.bias, inputs.shared
        heads, key_heads = inputs.query.shape[2], inputs.key.shape[2]
        self.H, self.G = plan.sizes.together, heads // key_heads
        groups = key_heads // self.H
        self.group = m % groups

        def take(x: jax.Array) -> jax.Array:
            """``[B, L, heads, E]`` -> ``[heads of this element, L, E]``."""
            sizes = 1, x.shape[1], x.shape[2] // groups, x.shape[3]
            start = m // groups, 0, self.group * sizes[2], 0
            return lax.dynamic_slice(x, start, sizes)[0].swapaxes(0, 1)

        def clean(x: jax.Array, bad: Any) -> jax.Array:
            return take(x) if bad is None else jnp.where(take(bad), HARMLESS, take(x))

        self.key, self.value = (
            clean(inputs.key, constants.bad_key),
            clean(inputs.value, constants.bad_value),
        )
        query = clean(inputs.query, constants.bad_query)
        # Of the arrays as they come in, since turning them here is a copy.
        self.shrinking = None if constants.shrinking is None else take(constants.shrinking[turned])
        self.query = query.reshape(self.H, self.G, *query.shape[1:])
        self.own, self.normalizer = jax.tree.map(
            lambda x: x[self.group], (inputs.own, inputs.normalizer)
        )
        self.index = jnp.unravel_index(m // groups, plan.batch) if plan.batch else ()
        self.mask = None if constants.mask is None else constants.mask.element(self.index)

    def blocks(self) -> tuple[int, int]:
        """How many, of rows and of columns."""
        return self.query.shape[-2] // self.rows, self.key.shape[-2] // self.cols

    def some(self, row: Any, col: Any) -> Any:
        """Whether the block may have a visible pair."""
        return True if self.mask is None else self.mask.some(row, col, self.rows, self.cols)

    def rows_of(self, x: Any, row: Any) -> Any:
        """The block of every leaf ``[M, H, G, T', ...]``."""
        cut = functools.partial(lax.dynamic_slice_in_dim, slice_size=self.rows, axis=2)
        return jax.tree.map(lambda leaf: cut(leaf[self.m], row), x)

    def query_of(self, row: Any) -> jax.Array:
        """``[H, G, rows, E]``."""
        return lax.dynamic_slice_in_dim(self.query, row, self.rows, -2)

    def cols_of(self, x: jax.Array, col: Any) -> jax.Array:
        """The block of ``x [H, S', ...]``."""
        return lax.dynamic_slice_in_dim(x, col, self.cols, 1)

    def by_row(self, x: jax.Array) -> jax.Array:
        """``[H, G, rows]`` against a block."""
        return x[:, None] if self.turned else x[..., None]

    def by_head(self, x: jax.Array) -> jax.Array:
        """``[H, G]`` against a block."""
        return x[:, None, :, None] if self.turned else x[..., None, None]

    def by_pair(self, x: jax.Array) -> jax.Array:
        """``[H | 1, G | 1, rows | 1, cols | 1]`` against a block."""
        return jnp.moveaxis(x, -1, 1) if self.turned else x

    def shrunk(self, x: jax.Array, start: Any) -> Any:
        """Of queries, or turned of keys, that begin at ``start``: see ``Plan``."""
        if self.shrinking is None:
            return None
        size = self.cols if self.turned else self.rows
        power = lax.dynamic_slice_in_dim(self.shrinking, start, size, 1)
        if not self.turned:
            x, power = (y.reshape(self.H, self.G * size, y.shape[-1]) for y in (x, power))
        return shrink(x, power)

    def bias_of(self, row: Any, col: Any) -> jax.Array | None:
        """That of a block."""
        if self.bias is None:
            return None
        return lax.dynamic_slice(self.bias, self.bias_start(row, col), self._bias_sizes())

    def logits(
        self,
        row: Any,
        col: Any,
        shrunk: Any,
        query: Any,
        key: Any,
        bias: Any,
        shared: Any,
        own: Any,
    ) -> tuple[jax.Array, Any]:
        """Those of the block, and where it is visible (None: everywhere)."""
        count = self.rows_of(self.constants.count, row)
        count = None if count is None else self.by_row(count)
        by_pair = None if bias is None else self.by_pair(self._by_head(bias))
        logits, kept = self.plan.logits(
            shared, own, query, key, by_pair, count, shrunk, self.turned
        )
        seen = [] if kept is None else [kept]
        if by_pair is not None:
            seen.append(by_pair != -jnp.inf)
        if self.mask is not None:
            block = self._by_head(self.mask.block(row, col, self.rows, self.cols))
            seen.append(self.by_pair(block))
        if self.key.shape[-2] != self.plan.S:
            there = col + jnp.arange(self.cols) < self.plan.S
            seen.append(self.by_pair(there[None, None, None]))
        return logits, functools.reduce(jnp.logical_and, seen) if seen else None

    def whole(self, row: Any, col: Any) -> Any:
        """Whether ``Plan.bare`` does for the block, and all of it is seen."""
        if self.plan.bare is None or self.bias is not None:
            return False
        whole = True if self.mask is None else self.mask.all(row, col, self.rows, self.cols)
        if self.key.shape[-2] != self.plan.S:
            whole &= col + self.cols <= self.plan.S
        if self.plan.may_be_bare is not None:
            whole &= self.plan.may_be_bare(self.query)
        return whole

    def by_col(self, x: jax.Array, col: Any) -> jax.Array:
        """The block of ``x [H, S']`` against a block."""
        return self.by_pair(self.cols_of(x, col)[:, None, None])

    def drop(self, x: jax.Array, row: Any, col: Any) -> jax.Array:
        """Dropout, and its transpose, without the factor ``1 / (1 - rate)``."""
        seeds, rate = self.constants.seeds, self.constants.rate
        if seeds is None:
            return x
        at = row + jnp.arange(self.rows), col + jnp.arange(self.cols)
        kept = self.by_pair(dropout.keep(seeds[self.m], rate, *at))
        return jnp.where(kept | jnp.isnan(x), x, 0)

    def bias_start(self, row: Any, col: Any) -> tuple[Any, ...]:
        """Where the block is in the bias."""
        assert self.bias is not None
        *batch, heads, T, S = self.bias.shape
        lead = [i if size > 1 else 0 for size, i in zip(batch, self.index, strict=True)]
        head = self.group * self.H * self.G if heads > 1 else 0
        return *lead, head, row if T > 1 else 0, col if S > 1 else 0

    def _bias_sizes(self) -> tuple[int, ...]:
        assert self.bias is not None
        *batch, heads, T, S = self.bias.shape
        sizes = self.H * self.G if heads > 1 else 1, min(T, self.rows), min(S, self.cols)
        return *(1 for _ in batch), *sizes

    def _by_head(self, x: jax.Array) -> jax.Array:
        """``[..., N | H G | 1, r, c]`` -> ``[H | 1, G | 1, r, c]`` of this element's heads."""
        x = x.reshape(-1, *x.shape[-2:])
        if x.shape[0] == 1:
            return x[None]
        heads = self.H * self.G
        if x.shape[0] != heads:
            x = lax.dynamic_slice_in_dim(x, self.group * heads, heads, 0)
        return x.reshape(self.H, self.G, *x.shape[1:])
