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
    tiny = jnp.finfo(z.dtype).tiny
    softmax = e == 0
    safe = jnp.where(softmax, 1, e)

    def weights(y: jax.Array) -> jax.Array:
        scaled = z / jnp.maximum(jnp.exp(-e * y), tiny)
        power = jnp.log1p(jnp.maximum(safe * scaled, -1)) / safe
        return jnp.exp(jnp.where(softmax, scaled, power) - y)

    def halve(_: int, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        middle = (low + high) / 2
        above = jnp.sum(weights(middle), axis=-1, keepdims=True) > 1
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low = jnp.max(z, axis=-1, keepdims=True) + jnp.zeros_like(e)  # 0, or NaN
    high = low + math.log(z.shape[-1])
    low, high = lax.fori_loop(0, jnp.finfo(z.dtype).nmant + 6, halve, (low, high))
    p = weights((low + high) / 2)
    return hide(p / jnp.sum(p, axis=-1, keepdims=True), logits)


def _weights_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    alpha, (dz, dalpha) = primals[1], tangents
    weights = _weights(*primals)
    zero = weights == 0
    log = jnp.log(jnp.where(zero, 1, weights))
    largest = 0.75 * math.log(float(jnp.finfo(weights.dtype).max))  # steeper slopes saturate
    slopes = jnp.exp(jnp.minimum((2 - alpha) * log, largest))
    slopes = jnp.where(zero, 0, slopes)
    dz = jnp.zeros_like(weights) if isinstance(dz, SymbolicZero) else dz
    if not isinstance(dalpha, SymbolicZero):
        dz = dz + dalpha * _per_alpha(log, alpha - 1)
    return weights, tangent(slopes, dz)


_weights.defjvp(_weights_jvp, symbolic_zeros=True)


def _per_alpha(log: jax.Array, e: jax.Array) -> jax.Array:
    """The change of logits that moves weights of these logarithms as a change of alpha does.

    With w = -e ln p it is ``-(ln p)^2 (1 - (1 + w) exp(-w)) / w^2``; at e = 0 ``-(ln p)^2 / 2``.
    """
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
    STREAMS = None

    def __post_init__(self) -> None:
        if isinstance(self.alpha, int | float) and not 1 <= self.alpha < math.inf:
            raise ValueError(f"alpha of entmax must be at least 1 and finite: got {self.alpha}")

    def normalize(self, logits: jax.Array) -> jax.Array:
        return _weights(logits, option("alpha", self.alpha, logits))


NORMALIZER = Entmax
