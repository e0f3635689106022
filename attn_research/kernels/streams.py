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
from attn_research.numerics import clip_finite, inner

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

    def search(self, one: Element, fold: Fold, rows: Any, dtype: Any, count: Any) -> None:
        return None

    def start(self, rows: tuple[int, ...], width: int, dtype: Any) -> Any:
        return (
            jnp.full(rows, -jnp.inf, dtype),
            jnp.zeros(rows, dtype),
            jnp.zeros((*rows, width), dtype),
        )

    def step(self, carry: Any, one: Element, found: Any, seen: Seen) -> Any:
        top, total, context = carry
        logits, largest = hidden(seen), seen.largest
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
        return inner(d_context, context) - d_lse

    def pull(
        self, one: Element, kept: Any, logits: Any, visible: Any, d_weights: Any, delta: Any
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Weights, d logits, d normalizer."""
        top, log = kept
        # At most 0, but for rounding: of logits of 1e19, computed in two ways, that is 1e12.
        logs = jnp.minimum(logits - one.by_row(top) - one.by_row(log), 0)
        weights = jnp.exp(logs if visible is None else jnp.where(visible, logs, -jnp.inf))
        d_logits = weights * (d_weights - one.by_row(delta))
        return weights, d_logits if visible is None else jnp.where(visible, d_logits, 0), None


class Elementwise:
    """Each weight from its own logit and the number of visible keys."""

    bounded = False

    def search(self, one: Element, fold: Fold, rows: Any, dtype: Any, count: Any) -> Any:
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
    count = jnp.maximum(heads_first(one.by_row(count)), 1).astype(logits.dtype)
    options = jax.tree.map(lambda x: x.reshape(heads), normalizer)
    weights = options.weigh(
        merged.reshape(heads, *merged.shape[2:]), count.reshape(heads, *count.shape[2:])
    )
    weights = heads_first(weights.reshape(merged.shape))
    return weights if visible is None else jnp.where(visible, weights, 0)


def hidden(seen: Seen) -> jax.Array:
    """Logits, -inf where they are not visible."""
    return seen.logits if seen.visible is None else jnp.where(seen.visible, seen.logits, -jnp.inf)


SOFTMAX, ELEMENTWISE = Softmax(), Elementwise()
