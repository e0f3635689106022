"""The layout of the blocked kernel: what it computes with, and the blocks of that.

Heads are laid out as ``[M, H, G, ...]``: M = batch elements times groups of H key heads, which are
computed together, and G query heads to a key head. T' and S' are T and S rounded up to whole blocks
of ``rows`` queries and ``cols`` keys.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attn_research import dropout
from attn_research.mask_algebra import Mask


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known before tracing.

    ``logits(shared, own, q [H, G, rows, E], k [H, cols, E], bias, count)`` gives the logits ``[H,
    G, rows, cols]``, finite or NaN, and which of them the score keeps (None: all).
    """

    logits: Callable[..., tuple[jax.Array, Any]]
    stream: Any
    batch: tuple[int, ...]
    S: int
    rows: int
    cols: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
    """What has gradients."""

    query: jax.Array  # [M, H, G, T', E]
    key: jax.Array  # [M, H, S', E]
    value: jax.Array  # [M, H, S', Dv]
    bias: jax.Array | None  # [batch | 1, ..., N | 1, T' | 1, S' | 1]
    shared: Any  # parameters that all heads share
    own: Any  # leaves [N / (H G), H, G, ...]: those of each head
    normalizer: Any  # likewise: its options


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Constants:
    """What has none; each but ``rate`` and ``mask`` is [M, H, G, T'] or [M, H, S'], or None."""

    mask: Mask | None
    bad_query: Any  # NaN was there: it must reach what sees it
    bad_key: Any
    bad_value: Any
    count: Any  # visible keys
    found: Any  # what the normalizer has found for each row: a pytree
    seeds: Any  # [M, H, G, 2]: of dropout
    rate: Any


class Element:
    """Element m of the layout."""

    def __init__(self, plan: Plan, inputs: Inputs, constants: Constants, m: Any) -> None:
        self.plan, self.m = plan, m
        self.query, self.key, self.value = inputs.query[m], inputs.key[m], inputs.value[m]
        self.bias, self.shared = inputs.bias, inputs.shared
        self.H, self.G = self.query.shape[:2]
        groups = inputs.query.shape[0] // max(math.prod(plan.batch), 1)
        self.group = m % groups
        self.own, self.normalizer = jax.tree.map(
            lambda x: x[self.group], (inputs.own, inputs.normalizer)
        )
        self.index = jnp.unravel_index(m // groups, plan.batch) if plan.batch else ()
        self.mask = None if constants.mask is None else constants.mask.element(self.index)
        self.constants = constants

    def some(self, row: Any, col: Any) -> Any:
        """Whether the block may have a visible pair."""
        at = row, col, self.plan.rows, self.plan.cols
        return True if self.mask is None else self.mask.some(*at)

    def rows_of(self, x: Any, row: Any) -> Any:
        """The block of every leaf ``[M, H, G, T', ...]``."""
        cut = functools.partial(lax.dynamic_slice_in_dim, slice_size=self.plan.rows, axis=2)
        return jax.tree.map(lambda leaf: cut(leaf[self.m], row), x)

    def arguments(self, row: Any, col: Any) -> tuple[Any, ...]:
        """Those of ``logits`` that have gradients."""
        query = lax.dynamic_slice_in_dim(self.query, row, self.plan.rows, -2)
        key = lax.dynamic_slice_in_dim(self.key, col, self.plan.cols, -2)
        bias = None
        if self.bias is not None:
            bias = lax.dynamic_slice(self.bias, self.bias_start(row, col), self._bias_sizes())
        return query, key, bias, self.shared, self.own

    def logits(
        self, query: Any, key: Any, bias: Any, shared: Any, own: Any, row: Any, col: Any
    ) -> tuple[jax.Array, Any]:
        """Those of the block, and where it is visible (None: everywhere)."""
        plan, constants = self.plan, self.constants
        count = self.rows_of(constants.count, row)
        count = None if count is None else count[..., None]
        by_head = None if bias is None else self._by_head(bias)
        logits, kept = plan.logits(shared, own, query, key, by_head, count)
        seen = [] if kept is None else [kept]
        if by_head is not None:
            seen.append(by_head != -jnp.inf)
        if self.mask is not None:
            seen.append(self._by_head(self.mask.block(row, col, plan.rows, plan.cols)))
        if self.key.shape[-2] != plan.S:
            seen.append(col + jnp.arange(plan.cols) < plan.S)
        bad = None
        if constants.bad_query is not None:
            bad = self.rows_of(constants.bad_query, row)[..., None]
        if constants.bad_key is not None:
            bad_key = self.cols_of(constants.bad_key, col)
            bad = bad_key if bad is None else bad | bad_key
        if bad is not None:
            logits = jnp.where(bad, jnp.nan, logits)
        return logits, functools.reduce(jnp.logical_and, seen) if seen else None

    def cols_of(self, x: jax.Array, col: Any) -> jax.Array:
        """The block of flags ``[M, H, S']``, against ``[H, G, rows, cols]``."""
        x = lax.dynamic_slice_in_dim(x[self.m], col, self.plan.cols, -1)
        return x[:, None, None, :]

    def mixing(self, weights: jax.Array, visible: Any, row: Any, col: Any) -> jax.Array:
        """The weights as the values get them: some dropped, NaN where NaN is to be seen."""
        weights = self.drop(weights, row, col)
        if self.constants.bad_value is None:
            return weights
        bad = self.cols_of(self.constants.bad_value, col)
        return jnp.where(bad if visible is None else bad & visible, jnp.nan, weights)

    def drop(self, x: jax.Array, row: Any, col: Any) -> jax.Array:
        """Dropout, and its transpose."""
        plan, constants = self.plan, self.constants
        if constants.seeds is None:
            return x
        at = row + jnp.arange(plan.rows), col + jnp.arange(plan.cols)
        kept = dropout.keep(constants.seeds[self.m], constants.rate, *at)
        return jnp.where(kept, x * (1 / (1 - constants.rate)).astype(x.dtype), 0)

    def bias_start(self, row: Any, col: Any) -> tuple[Any, ...]:
        """Where the block is in the bias."""
        assert self.bias is not None
        *batch, heads, T, S = self.bias.shape
        lead = [i if size > 1 else 0 for size, i in zip(batch, self._bias_index(), strict=True)]
        at = (
            self.group * self.H * self.G if heads > 1 else 0,
            row if T > 1 else 0,
            col if S > 1 else 0,
        )
        return *lead, *at

    def _bias_index(self) -> tuple[Any, ...]:
        return tuple(self.index)

    def _bias_sizes(self) -> tuple[int, ...]:
        assert self.bias is not None
        *batch, heads, T, S = self.bias.shape
        sizes = self.H * self.G if heads > 1 else 1, min(T, self.plan.rows), min(S, self.plan.cols)
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
