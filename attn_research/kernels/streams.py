"""How a row of weights comes about when its logits are seen a block of keys at a time.

A stream goes through the blocks of a row (``start``, ``step``, ``finish``), keeps a few numbers a
row, and from these gives weights and d logits of any block again (``delta``, ``pull``). Shapes are
``[H, G, rows, cols]``; what belongs to rows lacks ``cols``.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Mix = Callable[[jax.Array], jax.Array]  # weights -> weights @ values


class Softmax:
    """With a running maximum and sum of exponentials: Milakov, Gimelshein 2018, "Online normalizer
    calculation for softmax"; Rabe, Staats 2021, "Self-attention Does Not Need O(n^2) Memory"."""

    def start(self, rows: tuple[int, ...], width: int, dtype: Any) -> Any:
        return (
            jnp.full(rows, -jnp.inf, dtype),
            jnp.zeros(rows, dtype),
            jnp.zeros((*rows, width), dtype),
        )

    def step(
        self, carry: Any, normalizer: Any, found: Any, logits: Any, visible: Any, mix: Mix
    ) -> Any:
        top, total, context = carry
        if visible is not None:
            logits = jnp.where(visible, logits, -jnp.inf)
        new_top = jnp.maximum(top, logits.max(-1))
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

    def delta(self, kept: Any, context: Any, d_context: Any, d_lse: Any) -> jax.Array:
        d_lse = 0 if d_lse is None else d_lse
        return jnp.sum(d_context * context, -1) - d_lse

    def pull(
        self,
        normalizer: Any,
        found: Any,
        kept: Any,
        logits: Any,
        visible: Any,
        d_weights: Any,
        delta: Any,
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Weights, d logits, d normalizer."""
        top, log = kept
        weights = jnp.exp(logits - top[..., None] - log[..., None])
        if visible is not None:
            weights = jnp.where(visible, weights, 0)
        d_logits = weights * (d_weights - delta[..., None])
        if visible is not None:
            d_logits = jnp.where(visible, d_logits, 0)
        return weights, d_logits, normalizer


class Elementwise:
    """Each weight from its own logit and what is known of its row."""

    def start(self, rows: tuple[int, ...], width: int, dtype: Any) -> Any:
        return jnp.zeros((*rows, width), dtype)

    def step(
        self, carry: Any, normalizer: Any, found: Any, logits: Any, visible: Any, mix: Mix
    ) -> Any:
        return carry + mix(_weigh(normalizer, found, logits, visible))

    def finish(self, carry: Any) -> tuple[jax.Array, None, Any]:
        return carry, None, ()

    def delta(self, kept: Any, context: Any, d_context: Any, d_lse: Any) -> None:
        return None

    def pull(
        self,
        normalizer: Any,
        found: Any,
        kept: Any,
        logits: Any,
        visible: Any,
        d_weights: Any,
        delta: Any,
    ) -> tuple[jax.Array, jax.Array, Any]:
        weights, back = jax.vjp(
            lambda normalizer, logits: _weigh(normalizer, found, logits, visible),
            normalizer,
            logits,
        )
        d_normalizer, d_logits = back(d_weights.astype(weights.dtype))
        return weights, d_logits, d_normalizer


SOFTMAX, ELEMENTWISE = Softmax(), Elementwise()


def _weigh(normalizer: Any, count: jax.Array, logits: jax.Array, visible: Any) -> jax.Array:
    H, G = logits.shape[:2]
    merged = logits.reshape(H * G, *logits.shape[2:])
    options = jax.tree.map(lambda x: x.reshape(H * G), normalizer)
    count = count.astype(logits.dtype).reshape(H * G, -1, 1)
    weights = options.weigh(merged, count).reshape(logits.shape)
    return weights if visible is None else jnp.where(visible, weights, 0)
