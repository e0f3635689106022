"""Alpha-entmax: ``p_j = max((alpha - 1) l_j - t, 0)^(1 / (alpha - 1))``, t such that the sum is 1.

alpha = 1 is softmax (the limit), 1.5 ``entmax15``, 2 ``sparsemax``; the larger, the sparser. The
derivative is ``diag(g) - g g^T / sum(g)`` with ``g_j = p_j^(2 - alpha)`` where p_j > 0. Peters,
Niculae, Martins 2019, "Sparse Sequence-to-Sequence Models"; learned alpha: Correia, Niculae,
Martins 2019, "Adaptively Sparse Transformers". An empty row gives 0.

With e = alpha - 1, z_j = l_j - max l and y = -ln(largest weight), which is in [0, ln S], ::

    ln p_j = -y + ln(1 + e z_j exp(e y)) / e

This has no pole at e = 0, where it is ``z_j - y``. The sum of p falls as y grows: bisection finds
y to the precision of the dtype, and nothing is special near alpha = 1. (If alpha > 2, weights near
0 have no bounded slope: there they magnify the rounding of logits, as the formula does.)
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from attn_research.normalizers._base import Normalizer, option
from attn_research.normalizers._threshold import below_top, hide, tangent

_SERIES = 18  # terms until 1 / k! is below the rounding error of float64


@jax.custom_jvp
def _weights(logits: jax.Array, alpha: jax.Array) -> jax.Array:
    z, e = below_top(logits), alpha - 1

    def total(y: jax.Array) -> jax.Array:
        return jnp.sum(weights_at(y, z, e), axis=-1, keepdims=True)

    low = jnp.max(z, axis=-1, keepdims=True) + jnp.zeros_like(e)  # 0, or NaN
    y = bisect(total, low, low + math.log(z.shape[-1]))
    return hide(weights_at(y, z, e) / total(y), logits)


def weights_at(y: jax.Array, z: jax.Array, e: jax.Array) -> jax.Array:
    """``exp(-y) (1 + e z exp(e y))^(1 / e)``, and its limit at e = 0."""
    softmax = e == 0
    safe = jnp.where(softmax, 1, e)
    scaled = z / jnp.maximum(jnp.exp(-e * y), jnp.finfo(z.dtype).tiny)
    some = safe * scaled > -1
    power = jnp.log1p(jnp.where(some, safe * scaled, 0)) / safe
    log = jnp.where(softmax, scaled, power) - y
    return jnp.where(some | softmax, jnp.exp(log), jnp.where(jnp.isnan(z), z, 0))


def bisect(total: Callable[[jax.Array], jax.Array], low: jax.Array, high: jax.Array) -> jax.Array:
    """Where the falling function ``total`` is 1, to the precision of the dtype."""

    def halve(_: int, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        middle = (low + high) / 2
        above = total(middle) > 1
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low, high = lax.fori_loop(0, jnp.finfo(low.dtype).nmant + 6, halve, (low, high))
    return (low + high) / 2


def _weights_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    alpha, (dz, dalpha) = primals[1], tangents
    weights = _weights(*primals)
    slopes = slopes_of(weights, alpha)
    dz = jnp.zeros_like(weights) if isinstance(dz, SymbolicZero) else dz
    if not isinstance(dalpha, SymbolicZero):
        dz = dz + dalpha * per_alpha(weights, alpha)
    return weights, tangent(slopes, dz)


_weights.defjvp(_weights_jvp, symbolic_zeros=True)


def slopes_of(weights: jax.Array, alpha: jax.Array) -> jax.Array:
    """``p^(2 - alpha)``, 0 where p is; beyond what the dtype has room for it saturates."""
    zero = weights == 0
    largest = 0.75 * math.log(float(jnp.finfo(weights.dtype).max))
    slopes = jnp.exp(jnp.minimum((2 - alpha) * jnp.log(jnp.where(zero, 1, weights)), largest))
    return jnp.where(zero, 0, slopes)


def per_alpha(weights: jax.Array, alpha: jax.Array) -> jax.Array:
    """The change of logits that moves these weights as a change of alpha does.

    With w = -e ln p it is ``-(ln p)^2 (1 - (1 + w) exp(-w)) / w^2``; at e = 0 ``-(ln p)^2 / 2``.
    """
    log, e = jnp.log(jnp.where(weights == 0, 1, weights)), alpha - 1
    w = -e * log
    near = jnp.abs(w) < 1
    far = jnp.where(near, 1, w)
    far = (-jnp.expm1(-far) - far * jnp.exp(-far)) / jnp.square(far)
    w = jnp.where(near, w, 0)
    series = jnp.zeros_like(w)
    for k in reversed(range(_SERIES)):
        series = 1 / (math.factorial(k) * (k + 2)) - w * series
    return -jnp.square(log) * jnp.where(near, series, far)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Entmax(Normalizer):
    """``alpha``: a scalar or ``[N]``, 1.5 by default, may be traced and learned; at least 1, which
    is not checked if it is traced (just below 1 the formula goes on, so that the derivative at 1
    has two sides). Rows sum to 1; an empty one to 0.

    >>> for alpha in (1, 1.5, 2):
    ...     weights = Entmax(alpha).normalize(jnp.array([1.0, 0.5, -1.0]))
    ...     print(alpha, [round(float(weight), 3) for weight in weights])
    1 [0.574, 0.348, 0.078]
    1.5 [0.674, 0.326, 0.0]
    2 [0.75, 0.25, 0.0]
    """

    alpha: Any = 1.5

    SUMS_TO_ONE = True
    STREAMS = "bisection"

    def __post_init__(self) -> None:
        if isinstance(self.alpha, int | float) and not 1 <= self.alpha < math.inf:
            raise ValueError(f"alpha of entmax must be at least 1 and finite: got {self.alpha}")

    def normalize(self, logits: jax.Array) -> jax.Array:
        return _weights(logits, option("alpha", self.alpha, logits))


NORMALIZER = Entmax
