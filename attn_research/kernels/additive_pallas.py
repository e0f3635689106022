"""``additive.py`` for GPUs: the same sums, as Pallas kernels that JAX compiles by Triton.

Not yet run on a GPU: tested in interpret mode on the CPU, and lowered to Triton. A program has a
tile in registers and goes through the axis that is summed, so that nothing of three axes is made.
The grid has one axis, since Triton has three and each ``vmap`` takes one.
JAX 0.11.2 announces that it will drop Triton: there this warns of it when it is compiled.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from attn_research.kernels import additive

ROWS, COLS, FEATURES = 32, 64, 32  # of tiles, powers of two; a guess until it is measured

Function = Callable[[jax.Array, jax.Array], Any]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def sum_tanh(query: jax.Array, key: jax.Array, v: jax.Array, interpret: bool = False) -> jax.Array:
    """``query [rows, E]``, ``key [cols, E]``, ``v [E]`` -> ``[rows, cols]``, all of one dtype, in
    reverse mode alone; ``interpret`` is for machines without a GPU.

    >>> half = jnp.full((1, 1), 0.5)
    >>> f"{sum_tanh(half, half, jnp.ones(1), True)[0, 0]:.4f}"  # tanh(1)
    '0.7616'
    """
    return values(query, key, v, interpret)


def values(query: jax.Array, key: jax.Array, v: jax.Array, interpret: bool = False) -> jax.Array:
    """The same, not to be differentiated."""
    rows, cols = len(query), len(key)
    moderate, query, key = _prepare(_pad(query, ROWS), _pad(key, COLS))
    E = len(v)
    if not E:
        return jnp.zeros((rows, cols), v.dtype)
    down, across = len(query) // ROWS, len(key) // COLS
    out = pl.pallas_call(
        _values_kernel,
        out_shape=jax.ShapeDtypeStruct((len(query), len(key)), v.dtype),
        grid=(down * across,),
        in_specs=[
            _whole(1),
            pl.BlockSpec((E, ROWS), lambda n: (0, n // across)),
            pl.BlockSpec((E, COLS), lambda n: (0, n % across)),
            _whole(E),
        ],
        out_specs=pl.BlockSpec((ROWS, COLS), lambda n: (n // across, n % across)),
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret,
    )(moderate, query.T, key.T, v)
    return out[:rows, :cols]


def _values_kernel(moderate: Any, query: Any, key: Any, v: Any, out: Any) -> None:
    """A tile of ``out``; ``query [E, ROWS]``, ``key [E, COLS]``."""

    def sums(tanh: Function) -> jax.Array:
        def step(e: Any, sums: jax.Array) -> jax.Array:
            return sums + v[e] * tanh(query[e, :][:, None], key[e, :][None])

        return lax.fori_loop(0, v.shape[0], step, jnp.zeros(out.shape, out.dtype))

    out[...] = lax.cond(moderate[0] != 0, lambda: sums(_by_factors), lambda: sums(_directly))


def _forward(query: jax.Array, key: jax.Array, v: jax.Array, interpret: bool) -> Any:
    return values(query, key, v, interpret), (query, key, v)


def _backward(interpret: bool, kept: Any, g: jax.Array) -> Any:
    query, key, v = kept
    d_query, along_v = _sums(query, key, g.T, interpret)
    d_key, _ = _sums(key, query, g, interpret)
    return d_query * v, d_key * v, along_v.sum(0)


sum_tanh.defvjp(_forward, _backward)


def _sums(x: jax.Array, y: jax.Array, g: jax.Array, interpret: bool) -> list[jax.Array]:
    """``x [I, E]``, ``y [J, E]``, ``g [J, I]``: sums over j of ``g_ji`` times the slope of
    ``tanh(x_i + y_j)``, and times itself, both ``[I, E]``."""
    I, E = x.shape  # noqa: E741
    J = len(y)
    x, y = (_pad(_pad(a, FEATURES, 1), size) for a, size in ((x, ROWS), (y, 1)))
    g = _pad(g, ROWS, 1)
    moderate, x, y = _prepare(x, y)
    down, across = x.shape[0] // ROWS, x.shape[1] // FEATURES
    tile = pl.BlockSpec((ROWS, FEATURES), lambda n: (n // across, n % across))
    sums = pl.pallas_call(
        _sums_kernel,
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2,
        grid=(down * across,),
        in_specs=[
            _whole(1),
            tile,
            pl.BlockSpec((J, FEATURES), lambda n: (0, n % across)),
            pl.BlockSpec((J, ROWS), lambda n: (0, n // across)),
        ],
        out_specs=[tile, tile],
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret,
    )(moderate, x, y, g)
    return [s[:I, :E] for s in sums]


def _sums_kernel(moderate: Any, x: Any, y: Any, g: Any, slopes: Any, values: Any) -> None:
    """A tile of both; ``y [J, FEATURES]``, ``g [J, ROWS]``."""

    def sums(slope_and_value: Function) -> tuple[jax.Array, jax.Array]:
        def step(j: Any, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            slope, value = slope_and_value(x[...], y[j, :][None])
            weight = g[j, :][:, None]
            return sums[0] + weight * slope, sums[1] + weight * value

        zeros = jnp.zeros(x.shape, x.dtype)
        return lax.fori_loop(0, y.shape[0], step, (zeros, zeros))

    slopes[...], values[...] = lax.cond(
        moderate[0] != 0, lambda: sums(_by_factors_both), lambda: sums(_directly_both)
    )


def _by_factors(E: jax.Array, F: jax.Array) -> jax.Array:
    return 1 - 2 / (1 + E * F)


def _directly(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.tanh(q + k)


def _by_factors_both(E: jax.Array, F: jax.Array) -> tuple[jax.Array, jax.Array]:
    r = 1 / (1 + E * F)
    return 4 * r * (1 - r), 1 - 2 * r


def _directly_both(q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
    tanh = jnp.tanh(q + k)
    return 1 - tanh * tanh, tanh


def _prepare(query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Whether the exponentials are used, as ``[1]`` integers, and they or what they are of."""
    moderate = additive.moderate(query, key)
    query, key = (jnp.where(moderate, jnp.exp(2 * x), x) for x in (query, key))
    return moderate.astype(jnp.int32)[None], query, key


def _whole(size: int) -> pl.BlockSpec:
    return pl.BlockSpec((size,), lambda n: (0,))


def _pad(x: jax.Array, size: int, axis: int = 0) -> jax.Array:
    """``x`` with zeros up to a multiple of ``size``, at least one."""
    missing = -x.shape[axis] % size or (0 if x.shape[axis] else size)
    widths = [(0, 0), (0, 0)]
    widths[axis] = (0, missing)
    return jnp.pad(x, widths)
