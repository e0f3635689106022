"""Diagnostics: what attention weights look like, row by row, and over many rows.

Functions of weights ``[..., T, S]`` with any leading axes (``ar.attention_weights`` gives those of
N heads as ``[..., N, T, S]``): pure, jit-able, differentiable. They give a number for each row,
``[..., T]``, float32 (float64 for float64 weights).

- A row counts as **shares**, ``|w_j| / sum_j |w_j|``: entropy is that of the shares. For softmax,
  sparsemax and the like these are the weights themselves (16-bit ones are made to sum to 1 again);
  rows that do not sum to 1 (sigmoid, relu) are judged by their spread, not by their sum, and
  negative weights (differential attention) by their size. ``max_weight`` takes the row as it is.
- A row of zeros (it sees no key) is **dead**: every diagnostic of it is 0, with gradient 0, and
  ``summary`` counts it apart.
- Half of the rows may be one-hot while the mean looks healthy: see the quantiles in ``summary``.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attn_research import numerics


def dead_rows(weights: Any) -> jax.Array:
    """Rows that are all 0 (in float32: no weight above 4e-31): boolean ``[..., T]``.

    >>> print(dead_rows(jnp.array([[0.0, 1.0], [0.0, 0.0]])))
    [False  True]
    """
    magnitudes = _magnitudes(weights)
    return magnitudes.max(-1, initial=0) < _least(magnitudes.dtype)


def entropy(weights: Any) -> jax.Array:
    """``-sum_j p_j log p_j`` of the shares, in nats: 0 (one key) to log S (uniform).

    0 log 0 is 0, and the derivative by a weight of 0, which is infinite, is taken to be that of its
    part in the sum of the row alone: finite.

    >>> print(entropy(jnp.array([[0.25, 0.25, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0]])).round(4))
    [1.0397 0.    ]

    Source: Shannon 1948; of attention: Clark et al. 2019; its collapse: Zhai et al. 2023.
    """
    shares, _ = _shares(weights)
    safe = jnp.where(shares < jnp.finfo(shares.dtype).tiny, 1, shares)
    return jnp.sum(-safe * jnp.log(safe), -1)


def effective_keys(weights: Any) -> jax.Array:
    """``exp(entropy)``: n for a row that is uniform over n keys (Hill 1973, order 1). Dead: 0.

    >>> print(effective_keys(jnp.array([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])).round(4))
    [2.     1.3841]
    """
    return jnp.where(dead_rows(weights), 0, jnp.exp(entropy(weights)))


def participation(weights: Any) -> jax.Array:
    """``1 / sum_j p_j^2``: the effective number of keys that forgets small shares (Hill's order 2,
    the inverse participation ratio). Never above ``effective_keys``. Dead: 0.

    >>> print(participation(jnp.array([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])).round(4))
    [2.     1.2195]
    """
    shares, alive = _shares(weights)
    squares = jnp.sum(shares**2, -1)
    return jnp.where(alive, 1 / jnp.where(alive, squares, 1), 0)


def max_weight(weights: Any) -> jax.Array:
    """The largest ``|w_j|`` of the row as it is.

    >>> print(max_weight(jnp.array([[0.25, 0.75], [0.5, 0.25]])))
    [0.75 0.5 ]
    """
    return jnp.where(dead_rows(weights), 0, _magnitudes(weights).max(-1, initial=0))


def distance_to_diagonal(weights: Any, expected: Any = None) -> jax.Array:
    """``sum_j p_j |j - expected_i|``: how far, in keys, a query looks from where it should.

    ``expected`` is broadcastable to ``[..., T]``, in key positions. None is the straight line from
    the first key to the last, ``i (S - 1) / (T - 1)`` (0 if T = 1): i itself for T = S. For padded
    sequences give the line of the real lengths, for a causal offset ``i + offset``.

    >>> print(distance_to_diagonal(jnp.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])))
    [0.  0.5]
    """
    shares, _ = _shares(weights)
    T, S = shares.shape[-2:]
    if expected is None:
        expected = np.arange(T) * ((S - 1) / max(T - 1, 1))
    expected = jnp.asarray(expected, shares.dtype)
    _check_broadcast("expected", expected, shares.shape[:-1])
    return jnp.sum(shares * jnp.abs(jnp.arange(S) - expected[..., None]), -1)


def jacobian_norm(weights: Any) -> jax.Array:
    """Frobenius norm of the softmax Jacobian ``J = diag(p) - p p^T`` at the shares p.

    ``|J|^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2``: 0 for a one-hot row, through which no gradient
    reaches the logits; ``sqrt(S - 1) / S`` for a uniform one; at most 1/2 (two equal keys). (The
    spectral norm is at most this. For rows of another normalizer it tells what softmax would do
    there, not what that normalizer does.)

    Computed without the cancellation in that sum, also right at saturated rows: m the largest
    share, r the sum of the others, u = p / r over those,
    ``|J| = r sqrt(m^2 (1 + 2 sum u^2) + sum (1 - 2p) u^2 + (r sum u^2)^2)``.

    >>> norms = jacobian_norm(jnp.array([[0.5, 0.5], [0.9, 0.1], [1.0, 1e-9]]))
    >>> print([f"{x:.4g}" for x in norms.tolist()])
    ['0.5', '0.18', '2e-09']
    """
    shares, alive = _shares(weights)
    if not shares.shape[-1]:
        return shares.sum(-1)
    top = jnp.arange(shares.shape[-1]) == jnp.argmax(shares, -1, keepdims=True)
    largest = jnp.where(top, shares, 0).sum(-1)
    others = jnp.where(top, 0, shares)
    scaled, size = _over_largest(others)
    total = scaled.sum(-1, keepdims=True)
    squares = (scaled / jnp.where(total < _least(total.dtype), 1, total)) ** 2
    rest, spread = (total * size)[..., 0], squares.sum(-1)
    inside = largest**2 * (1 + 2 * spread) + (rest * spread) ** 2
    inside = inside + ((1 - 2 * others) * squares).sum(-1)
    return rest * jnp.sqrt(jnp.where(alive, inside, 1))


def summary(
    weights: Any,
    quantiles: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95),
    where: Any = None,
    *,
    per_head: bool = False,
    expected: Any = None,
) -> dict[str, jax.Array]:
    """Mean and quantiles of every diagnostic over the rows that are alive.

    Args:
      weights: ``[..., T, S]``.
      quantiles: known numbers in 0 .. 1; between two rows they are interpolated linearly.
      where: boolean, broadcastable to ``[..., T]``: False leaves a query out (padding), whatever
        its weights are. For ``[batch, T]`` and weights ``[batch, N, T, S]``: ``where[:, None]``.
      per_head: keeps axis -3 of ``weights``: results are ``[N]`` in place of scalars.
      expected: see ``distance_to_diagonal``.

    Returns:
      ``"<diagnostic>/mean"`` and ``"<diagnostic>/q<quantile>"`` (q0, q0.5, q1) for each of
      ``entropy``, ``effective_keys``, ``participation``, ``max_weight``, ``distance_to_diagonal``
      and ``jacobian_norm``: NaN if no row is alive, or if one of them holds NaN. ``"rows/alive"``
      and ``"rows/dead"``: int32, how many rows that are not left out see something, and nothing.

    >>> stats = summary(jnp.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]]), quantiles=(0.5,))
    >>> {name: round(float(x), 4) for name, x in stats.items() if name.startswith(("ent", "rows"))}
    {'entropy/mean': 0.3466, 'entropy/q0.5': 0.3466, 'rows/alive': 2.0, 'rows/dead': 1.0}
    """
    weights = _check("weights", weights, per_head)
    if not all(0 <= q <= 1 for q in quantiles):
        raise ValueError(f"quantiles must be in 0 .. 1: got {quantiles}")
    counted = _check_flags("where", where, weights.shape[:-1])
    weights = jnp.where(counted[..., None], weights, 0)
    dead = dead_rows(weights)
    alive = _flatten(~dead & counted, per_head)
    diagnostics = {
        "entropy": entropy(weights),
        "effective_keys": effective_keys(weights),
        "participation": participation(weights),
        "max_weight": max_weight(weights),
        "distance_to_diagonal": distance_to_diagonal(weights, expected),
        "jacobian_norm": jacobian_norm(weights),
    }
    out = {}
    for name, rows in diagnostics.items():
        rows = _flatten(rows, per_head)
        out[f"{name}/mean"] = mean = jnp.where(alive, rows, 0).sum(-1) / alive.sum(-1)
        for q, value in zip(quantiles, _quantiles(rows, alive, quantiles), strict=True):
            digits = repr(float(q)).removesuffix(".0")
            out[f"{name}/q{digits}"] = jnp.where(jnp.isnan(mean), jnp.nan, value)
    out["rows/alive"] = alive.sum(-1, dtype=jnp.int32)
    out["rows/dead"] = _flatten(dead & counted, per_head).sum(-1, dtype=jnp.int32)
    return out


def logit_statistics(logits: Any, visible: Any = None, per_head: bool = False) -> dict[str, Any]:
    """``mean``, ``std`` and ``max`` of the logits ``[..., T, S]`` over the visible pairs, and
    ``row_std``, their spread about the mean of their row: all that softmax sees of them.

    ``visible`` is boolean, broadcastable to ``logits`` (``mask.as_array(T, S)`` of an ``ar.masks``
    mask); logits of -inf are not visible either. ``per_head`` keeps axis -3. Without any visible
    pair: NaN.

    >>> stats = logit_statistics(jnp.array([[1.0, 3.0], [5.0, -jnp.inf]]))
    >>> {name: round(float(x), 4) for name, x in stats.items()}
    {'mean': 3.0, 'std': 1.633, 'row_std': 0.8165, 'max': 5.0}
    """
    logits = _check("logits", logits, per_head)
    visible = _check_flags("visible", visible, logits.shape) & (logits != -jnp.inf)
    logits = jnp.where(visible, logits, 0)
    _, size = _over_largest(jnp.abs(logits).reshape(logits.size))
    scaled = logits / size
    axes = tuple(a for a in range(-logits.ndim, 0) if not (per_head and a == -3))
    pairs = visible.sum(axes, keepdims=True)

    def mean_of(x: jax.Array) -> jax.Array:
        return jnp.where(visible, x, 0).sum(axes, keepdims=True) / pairs

    def spread_about(center: jax.Array) -> jax.Array:
        variance = mean_of((scaled - center) ** 2)
        return jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1)), variance)

    mean = mean_of(scaled)
    row_mean = scaled.sum(-1, keepdims=True) / jnp.maximum(visible.sum(-1, keepdims=True), 1)
    top = jnp.max(scaled, axes, keepdims=True, initial=-jnp.inf, where=visible)
    top = jnp.where(pairs > 0, top, jnp.nan)
    out = {"mean": mean, "std": spread_about(mean), "row_std": spread_about(row_mean), "max": top}
    return {name: x.squeeze(axes) * size[0] for name, x in out.items()}


def _magnitudes(weights: Any) -> jax.Array:
    weights = _check("weights", weights)
    return jnp.where(weights < 0, -weights, weights)  # unlike abs, of derivative 1 at 0


def _shares(weights: Any) -> tuple[jax.Array, jax.Array]:
    """``|w| / sum |w|`` (0 in dead rows), and which rows ``[..., T]`` are alive."""
    magnitudes, alive = _magnitudes(weights), ~dead_rows(weights)
    row = alive[..., None]
    scaled = jnp.where(row, _over_largest(magnitudes)[0], 0)
    return scaled / jnp.where(row, scaled.sum(-1, keepdims=True), 1), alive


def _over_largest(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``x / size``, and ``size [..., 1]``, the largest of ``x [..., S] >= 0``, held constant: so
    that no sum or square overflows. XLA multiplies by 1 / size, which must be a normal number."""
    size = lax.stop_gradient(x.max(-1, keepdims=True, initial=0))
    most = 1 / float(jnp.finfo(x.dtype).tiny)
    size = jnp.where(size < _least(x.dtype), 1, jnp.minimum(size, most))
    return x / size, size


def _least(dtype: Any) -> float:
    """What is smaller is 0: 4e-31 in float32. Its inverse leaves room for sums of derivatives."""
    return float(jnp.finfo(dtype).tiny) ** 0.8


def _flatten(rows: jax.Array, per_head: bool) -> jax.Array:
    """``[..., T]`` -> ``[R]``, or ``[..., N, T]`` -> ``[N, R]``."""
    if not per_head:
        return rows.reshape(rows.size)
    rows = jnp.moveaxis(rows, -2, 0)
    return rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))


def _quantiles(rows: jax.Array, alive: jax.Array, quantiles: tuple[float, ...]) -> list[jax.Array]:
    """Those of ``rows [..., R]`` where ``alive``, as in ``numpy.quantile``; any number for none."""
    if not rows.shape[-1]:
        return [rows.sum(-1)] * len(quantiles)
    ordered = jnp.sort(jnp.where(alive, rows, jnp.inf), -1)
    last = jnp.maximum(alive.sum(-1, keepdims=True) - 1, 0)
    out = []
    for q in quantiles:
        place = q * last.astype(rows.dtype)
        below = jnp.minimum(jnp.floor(place).astype(jnp.int32), last)
        ends = (below, jnp.minimum(below + 1, last))
        low, high = (jnp.take_along_axis(ordered, end, -1) for end in ends)
        between = (place > below) & (low < high)  # else, inf - inf
        out.append(jnp.where(between, low + (high - low) * (place - below), low)[..., 0])
    return out


def _check(name: str, x: Any, per_head: bool = False) -> jax.Array:
    """``x [..., T, S]`` as an array of at least float32."""
    x = jnp.asarray(x)
    shape = "[..., N, T, S]" if per_head else "[..., T, S]"
    if x.ndim < 2 + per_head:
        raise ValueError(f"{name} must be {shape}: got shape {x.shape}")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name} must be floating: got {x.dtype}")
    return x.astype(numerics.wide(x.dtype))


def _check_flags(name: str, flags: Any, shape: tuple[int, ...]) -> jax.Array:
    """``flags`` (None: all True) broadcast to ``shape``."""
    flags = jnp.asarray(True if flags is None else flags)
    if flags.dtype != jnp.bool_:
        raise TypeError(f"{name} must be boolean: got {flags.dtype}")
    _check_broadcast(name, flags, shape)
    return jnp.broadcast_to(flags, shape)


def _check_broadcast(name: str, x: jax.Array, shape: tuple[int, ...]) -> None:
    try:
        fits = jnp.broadcast_shapes(x.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} must broadcast to {list(shape)}: got {list(x.shape)}")
