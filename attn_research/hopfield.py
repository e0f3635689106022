"""Modern Hopfield networks: attention that is repeated over the keys before it reads the values.

Ramsauer et al. 2021, "Hopfield Networks is All You Need". It lives here and not in ``scores/``
because it is no score: between its steps the softmax over all keys changes the query.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_research.attend import attend, attend_with_lse
from attn_research.numerics import clip_finite, wide


def hopfield(
    query: Any,
    key: Any,
    value: Any,
    *,
    beta: Any,
    steps: int = 1,
    bias: Any = None,
    mask: Any = None,
    normalizer: Any = "softmax",
    implementation: str | None = None,
) -> jax.Array:
    """Looks up the values after ``steps - 1`` updates of the queries.

    An update is the paper's equation 3, ``xi <- sum_j softmax_j(beta xi . k_j) k_j``; the last of
    the ``steps`` mixes the values instead of the keys: ``sum_j softmax_j(beta xi . k_j) v_j``. So
    ``steps=1`` is ``attend(query, key, value, scale=beta)``, and with ``value=key`` the result is
    xi after ``steps`` updates.

    Args:
      query: the state patterns xi, ``[..., T, N, D]`` (``[T, D]`` for one head).
      key: the stored patterns, ``[..., S, K, D]``, of the same feature size.
      value: ``[..., S, K, Dv]``.
      beta: the inverse temperature: a number, a traced scalar or an array ``[N]``, and positive.
        Large: the nearest pattern is retrieved; small: a mean of many (a metastable state).
      steps: at least 1, known before tracing.
      bias, mask, normalizer, implementation: as for ``attend``, the same in every step. With
        ``"sparsemax"`` it is the sparse Hopfield network of Hu et al. 2023.

    Returns:
      ``[..., T, N, Dv]`` in the dtype of ``value``. Between steps queries are float32 (float64 if
      query or key is). A query that sees no key gets 0, and no gradient flows through it.

    >>> patterns = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> query, value = jnp.array([[0.6, 0.4]]), jnp.array([[10.0], [20.0]])
    >>> for steps in (1, 2, 4):  # towards pattern 0
    ...     print(hopfield(query, patterns, value, beta=4.0, steps=steps).round(1))
    [[13.1]]
    [[11.8]]
    [[10.3]]
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ValueError(f"steps must be a positive integer: got {steps!r}")
    _check_beta(beta)
    options: Any = dict(
        scale=beta, bias=bias, mask=mask, normalizer=normalizer, implementation=implementation
    )
    if steps > 1:
        out = jax.eval_shape(lambda: attend(query, key, value, **options))  # checks all of them
        query, key = jnp.asarray(query), jnp.asarray(key)
        dtype = wide(query.dtype, key.dtype)
        start = jnp.broadcast_to(query.astype(dtype), (*out.shape[:-1], query.shape[-1]))

        def update(xi: jax.Array, _: None) -> tuple[jax.Array, None]:
            return attend(xi, key, key.astype(dtype), **options), None

        query, _ = jax.lax.scan(update, start, None, length=int(steps) - 1)
    return attend(query, key, value, **options)


def energy(query: Any, key: Any, *, beta: Any, bias: Any = None, mask: Any = None) -> jax.Array:
    """The energy that every softmax update of ``hopfield`` lowers or keeps.

    ``E(xi) = |xi|^2 / 2 - (1 / beta) log sum_j exp(beta xi . k_j + bias_j)`` over the visible keys:
    equation 2 of the paper without ``log(S) / beta + max_j |k_j|^2 / 2``, which does not depend on
    xi and makes it at least 0.

    Args:
      query, key, beta, bias, mask: as for ``hopfield``.

    Returns:
      ``[..., N, T]`` (``[T]`` for one head), float32 or float64; 0 where no key is visible.

    >>> patterns = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> print(energy(jnp.array([[0.0, 0.0], [1.0, 0.0]]), patterns, beta=1.0).round(3))
    [-0.693 -0.813]
    """
    _check_beta(beta)
    query, key = jnp.asarray(query), jnp.asarray(key)
    _, lse = attend_with_lse(query, key, key[..., :1], scale=beta, bias=bias, mask=mask)
    beta = jnp.asarray(beta, lse.dtype)
    if beta.ndim:
        beta = beta[0] if query.ndim == 2 else beta[:, None]
    seeing = lse != -jnp.inf
    rows = seeing if query.ndim == 2 else seeing.swapaxes(-1, -2)  # [..., T, N]
    xi = jnp.where(rows[..., None], query.astype(lse.dtype), 0)
    squares = jnp.sum(jnp.square(xi), axis=-1)
    squares = squares if query.ndim == 2 else squares.swapaxes(-1, -2)
    return squares / 2 - clip_finite(jnp.where(seeing, lse, 0) / beta)


def _check_beta(beta: Any) -> None:
    number = isinstance(beta, int | float) and not isinstance(beta, bool)
    if not number and not hasattr(beta, "dtype"):
        raise TypeError(f"beta must be a positive number: got {beta!r}")
    if not isinstance(beta, jax.core.Tracer) and not np.all(np.asarray(beta) > 0):
        raise ValueError(f"beta must be positive: got {beta}")
