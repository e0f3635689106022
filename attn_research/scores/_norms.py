"""Norms that neither overflow nor underflow, for the scores that divide by them."""

import jax
import jax.numpy as jnp
from jax import lax

from attn_research.numerics import wide


def power_of_two(x: jax.Array) -> jax.Array:
    """The power of two nearest to ``x > 0``, but a normal number, and its inverse too: to multiply
    or divide by it rounds nothing. A constant for derivatives.

    >>> print(power_of_two(jnp.array([0.7, 5.0, 1e-45, 3e38])))
    [5.0000000e-01 4.0000000e+00 1.1754944e-38 8.5070592e+37]
    """
    info = jnp.finfo(x.dtype)
    nearest = lax.reduce_precision(lax.stop_gradient(x), info.nexp, 0)
    return jnp.clip(nearest, float(info.tiny), 1 / float(info.tiny))


def largest(x: jax.Array) -> jax.Array:
    """``max |x|`` over the last axis, ``[..., 1]``. A constant for derivatives."""
    return jnp.max(jnp.abs(lax.stop_gradient(x)), axis=-1, keepdims=True, initial=0)


def unit(x: jax.Array) -> jax.Array:
    """``x [..., D] / |x|``, at least float32. Vectors without a normal number in them count as 0
    and give 0, with derivative 0 (where there is none: the mean of those in all directions).

    >>> print(unit(jnp.array([[3e-30, 4e-30], [0.0, 2.0**100], [0.0, 0.0]])))
    [[0.6 0.8]
     [0.  1. ]
     [0.  0. ]]
    """
    x = x.astype(wide(x.dtype))
    top = largest(x)
    zero = top < float(jnp.finfo(x.dtype).tiny)
    x = jnp.where(zero, 0, x) / jnp.where(zero, 1, power_of_two(top))
    squares = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x / jnp.sqrt(jnp.where(zero, 1, squares))
