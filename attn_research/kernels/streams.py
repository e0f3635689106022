"""How a row of weights comes about when its logits are seen a block of keys at a time.

A stream finds out about a row what it must know beforehand (``search``), goes through its blocks
(``start``, ``step``, ``finish``), keeps a few numbers a row, and from these gives weights and d
logits of any block again (``delta``, ``pull``).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attn_research.kernels.blocks import Element
from attn_research.normalizers._threshold import terms
from attn_research.numerics import clip_finite

Mix = Callable[[jax.Array], jax.Array]  # weights -> weights @ values


@dataclasses.dataclass(frozen=True)
class Seen:
    """A block, as the stream sees it: logits, which are visible (None: all), the largest of each
    row of logits (None: to be found), and how weights become a sum of values."""

    logits: jax.Array
    visible: jax.Array | None
    largest: jax.Array | None
    mix: Mix


Fold = Callable[
    [Callable[[Any, Seen], Any], Any], Any
]  # (step, start) -> after all blocks of a row


class Softmax:
    """With a running maximum and sum of exponentials: Milakov, Gimelshein 2018, "Online normalizer
    calculation for softmax"; Rabe, Staats 2021, "Self-attention Does Not Need O(n^2) Memory"."""

    bounded = True  # weights are at most 1

    def search(self, fold: Fold, rows: tuple[int, ...], dtype: Any, count: Any) -> None:
        return None

    def start(self, rows: tuple[int, ...], width: int, dtype: Any) -> Any:
        return (
            jnp.full(rows, -jnp.inf, dtype),
            jnp.zeros(rows, dtype),
            jnp.zeros((*rows, width), dtype),
        )

    def step(self, carry: Any, one: Element, found: Any, seen: Seen) -> Any:
        top, total, context = carry
        logits, largest = _hidden(seen), seen.largest
        largest = logits.max(-1) if largest is None else largest
        new_top = lax.stop_gradient(jnp.maximum(top, largest))  # any other would do
        shift = jnp.where(new_top == -jnp.inf, 0, new_top)
        weights, fade = jnp.exp(logits - shift[..., None]), jnp.exp(top - shift)
        context = context * fade[..., None] + seen.mix(weights)
        return new_top, total * fade + weights.sum(-1), context

    def finish(self, carry: Any, found: Any) -> tuple[jax.Array, jax.Array, Any]:
        """Context, lse, and what ``pull`` needs. That is not the lse: its rounding error, relative
        to logits of 1e4, would be that of the weights."""
        top, total, context = carry
        seen = jnp.where(total == 0, 1, total)
        log = jnp.log(seen)
        return context / seen[..., None], top + log, (jnp.where(top == -jnp.inf, 0, top), log)

    def delta(self, kept: Any, context: Any, d_context: Any, d_lse: Any) -> jax.Array:
        return jnp.sum(d_context * context, -1) - d_lse

    def pull(
        self, one: Element, kept: Any, logits: Any, visible: Any, d_weights: Any, delta: Any
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Weights, d logits, d normalizer."""
        top, log = kept
        weights = jnp.exp(logits - one.by_row(top) - one.by_row(log))
        d_logits = weights * (d_weights - one.by_row(delta))
        if visible is not None:
            weights, d_logits = (jnp.where(visible, x, 0) for x in (weights, d_logits))
        return weights, d_logits, None


class Elementwise:
    """Each weight from its own logit and the number of visible keys."""

    bounded = False

    def search(self, fold: Fold, rows: tuple[int, ...], dtype: Any, count: Any) -> Any:
        return count

    def start(self, rows: tuple[int, ...], width: int, dtype: Any) -> Any:
        return jnp.zeros((*rows, width), dtype)

    def step(self, carry: Any, one: Element, found: Any, seen: Seen) -> Any:
        weights = _weigh(one, one.normalizer, found, seen.logits, seen.visible)
        return clip_finite(carry + seen.mix(weights))

    def finish(self, carry: Any, found: Any) -> tuple[jax.Array, None, Any]:
        return carry, None, found

    def delta(self, kept: Any, context: Any, d_context: Any, d_lse: Any) -> None:
        return None

    def pull(
        self, one: Element, kept: Any, logits: Any, visible: Any, d_weights: Any, delta: Any
    ) -> tuple[jax.Array, jax.Array, Any]:
        weights, back = jax.vjp(
            lambda normalizer, logits: _weigh(one, normalizer, kept, logits, visible),
            one.normalizer,
            logits,
        )
        d_normalizer, d_logits = back(d_weights.astype(weights.dtype))
        return weights, d_logits, d_normalizer


def _weigh(
    one: Element, normalizer: Any, count: jax.Array, logits: jax.Array, visible: Any
) -> jax.Array:
    def heads_first(x: jax.Array) -> jax.Array:
        return x.swapaxes(1, 2) if one.turned else x

    heads = one.H * one.G
    merged = heads_first(logits)
    count = heads_first(one.by_row(count)).astype(logits.dtype)
    options = jax.tree.map(lambda x: x.reshape(heads), normalizer)
    weights = options.weigh(
        merged.reshape(heads, *merged.shape[2:]), count.reshape(heads, *count.shape[2:])
    )
    weights = heads_first(weights.reshape(merged.shape))
    return weights if visible is None else jnp.where(visible, weights, 0)


@dataclasses.dataclass(frozen=True)
class Threshold:
    """``max(l / power - t, 0)^power``: Newton's method finds t, a pass over the row a step, as in
    ``normalizers/_threshold.py``."""

    power: int
    bounded = True

    def search(self, fold: Fold, rows: tuple[int, ...], dtype: Any, count: Any) -> Any:
        def larger(top: jax.Array, seen: Seen) -> jax.Array:
            return jnp.maximum(top, _hidden(seen).max(-1))

        top = fold(larger, jnp.full(rows, -jnp.inf, dtype))
        shift = jnp.where(top == -jnp.inf, 0, top)

        def newton(t: jax.Array) -> jax.Array:
            def add(sums: Any, seen: Seen) -> Any:
                above = (_hidden(seen) - shift[..., None]) / self.power - t[..., None]
                return [a + x.sum(-1) for a, x in zip(sums, terms(above, self.power), strict=True)]

            value, slope = fold(add, [jnp.zeros(rows, dtype)] * 2)
            return t + (value - 1) / jnp.where(slope == 0, 1, slope)

        def climb(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            t = jnp.maximum(*state)
            return newton(t), t

        start = jnp.full(rows, -1, dtype)
        _, t = lax.while_loop(
            lambda state: jnp.any(state[0] > state[1]), climb, (newton(start), start)
        )
        return top, t

    def start(self, rows: tuple[int, ...], width: int, dtype: Any) -> Any:
        context = jnp.zeros((*rows, width), dtype)
        return context, context, jnp.zeros(rows, dtype)

    def step(self, carry: Any, one: Element, found: Any, seen: Seen) -> Any:
        context, mean, total = carry
        weights, slopes = self._weigh(one, found, seen.logits, seen.visible)
        return context + seen.mix(weights), mean + seen.mix(slopes), total + slopes.sum(-1)

    def finish(self, carry: Any, found: Any) -> tuple[jax.Array, jax.Array, Any]:
        """Context, the largest logit of each row (without derivative), and what ``pull`` needs."""
        context, mean, total = carry
        return context, found[0], (found, mean / jnp.where(total == 0, 1, total)[..., None])

    def delta(self, kept: Any, context: Any, d_context: Any, d_lse: Any) -> jax.Array:
        return jnp.sum(d_context * kept[1], -1)

    def pull(
        self, one: Element, kept: Any, logits: Any, visible: Any, d_weights: Any, delta: Any
    ) -> tuple[jax.Array, jax.Array, Any]:
        weights, slopes = self._weigh(one, kept[0], logits, visible)
        return weights, slopes * (d_weights - one.by_row(delta)), None

    def _weigh(self, one: Element, found: Any, logits: Any, visible: Any) -> list[jax.Array]:
        """Weights, and their derivatives by their logits."""
        top, t = (one.by_row(x) for x in found)
        top = jnp.where(top == -jnp.inf, 0, top)
        value, slope = terms((logits - top) / self.power - t, self.power)
        pair = [value, slope / self.power]
        return pair if visible is None else [jnp.where(visible, x, 0) for x in pair]


def _hidden(seen: Seen) -> jax.Array:
    """Logits, -inf where they are not visible."""
    return seen.logits if seen.visible is None else jnp.where(seen.visible, seen.logits, -jnp.inf)


SOFTMAX, ELEMENTWISE = Softmax(), Elementwise()
