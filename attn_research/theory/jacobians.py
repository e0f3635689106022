"""Jacobians of softmax, sparsemax and alpha-entmax as functions of the weights, and their norms.

``J[i, j] = d p_i / d z_j``. Everything takes weights ``p [..., S]`` whose rows sum to 1, or hold
nothing but 0 (a row that sees no key: its Jacobian is 0), and returns float32 (float64 for
float64). It works under jit, vmap and differentiation. With a scale, ``p = softmax(scale z)``, all
of it is times ``scale``.

Rows that are almost one-hot keep their relative accuracy: those are the ones that one asks about,
and there ``1 - sum p^2`` is all rounding. So ``1 - max p`` is taken as the sum of the others.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attn_research.numerics import wide


def softmax_jacobian(weights: Any) -> jax.Array:
    """``diag(p) - p p^T``, ``[..., S, S]``: derive ``p_i = exp(z_i) / sum_j exp(z_j)``.

    Bridle 1990, "Probabilistic Interpretation of Feedforward Classification Network Outputs".

    >>> print(softmax_jacobian(jnp.array([0.25, 0.75])))
    [[ 0.1875 -0.1875]
     [-0.1875  0.1875]]
    """
    return _centred(_weights(weights))


def sparsemax_jacobian(weights: Any) -> jax.Array:
    """``diag(s) - s s^T / |S|``, ``[..., S, S]``, s the indicator of the support S = {p_i > 0}.

    On the support ``p = z - tau`` with ``tau = (sum_S z - 1) / |S|``. It does not shrink as the
    logits grow, until one key is left: trace |S| - 1, spectral norm 1. Martins, Astudillo 2016,
    "From Softmax to Sparsemax", section 2.5.

    >>> print(sparsemax_jacobian(jnp.array([0.9, 0.1, 0.0])))
    [[ 0.5 -0.5  0. ]
     [-0.5  0.5  0. ]
     [ 0.   0.   0. ]]
    """
    p = _weights(weights)
    return _centred((p > 0).astype(p.dtype))


def entmax_jacobian(weights: Any, alpha: Any) -> jax.Array:
    """Alpha-entmax: ``diag(g) - g g^T / sum g``, ``g_i = p_i^(2 - alpha)`` if p_i > 0, else 0.

    On the support ``p_i = [(alpha - 1) z_i - tau]^(1 / (alpha - 1))``: ``dp_i = g_i (dz_i - t)``,
    and ``sum dp = 0`` gives t. ``[..., S, S]``. ``alpha`` is a number >= 1 or a traced scalar: 1 is
    softmax, 2 sparsemax. Peters, Niculae, Martins 2019, "Sparse Sequence-to-Sequence Models",
    proposition 2.

    >>> print(entmax_jacobian(jnp.array([0.25, 0.75, 0.0]), 1.5).round(3))
    [[ 0.317 -0.317  0.   ]
     [-0.317  0.317  0.   ]
     [ 0.     0.     0.   ]]
    """
    if isinstance(alpha, int | float) and not 1 <= alpha < jnp.inf:
        raise ValueError(f"alpha must be finite and at least 1 (which is softmax): got {alpha}")
    p = _weights(weights)
    alpha = jnp.asarray(alpha).astype(p.dtype)
    if alpha.ndim:
        raise ValueError(f"alpha must be a scalar: got shape {alpha.shape}")
    seen = p > 0
    log_g = (2 - alpha) * jnp.log(jnp.where(seen, p, 1))
    return _centred(jnp.where(seen, jnp.exp(jnp.minimum(log_g, 70)), 0))  # saturates at 2e30


def jacobian_trace(weights: Any) -> jax.Array:
    """``tr J = 1 - sum p^2`` of softmax, ``[...]``: from 0 (one-hot) to 1 - 1/S (uniform).

    The chance that two draws from p differ (Simpson 1949, "Measurement of Diversity").

    >>> print(jacobian_trace(jnp.array([[0.25, 0.75], [1.0, 1e-9]])))
    [3.75e-01 2.00e-09]
    """
    top, rest, others = _split(_weights(weights))
    return top * rest + rest - jnp.square(others).sum(-1)


def jacobian_frobenius_norm(weights: Any) -> jax.Array:
    """``|J|_F`` of softmax, ``[...]``: ``|J|_F^2 = m_2 - 2 m_3 + m_2^2``, ``m_k = sum_i p_i^k``.

    Sum ``p_i^2 (1 - p_i)^2`` on and ``p_i^2 p_j^2`` off the diagonal: the fourth powers cancel. As
    ``m_3 >= m_2^2`` (Cauchy-Schwarz), at most ``sqrt(m_2 - m_2^2) <= 1/2``; for uniform weights
    ``sqrt(S - 1) / S``.

    >>> print(jacobian_frobenius_norm(jnp.array([[0.25, 0.75], [1.0, 1e-9]])))
    [3.75e-01 2.00e-09]
    """
    top, rest, others = _split(_weights(weights))
    unit = _unit(rest)
    part = others / unit[..., None]
    m2, m3 = jnp.square(part).sum(-1), (part**3).sum(-1)
    square = (top * rest / unit) ** 2 + (1 + 2 * top**2) * m2 - 2 * unit * m3 + (unit * m2) ** 2
    return unit * jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def jacobian_spectral_bounds(weights: Any) -> tuple[jax.Array, jax.Array]:
    """Bounds ``[...]`` of the spectral norm of softmax's J, at most a factor 2 apart.

    With a >= b the two largest weights, ``max(a (1 - a), (a + b - (a - b)^2) / 2) <= |J|_2 <=
    min(a, 2 a (1 - a)) <= 1/2``. Below: ``u^T J u`` at u = e_a and (e_a - e_b) / sqrt(2). Above:
    J <= diag(p), and Gershgorin's discs, which reach to 2 p_i (1 - p_i). That 1/2 bounds it, met by
    a = b = 1/2, is in Boehning 1992, "Multinomial Logistic Regression Algorithm" (J <= (I - 11^T/S)
    / 2); for every p-norm in Nair 2025, "Softmax is 1/2-Lipschitz".

    >>> print(*jacobian_spectral_bounds(jnp.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]])))
    [0.5     0.34375] [0.5 0.5]
    """
    top, rest, others = _split(_weights(weights))
    second = others.max(-1, initial=0)
    alone = top * rest
    pair = (alone + second * (1 - second) + 2 * top * second) / 2
    return jnp.maximum(alone, pair), jnp.minimum(top, 2 * alone)


def jacobian_spectral_norm(weights: Any) -> jax.Array:
    """``|J|_2``, the largest eigenvalue l of softmax's ``diag(p) - p p^T``, ``[...]``: <= 1/2.

    Between the two largest weights it solves the secular equation ``sum_i p_i / (p_i - l) = 0``
    (Golub 1973, "Some Modified Matrix Eigenvalue Problems"). Bisection: about 30 passes over the
    weights (60 in float64), no S x S matrix. Derivatives of any order are exact; where there is
    none (one-hot rows, three equal largest weights) the gradient is finite.

    >>> print(jacobian_spectral_norm(jnp.array([[0.5, 0.5, 0.0], [0.6, 0.3, 0.1]])).round(4))
    [0.5    0.4075]
    """
    first, rest, others = _split(_weights(weights))
    second, _, others = _split(others)
    unit = _unit(rest)
    nu = _root(first, second / unit, others / unit[..., None], unit)
    return second + nu * unit * (first - second)


def _secular(
    nu: jax.Array, first: jax.Array, second: jax.Array, others: jax.Array, unit: jax.Array
) -> jax.Array:
    """The secular equation, cleared of its poles: negative below its root nu, positive above.

    All weights but the first are divided by ``unit``, and ``l / unit = second + nu (first - unit
    second)``. Weights may coincide.
    """
    step = (nu * (first - unit * second))[..., None]
    gap = second[..., None] - others + step
    pulls = step * others / jnp.where(gap == 0, 1, gap)
    return nu * first - (1 - unit * nu) * (second + pulls.sum(-1))


@jax.custom_jvp
def _root(first: jax.Array, second: jax.Array, others: jax.Array, unit: jax.Array) -> jax.Array:
    """The nu at which ``_secular`` is 0."""
    pair = first + unit * second
    low = second / jnp.where(pair == 0, 1, pair)  # the others do not pull, or with all they have
    high = second + others.sum(-1)

    def halve(_: Any, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        middle = (low + high) / 2
        above = _secular(middle, first, second, others, unit) > 0
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    # high <= S low: this many halvings leave a bracket of the width of a rounding error
    steps = jnp.finfo(first.dtype).nmant + 2 + others.shape[-1].bit_length()
    return lax.fori_loop(0, steps, halve, (low, high))[0]


@_root.defjvp
def _root_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    nu = _root(*primals)
    _, moved = jax.jvp(lambda *weights: _secular(nu, *weights), primals, tangents)
    _, slope = jax.jvp(lambda nu: _secular(nu, *primals), (nu,), (jnp.ones_like(nu),))
    return nu, -moved / jnp.where(slope == 0, 1, slope)


def _weights(weights: Any) -> jax.Array:
    weights = jnp.asarray(weights)
    if not weights.ndim:
        raise ValueError("weights must be [..., S]: got a scalar")
    return weights.astype(wide(weights.dtype))


def _split(p: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The largest weight ``[...]``, the sum of the others ``[...]``, and p with 0 in its place."""
    if not p.shape[-1]:
        return p.sum(-1), p.sum(-1), p
    is_top = jnp.arange(p.shape[-1]) == jnp.argmax(p, -1)[..., None]
    others = jnp.where(is_top, 0, p)
    return jnp.where(is_top, p, 0).sum(-1), others.sum(-1), others


def _unit(rest: jax.Array) -> jax.Array:
    """A constant of the size of ``rest``, to divide small weights by before they are multiplied."""
    return lax.stop_gradient(jnp.where(rest == 0, 1, rest))


def _centred(g: jax.Array) -> jax.Array:
    """``diag(g) - g g^T / sum g``, ``[..., S, S]``; 0 if g is."""
    total = g.sum(-1, keepdims=True)
    share = g / jnp.where(total == 0, 1, total)
    _, rest, others = _split(share)
    left = jnp.where(others == 0, rest[..., None], 1 - others)  # 1 - share
    outer = g[..., :, None] * share[..., None, :]
    return jnp.where(jnp.eye(g.shape[-1], dtype=bool), (g * left)[..., None], 0 - outer)
