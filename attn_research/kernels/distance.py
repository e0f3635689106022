"""``-|q - k|^2`` for all pairs of a block, by one matrix product where that keeps the digits.

``2 q.k - |q|^2 - |k|^2`` has the rounding error of its terms, however near the vectors are to each
other. So what queries and keys have in common is taken away first, where that is exact; and where
they are still large, or may overflow, the differences are taken, one vector at a time.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attn_research.numerics import inner, vary, varying, wide

# Of the terms of logits. Up to here contexts have at most 1.4 times the error that they have by
# differences (means of |context - exact|, d = 8 and 64); at 60 it is 2 to 3 times.
_LARGEST = 32.0


def prepare(query: jax.Array, key: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``query [..., T, N, E]`` and ``key [..., S, K, E]`` moved alike, and with two features
    more: ``[2 q, -|q|^2, -1]`` and ``[k, 1, |k|^2]``, whose product is minus the squared distance.
    Instead of -1 there is 0 where differences must be taken.

    ``factor`` is the largest number by which the squares will be multiplied.
    """
    dtype = wide(query.dtype, key.dtype)
    top = float(jnp.finfo(dtype).max) / 4  # beyond this the differences may overflow
    query, key = (jnp.clip(x.astype(dtype), -top, top) for x in (query, key))
    shape, key_heads = query.shape, key.shape[-2]
    query = query.reshape(*shape[:-2], key_heads, shape[-2] // key_heads, shape[-1])
    key = key[..., None, :]
    q, k = lax.stop_gradient((query, key))

    def largest(x: jax.Array) -> jax.Array:  # [..., 1, K, 1, E]
        return jnp.max(jnp.abs(x), axis=(-4, -2), keepdims=True, initial=0)

    # From within a factor of 2 of a number, that can be taken away without rounding.
    centre = k.mean(-4, keepdims=True)
    away = jnp.maximum(largest(q - centre), largest(k - centre))
    centre = jnp.where(away < jnp.abs(centre) / 2, centre, 0)  # nor if it is inf
    terms = [largest(jnp.sum(jnp.square(x - centre), -1, keepdims=True)) for x in (q, k)]
    near = factor * (terms[0] + terms[1]) < _LARGEST
    query, key = query - centre, key - centre
    norms = [inner(x, x)[..., None] for x in (query, key)]
    product = jnp.broadcast_to(jnp.where(near, -1, 0).astype(dtype), norms[0].shape)
    query = jnp.concatenate([2 * query, -norms[0], product], -1)
    key = jnp.concatenate([key, jnp.ones_like(norms[1]), norms[1]], -1)
    return query.reshape(*query.shape[:-3], shape[-2], shape[-1] + 2), key[..., 0, :]


def near(query: jax.Array) -> jax.Array:
    """Whether ``minus_squares`` may take the product, for all that ``prepare`` made of a head."""
    return query[..., -1].min() < 0


@jax.custom_vjp
def minus_squares(x: jax.Array, y: jax.Array, far: jax.Array) -> jax.Array:
    """``x [rows, E]``, ``y [cols, E]``, of one dtype -> ``[rows, cols]``; -inf where it overflows.

    To exchange x and y changes no bit.

    >>> print(minus_squares(jnp.array([[1e6, 0.0]]), jnp.array([[1e6, 3.0]]), jnp.array(True)))
    [[-9.]]
    """
    return values(x, y, far)


def values(x: jax.Array, y: jax.Array, far: jax.Array) -> jax.Array:
    """The same, with derivatives as JAX makes them."""
    return lax.cond(far, _by_differences, by_product, x, y)


def by_product(x: jax.Array, y: jax.Array) -> jax.Array:
    product = jnp.einsum("re,ce->rc", x, y, precision=lax.Precision.HIGHEST)
    return 2 * product - (inner(x, x)[:, None] + inner(y, y))


def _by_differences(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.map(lambda one: -jnp.sum(jnp.square(one - y), -1), x)


def _forward(x: jax.Array, y: jax.Array, far: jax.Array) -> Any:
    out = values(x, y, far)
    return out, (x, y, far, out)


def _backward(kept: Any, g: jax.Array) -> Any:
    x, y, far, out = kept
    g = jnp.where(out == -jnp.inf, 0, g)
    return *lax.cond(far, _back_by_differences, _back_by_product, g, x, y), None


def _back_by_product(g: jax.Array, x: jax.Array, y: jax.Array) -> Any:
    def product(spec: str, x: jax.Array) -> jax.Array:
        return jnp.einsum(spec, g, x, precision=lax.Precision.HIGHEST)

    d_x = product("rc,ce->re", y) - x * g.sum(1)[:, None]
    return 2 * d_x, 2 * (product("rc,re->ce", x) - y * g.sum(0)[:, None])


def _back_by_differences(g: jax.Array, x: jax.Array, y: jax.Array) -> Any:
    def step(d_y: jax.Array, xs: Any) -> Any:
        slopes = 2 * xs[1][:, None] * (y - xs[0])
        return d_y - slopes, slopes.sum(0)

    start = vary(jnp.zeros_like(y), varying((x, y, g)))
    d_y, d_x = lax.scan(step, start, (x, g))
    return d_x, d_y


minus_squares.defvjp(_forward, _backward)
