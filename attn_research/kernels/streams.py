"""How a row of weights comes about when its logits are seen a block of keys at a time.

A stream goes through the blocks of a row (``start``, ``step``, ``finish``), keeps a few numbers a
row, and from these gives weights and d logits of any block again (``delta``, ``pull``).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attn_research.kernels.blocks import Element
from attn_research.numerics import clip_finite

Mix = Callable[[jax.Array], jax.Array]  # weights -> weights @ values


class Softmax:
    """With a running maximum and sum of exponentials: Milakov, Gimelshein 2018, "Online normalizer
    calculation for softmax"; Rabe, Staats 2021, "Self-attention Does Not Need O(n^2) Memory"."""

    bounded = True  # weights are at most 1

    def start(self, rows: tuple[int, ...], width: int, dtype: Any) -> Any:
        return (
            jnp.full(rows, -jnp.inf, dtype),
            jnp.zeros(rows, dtype),
            jnp.zeros((*rows, width), dtype),
        )

    def step(
        self,
        carry: Any,
        one: Element,
        count: Any,
        logits: Any,
        visible: Any,
        largest: Any,
        mix: Mix,
    ) -> Any:
        """``largest``: that of each row of logits, or None."""
        top, total, context = carry
        if visible is not None:
            logits = jnp.where(visible, logits, -jnp.inf)
        largest = logits.max(-1) if largest is None else largest
        new_top = lax.stop_gradient(jnp.maximum(top, largest))  # any other would do
        shift = jnp.where(new_top == -jnp.inf, 0, new_top)
        weights, fade = jnp.exp(logits - shift[..., None]), jnp.exp(top - shift)
        context = context * fade[..., None] + mix(weights)
        return new_top, total * fade + weights.sum(-1), context

    def finish(self, carry: Any) -> tuple[jax.Array, jax.Array, Any]:
        """Context, lse, and what ``pull`` needs. That is not the lse: its rounding error, relative
        to logits of 1e4, would be that of the weights."""
        top, total, context = carry
        seen = jnp.where(total == 0, 1, total)
        log = jnp.log(seen)
        return context / seen[..., None], top + log, (jnp.where(top == -jnp.inf, 0, top), log)

    def delta(self, context: Any, d_context: Any, d_lse: Any) -> jax.Array:
        return jnp.sum(d_context * context, -1) - d_lse

    def pull(
        self,
        one: Element,
        count: Any,
        kept: Any,
        logits: Any,
        visible: Any,
        d_weights: Any,
        delta: Any,
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

    def start(self, rows: tuple[int, ...], width: int, dtype: Any) -> Any:
        return jnp.zeros((*rows, width), dtype)

    def step(
        self,
        carry: Any,
        one: Element,
        count: Any,
        logits: Any,
        visible: Any,
        largest: Any,
        mix: Mix,
    ) -> Any:
        return clip_finite(carry + mix(_weigh(one, one.normalizer, count, logits, visible)))

    def finish(self, carry: Any) -> tuple[jax.Array, None, Any]:
        return carry, None, ()

    def delta(self, context: Any, d_context: Any, d_lse: Any) -> None:
        return None

    def pull(
        self,
        one: Element,
        count: Any,
        kept: Any,
        logits: Any,
        visible: Any,
        d_weights: Any,
        delta: Any,
    ) -> tuple[jax.Array, jax.Array, Any]:
        weights, back = jax.vjp(
            lambda normalizer, logits: _weigh(one, normalizer, count, logits, visible),
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


SOFTMAX, ELEMENTWISE = Softmax(), Elementwise()
