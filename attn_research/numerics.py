"""What keeps NaN out: contractions that saturate instead of overflowing, and cleaned inputs."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

# What stands in for vectors that must not be read. Not 0: there norms have no derivative, and a
# user's score function may divide by one.
HARMLESS = 1


def wide(*dtypes: Any) -> Any:
    """The dtype of logits and sums: float32, or float64 as soon as one input is float64.

    >>> wide(jnp.bfloat16, jnp.float16), wide(jnp.float64, jnp.float32)
    (dtype('float32'), dtype('float64'))
    """
    return functools.reduce(jnp.promote_types, dtypes, jnp.dtype(jnp.float32))


@jax.custom_jvp
def clip_finite(x: jax.Array) -> jax.Array:
    """Pulls +-inf to the largest finite numbers, with derivative 0; NaN stays."""
    top = float(jnp.finfo(x.dtype).max)
    return jnp.clip(x, -top, top)


@clip_finite.defjvp
def _clip_finite_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # That of jnp.clip halves what is at the limit, which costs a pass over the array.
    return clip_finite(*primals), jnp.where(jnp.isinf(primals[0]), 0, tangents[0])


def grow(x: jax.Array, power: Any) -> jax.Array:
    """``x * power``: where that overflows, the largest finite number; what is inf already stays."""
    return jnp.where(jnp.isfinite(x), clip_finite(x * power), x)


def inner(x: jax.Array, y: jax.Array) -> jax.Array:
    """``sum(x * y, -1)``, which XLA's CPU backend takes fifty times as long for."""
    return jnp.einsum("...d,...d->...", x, y, precision=lax.Precision.HIGHEST)


def three_axes(x: jax.Array) -> jax.Array:
    """``x`` with axes of 1 in front, as many as three need."""
    return x.reshape((1,) * (3 - x.ndim) + x.shape)


def clean(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits ``x [..., D]`` into vectors that are finite and the flag ``[...]`` of those that were
    not (these become ``HARMLESS``), so that what they spoil can be decided pair by pair."""
    ok = jnp.isfinite(x).all(-1)  # not by a maximum: that of XLA on a CPU may lose NaN
    return jnp.where(ok[..., None], x, HARMLESS), ~ok


def varying(tree: Any) -> frozenset[str]:
    """The axes of a mesh over which something in ``tree`` varies, within ``shard_map``."""
    axes: frozenset[str] = frozenset()
    for x in jax.tree.leaves(tree):
        kind = jax.typeof(x)
        axes |= kind.vma if hasattr(kind, "vma") else kind.mat.varying  # by version
    return axes


def vary(tree: Any, axes: frozenset[str]) -> Any:
    """``tree``, varying over these axes, as ``shard_map`` wants to have all that a loop carries."""

    def one(x: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - varying(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(one, tree) if axes else tree


def _plain(spec: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(spec, x, y, preferred_element_type=wide(x.dtype, y.dtype))


def _power_of_two(x: jax.Array) -> jax.Array:
    """The largest power of two <= max |x| over the last axis, kept as ``[..., 1]``: 0 if that is
    subnormal, inf if it is not finite."""
    top = jnp.max(jnp.abs(x), axis=-1, keepdims=True, initial=0).astype(wide(x.dtype))
    if top.dtype == jnp.float64:
        bits, exponent = jnp.uint64, 0x7FF0000000000000
    else:
        bits, exponent = jnp.uint32, 0x7F800000
    top_bits = lax.bitcast_convert_type(top, bits) & jnp.array(exponent, bits)
    return lax.bitcast_convert_type(top_bits, top.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def contract(spec: str, x: jax.Array, y: jax.Array, shrunk: Any = None) -> jax.Array:
    """``einsum(spec, x, y)`` over the last axis of ``x``, accumulated in at least float32.

    Finite inputs never give NaN: the vectors of ``x`` are divided by a power of two (exact), so
    that no partial sum overflows, and a result too large for the dtype saturates at the largest
    finite number, with derivative 0. The last axis of the result must come from ``y``. ``shrunk``
    is ``shrink(x)``, if that is at hand.

    >>> big = jnp.array([2.0**100, 2.0**100])
    >>> print(contract("d,sd->s", big, jnp.stack([big * jnp.array([1, -1]), big])))
    [0.0000000e+00 3.4028235e+38]
    """
    if x.dtype == y.dtype == jnp.float16:  # at most 65504^2 d: cannot overflow
        return _plain(spec, x, y)
    return grow(*contract_shrunk(spec, shrink(x) if shrunk is None else shrunk, y))


def shrink(x: jax.Array, power: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """``x [..., E]`` divided by powers of two, so that a contraction with it cannot overflow, and
    those, ``[..., 1]``: ``shrinking(x)``, if that is at hand."""
    if x.dtype == jnp.float16:  # it has too few exponents to divide in
        x = x.astype(jnp.float32)
    power = shrinking(x) if power is None else power
    top = _top(x)
    return jnp.clip(x, -top, top) / power.astype(x.dtype), power


def shrinking(x: jax.Array) -> jax.Array:
    """The powers of two of ``shrink``, ``[..., 1]``."""
    # x / power must sum below the largest number, and 1 / power be a normal one: XLA multiplies by
    # it. So power <= 2^126 (2^1022), and what is above that divided by the number of terms is cut.
    power = _power_of_two(x)
    power = jnp.where(power < jnp.inf, jnp.minimum(power, _top(x)), power) * _terms(x)
    return jnp.maximum(power, 1)


def _terms(x: jax.Array) -> float:
    return 2.0 ** (2 + math.ceil(math.log2(max(x.shape[-1], 1))))


def _top(x: jax.Array) -> float:
    return 2.0 ** (-jnp.finfo(wide(x.dtype)).minexp) / _terms(x)


def contract_shrunk(spec: str, shrunk: Any, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``contract`` is ``grow`` of these two: a contraction that cannot overflow, and by what it is
    to be multiplied, with the last axis left at 1."""
    small, power = shrunk
    left, out = spec.split(",")[0], spec.split("->")[1]
    return _plain(spec, small, y), jnp.einsum(f"{left}->{out[:-1]}{left[-1]}", power)


@functools.partial(contract.defjvp, symbolic_zeros=True)
def _contract_jvp(spec: str, primals: Any, tangents: Any) -> tuple[jax.Array, Any]:
    (x, y, shrunk), (dx, dy, _) = primals, tangents
    out = contract(spec, x, y, shrunk)
    terms = []
    if not isinstance(dx, SymbolicZero):
        terms.append(_plain(spec, dx, y))
    if not isinstance(dy, SymbolicZero):
        terms.append(_plain(spec, x, dy))
    if not terms:
        return out, jnp.zeros_like(out)
    tangent = functools.reduce(jnp.add, terms)
    saturated = jnp.abs(out) == float(jnp.finfo(out.dtype).max)
    return out, jnp.where(saturated, 0, tangent)


def project(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """``x [..., D] @ kernel [D, E]``, in at least float32 (see ``contract``)."""
    return contract("...d,de->...e", x, kernel)
