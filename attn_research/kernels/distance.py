"""``-|q - k|^2`` for all pairs of a block, by one matrix product where that keeps the digits.

``2 q.k - |q|^2 - |k|^2`` has the rounding error of its terms, however near the vectors are to each
other. So both are moved by the mean of the block's queries first, and where they are still large,
or may overflow, the differences are taken, one query at a time.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Terms of the logits up to here: a rounding error of about 1e-4, in float32, at most.
_LARGEST = 1024.0


@jax.custom_vjp
def minus_squares(query: jax.Array, key: jax.Array, factor: jax.Array) -> jax.Array:
    """``query [rows, E]``, ``key [cols, E]``, of one dtype -> ``[rows, cols]``; -inf: it overflows.

    ``factor`` is by what the result will be multiplied.

    >>> print(minus_squares(jnp.array([[1e6, 0.0]]), jnp.array([[1e6, 3.0]]), jnp.array(1.0)))
    [[-9.]]
    """
    args = *_centred(query, key), query, key
    return lax.cond(_is_near(args, factor), _by_product, _by_differences, *args)


def _centred(query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    centre = query.mean(0)
    return query - centre, key - centre


def _is_near(args: Any, factor: jax.Array) -> jax.Array:
    squares = [jnp.sum(x * x, -1).max(initial=0) for x in args[:2]]
    return jnp.abs(factor) * (squares[0] + squares[1]) < _LARGEST  # not if that is NaN


def _by_product(query: jax.Array, key: jax.Array, *_: jax.Array) -> jax.Array:
    product = jnp.einsum("re,ce->rc", query, key, precision=lax.Precision.HIGHEST)
    (q, mean_q), (k, mean_k) = _squares(query), _squares(key)
    return (2 * product - k - q[:, None]) - (mean_q + mean_k)


def _squares(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of each vector the square of its length, as a small difference from their mean: what is large
    is rounded once a pair, not twice more."""
    squares = x * x
    mean = squares.mean(0)
    return jnp.sum(squares - mean, -1), mean.sum()


def _by_differences(_: Any, __: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    return lax.map(lambda q: -jnp.sum(jnp.square(q - key), -1), query)


def _forward(query: jax.Array, key: jax.Array, factor: jax.Array) -> Any:
    out = minus_squares(query, key, factor)
    return out, (query, key, factor, out)


def _backward(kept: Any, g: jax.Array) -> Any:
    query, key, factor, out = kept
    g = jnp.where(out == -jnp.inf, 0, g)
    args = *_centred(query, key), query, key
    near = _is_near(args, factor)
    d_query, d_key = lax.cond(near, _back_by_product, _back_by_differences, g, *args)
    return d_query, d_key, jnp.zeros_like(factor)


def _back_by_product(g: jax.Array, query: jax.Array, key: jax.Array, *_: jax.Array) -> Any:
    def product(spec: str, x: jax.Array) -> jax.Array:
        return jnp.einsum(spec, g, x, precision=lax.Precision.HIGHEST)

    d_query = product("rc,ce->re", key) - query * g.sum(1)[:, None]
    return 2 * d_query, 2 * (product("rc,re->ce", query) - key * g.sum(0)[:, None])


def _back_by_differences(
    g: jax.Array, _: Any, __: Any, query: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def step(d_key: jax.Array, xs: Any) -> Any:
        slopes = 2 * xs[1][:, None] * (key - xs[0])
        return d_key - slopes, slopes.sum(0)

    d_key, d_query = lax.scan(step, jnp.zeros_like(key), (query, g))
    return d_query, d_key


minus_squares.defvjp(_forward, _backward)
