"""Streams that search, over the blocks of a row, the number that makes its weights sum to 1.

The derivative of such weights by their logits is ``diag(g) - g g^T / sum(g)`` with slopes g of
their own. So d logits are ``g_j (d weights_j - delta)``, delta the mean of d weights under g; that
is the product of d context and the mean of the values under g, which is kept beside the context.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attn_research.kernels.blocks import Element
from attn_research.kernels.streams import Fold, Seen, hidden
from attn_research.normalizers import entmax
from attn_research.normalizers._threshold import terms
from attn_research.numerics import inner, vary


class _Searched:
    bounded = True

    def start(self, rows: tuple[int, ...], width: int, dtype: Any) -> Any:
        context = jnp.zeros((*rows, width), dtype)
        return context, context, jnp.zeros(rows, dtype)

    def step(self, carry: Any, one: Element, found: Any, seen: Seen) -> Any:
        context, mean, total = carry
        weights, slopes = self._visible(one, found, seen.logits, seen.visible)
        return context + seen.mix(weights), mean + seen.mix(slopes), total + slopes.sum(-1)

    def finish(self, carry: Any, found: Any) -> tuple[jax.Array, jax.Array, Any]:
        """Context, the largest logit of each row (without derivative), and what ``pull`` needs."""
        context, mean, total = carry
        return context, found[0], (found, mean / jnp.where(total == 0, 1, total)[..., None])

    def delta(self, kept: Any, context: Any, d_context: Any, d_lse: Any) -> jax.Array:
        return inner(d_context, kept[1])

    def pull(
        self, one: Element, kept: Any, logits: Any, visible: Any, d_weights: Any, delta: Any
    ) -> tuple[jax.Array, jax.Array, Any]:
        weights, slopes = self._visible(one, kept[0], logits, visible)
        d_logits = slopes * (d_weights - one.by_row(delta))
        return weights, d_logits, self.d_normalizer(one, weights, d_logits)

    def d_normalizer(self, one: Element, weights: jax.Array, d_logits: jax.Array) -> Any:
        return None

    def weigh(self, one: Element, found: Any, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Weights and slopes for logits minus the largest of their row."""
        raise NotImplementedError

    def _visible(self, one: Element, found: Any, logits: Any, visible: Any) -> list[jax.Array]:
        top, *rest = (one.by_row(x) for x in found)
        pair = self.weigh(one, rest, logits - jnp.where(top == -jnp.inf, 0, top))
        return [x if visible is None else jnp.where(visible, x, 0) for x in pair]


class Threshold(_Searched):
    """``max(l / power - t, 0)^power``: Newton's method finds t, a pass over the row a step, as in
    ``normalizers/_threshold.py``."""

    def __init__(self, power: int) -> None:
        self.power = power

    def search(self, one: Element, fold: Fold, rows: Any, dtype: Any, count: Any) -> Any:
        top = _largest(fold, rows, dtype)
        shift = jnp.where(top == -jnp.inf, 0, top)[..., None]

        def newton(t: jax.Array) -> jax.Array:
            def add(sums: Any, seen: Seen) -> Any:
                above = (hidden(seen) - shift) / self.power - t[..., None]
                return [a + x.sum(-1) for a, x in zip(sums, terms(above, self.power), strict=True)]

            value, slope = fold(add, [jnp.zeros(rows, dtype)] * 2)
            return t + (value - 1) / jnp.where(slope == 0, 1, slope)

        def climb(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            t = jnp.maximum(*state)
            return newton(t), t

        start = vary(jnp.full(rows, -1, dtype), one.plan.axes)
        step, t = lax.while_loop(
            lambda state: jnp.any(state[0] > state[1]), climb, (newton(start), start)
        )
        # The value is t, which is not below; the derivative that of the last step.
        return top, lax.stop_gradient(t - step) + step

    def weigh(self, one: Element, found: Any, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, slope = terms(z / self.power - found[0], self.power)
        return value, slope / self.power


class Bisection(_Searched):
    """Alpha-entmax, about 30 passes over a row; ``normalizers/entmax.py`` says what y is."""

    def search(self, one: Element, fold: Fold, rows: Any, dtype: Any, count: Any) -> Any:
        top = _largest(fold, rows, dtype)
        shift = jnp.where(top == -jnp.inf, 0, top)[..., None]
        e = one.by_head(one.normalizer.alpha) - 1

        def sums(y: jax.Array) -> list[jax.Array]:
            def add(carry: Any, seen: Seen) -> Any:
                weights = entmax.weights_at(y[..., None], hidden(seen) - shift, e)
                pair = [weights, entmax.slopes_of(weights, e + 1)]
                if seen.visible is not None:
                    pair = [jnp.where(seen.visible, x, 0) for x in pair]
                return [a + x.sum(-1) for a, x in zip(carry, pair, strict=True)]

            return fold(add, [jnp.zeros(rows, dtype)] * 2)

        bracket = jnp.zeros(rows, dtype), jnp.full(rows, math.log(one.plan.S), dtype)
        bracket = vary(bracket, one.plan.axes)
        y = lax.stop_gradient(entmax.bisect(lambda y: sums(y)[0], *bracket))
        # A step of Newton's method, which moves y by rounding errors and has its derivative.
        total, slopes = sums(y)
        slopes = lax.stop_gradient(jnp.where(slopes == 0, 1, slopes))
        y = y + (total - 1) * lax.stop_gradient(jnp.exp(e[..., 0] * y)) / slopes
        total = sums(y)[0]
        return top, y, jnp.where(total == 0, 1, total)

    def weigh(self, one: Element, found: Any, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        alpha = one.by_head(one.normalizer.alpha)
        weights = entmax.weights_at(found[0], z, alpha - 1) / found[1]
        return weights, entmax.slopes_of(weights, alpha)

    def d_normalizer(self, one: Element, weights: jax.Array, d_logits: jax.Array) -> Any:
        moved = d_logits * entmax.per_alpha(weights, one.by_head(one.normalizer.alpha))
        if one.turned:
            moved = moved.swapaxes(1, 2)
        return entmax.Entmax(moved.sum((2, 3)))


def _largest(fold: Fold, rows: Any, dtype: Any) -> jax.Array:
    def larger(top: jax.Array, seen: Seen) -> jax.Array:
        return jnp.maximum(top, hidden(seen).max(-1))

    return lax.stop_gradient(fold(larger, jnp.full(rows, -jnp.inf, dtype)))
