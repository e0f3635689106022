"""Positions: biases for ``attend(bias=)`` and transforms of queries, keys and embeddings.

``alibi`` and ``t5_bias`` give ``[N, T, S]``, to be added to the logits; ``rope`` turns queries and
keys before ``attend``; ``sinusoidal`` is added to embeddings. Query i stands at position
``i + offset``, key j at j: when decoding with a cache of S keys, the offset is the index of the
first new query. It may be traced, and an array ``[...]`` of offsets, one for each batch element,
adds its axes in front of the result's, as in ``ar.masks.causal``. Offsets that do not fit into
int32 are a ValueError, those of JAX arrays are cut to it; distances never wrap around.
"""

import bisect
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attn_research import numerics
from attn_research.mask_types import INT32
from attn_research.masks import as_int32


def alibi_slopes(num_heads: int, dtype: Any = jnp.float32) -> jax.Array:
    """The slope of each head ``[N]``: ``2^(-8 n / N)`` for n = 1 .. N, N a power of two.

    For other N: the slopes of the power of two P below, then of those of 2P every other one, from
    the first, as in the authors' code. Source: Press, Smith, Lewis 2022, "Train Short, Test Long".

    >>> print(alibi_slopes(4), alibi_slopes(3))
    [0.25       0.0625     0.015625   0.00390625] [0.0625     0.00390625 0.25      ]
    """
    _check_count("num_heads", num_heads, 1)
    _check_dtype(dtype)
    power = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 / power * np.arange(1, power + 1))
    between = 2.0 ** (-4 / power * np.arange(1, 2 * power, 2))
    return jnp.asarray(np.concatenate([slopes, between])[:num_heads], dtype)


def alibi(num_heads: int, T: int, S: int, offset: Any = 0, dtype: Any = jnp.float32) -> jax.Array:
    """ALiBi: the bias ``-slope_n |i + offset - j|``, ``[N, T, S]``.

    Under a causal mask this is the paper's bias; without one it is symmetric. (The authors' code
    adds ``slope_n j``, which differs by a constant in each row: the same softmax, not the same lse,
    and not the same weights under normalizers like the sigmoid, which do not ignore constants.)
    What is too large for ``dtype`` (float16) saturates: no key is hidden by its distance.

    >>> print(alibi(8, 2, 3)[0])
    [[ 0.  -0.5 -1. ]
     [-0.5  0.  -0.5]]
    >>> print(alibi(8, 1, 3, offset=2)[0])  # decoding: the third query alone
    [[-1.  -0.5  0. ]]

    Source: Press, Smith, Lewis 2022, "Train Short, Test Long: Attention with Linear Biases".
    """
    _check_dtype(dtype)
    slopes = alibi_slopes(num_heads, numerics.wide(dtype))[:, None, None]
    distance = jnp.abs(_key_minus_query(T, S, offset))[..., None, :, :]
    return numerics.clip_finite((slopes * -distance).astype(dtype))


def t5_buckets(
    T: int,
    S: int,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
    offset: Any = 0,
) -> jax.Array:
    """T5's bucket of each pair, int32 ``[T, S]``, from the relative position j - (i + offset).

    Of B buckets, the first e = B // 2 hold one distance each, 0 to e - 1; the others grow with the
    logarithm: distance n >= e is in e + floor((B - e) log(n / e) / log(max_distance / e)), at most
    B - 1. ``bidirectional`` gives half of the buckets, B = num_buckets / 2, to each side: the upper
    ones to keys after the query; otherwise these share bucket 0 with distance 0, B = num_buckets.

    The floor is exact: where a bucket begins is found in integers. The authors compute it in
    float32, which gives the same for powers of two, T5's 32 and 128 among them; elsewhere distances
    at which the logarithm is a whole number can fall one bucket short (36 buckets on a side and
    max_distance 98: distance 42).

    >>> print(t5_buckets(2, 5, num_buckets=8, max_distance=16))
    [[0 5 6 6 6]
     [1 0 5 6 6]]
    >>> print(t5_buckets(1, 5, num_buckets=8, max_distance=16, bidirectional=False, offset=20))
    [[7 7 7 7 7]]

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified
    Text-to-Text Transformer", section 2.1, and its code, which alone says the formula.
    """
    relative = _key_minus_query(T, S, offset)
    sides = 2 if bidirectional else 1
    _check_count("num_buckets", num_buckets, 2 * sides)
    if num_buckets % sides:
        raise ValueError(f"num_buckets must be even if bidirectional: got {num_buckets}")
    buckets = num_buckets // sides
    _check_count("max_distance", max_distance, buckets // 2 + 1)
    starts = _t5_starts(buckets, max_distance)
    distance = jnp.abs(relative) if bidirectional else jnp.maximum(-relative, 0)
    bucket = jnp.searchsorted(starts, distance, side="right", method="compare_all") - 1
    if bidirectional:
        bucket = jnp.where(relative > 0, bucket + buckets, bucket)
    return bucket.astype(jnp.int32)


def t5_bias(
    table: Any, T: int, S: int, max_distance: int = 128, bidirectional: bool = True, offset: Any = 0
) -> jax.Array:
    """T5's learned bias ``[N, T, S]``: ``table[bucket of (i, j), n]``, in the dtype of ``table``.

    ``table [num_buckets, N]`` is a parameter: gradients reach it, summed in at least float32.
    Other arguments: see ``t5_buckets``. T5 has one table for all its layers, and no scale 1/sqrt(d)
    (say ``scale="none"``).

    >>> table = jnp.array([[0.0], [-1.0], [5.0], [7.0]])  # same place, before, -, after
    >>> print(t5_bias(table, 3, 3)[0])
    [[ 0.  7.  7.]
     [-1.  0.  7.]
     [-1. -1.  0.]]
    """
    table = jnp.asarray(table)
    if table.ndim != 2 or not jnp.issubdtype(table.dtype, jnp.floating):
        raise ValueError(
            f"table must be floating [num_buckets, heads]: got {table.dtype} {list(table.shape)}"
        )
    buckets = t5_buckets(T, S, table.shape[0], max_distance, bidirectional, offset)
    rows = table.astype(numerics.wide(table.dtype))[buckets]
    return jnp.moveaxis(rows, -1, -3).astype(table.dtype)


def rope(
    x: Any,
    positions: Any = None,
    *,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    interleaved: bool = False,
) -> jax.Array:
    """Rotary position embedding: turns pair m of features by ``position * base^(-2m/rotary_dim)``.

    Apply it to queries and keys: their dot product then depends on the distance i - j alone.

    Args:
      x: floating ``[..., L, H, D]``, or ``[L, D]`` for one head.
      positions: None for 0 .. L-1, ``[L]``, or ``[..., L]`` per batch element. Integers or floating
        (fractions are kept, and have a gradient), traced or not, of magnitude below 2^31.
      base: 10000 in the paper; larger ones turn slower.
      rotary_dim: the first ``rotary_dim`` features are turned, the others left alone; None is D.
        Must be even.
      interleaved: pairs are features (2m, 2m + 1), as in the paper and GPT-J; False: features
        (m, m + rotary_dim / 2), as in GPT-NeoX and Llama. A model must be run with the convention
        that it was trained with.

    Returns:
      The shape and dtype of ``x``. Angles, sines and products are float32 (float64 for a float64
      ``x``). A float32 product of position and frequency would be off by a unit in its last place,
      0.005 rad at position 100,000; here whole turns are dropped in integers, and angles are right
      to 2e-6 rad at any position.

    >>> print(rope(jnp.array([[1.0, 0.0], [1.0, 0.0]])).round(4))  # cos 1, sin 1
    [[1.     0.    ]
     [0.5403 0.8415]]

    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
    """
    x = jnp.asarray(x)
    if x.ndim < 2:
        raise ValueError(f"x must be [..., length, heads, features] or [L, D]: got shape {x.shape}")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x must be floating: got {x.dtype}; use x.astype(jnp.float32)")
    D = x.shape[-1]
    rotary = D if rotary_dim is None else rotary_dim
    if rotary % 2 or not 0 < rotary <= D:
        raise ValueError(
            f"rotary_dim (None: all features) must be even and in 2 .. {D}: got {rotary}"
        )
    where = x.shape[:1] if x.ndim == 2 else x.shape[:-2]
    positions = _check_positions(positions, where)
    dtype = numerics.wide(x.dtype)
    angles = _angles(positions, base, rotary, dtype)
    if x.ndim > 2:
        angles = angles[..., None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)

    shape, axis = ((rotary // 2, 2), -1) if interleaved else ((2, rotary // 2), -2)
    pairs = x[..., :rotary].astype(dtype).reshape(*x.shape[:-1], *shape)
    a, b = (lax.index_in_dim(pairs, i, axis, keepdims=False) for i in (0, 1))
    turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis).astype(x.dtype)
    finite = jnp.isfinite(pairs).all(axis, keepdims=True)
    turned = jnp.where(finite, numerics.clip_finite(turned), turned)  # a turn can add a factor 1.4
    return jnp.concatenate([turned.reshape(*x.shape[:-1], rotary), x[..., rotary:]], -1)


def sinusoidal(L: int, D: int, base: float = 10000.0, dtype: Any = jnp.float32) -> jax.Array:
    """Absolute encodings ``[L, D]``, added to embeddings: with t = position / base^(2m/D), feature
    2m is sin t, feature 2m + 1 is cos t.

    >>> print(sinusoidal(2, 4).round(4))
    [[0.     1.     0.     1.    ]
     [0.8415 0.5403 0.01   1.    ]]

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """
    _check_count("L", L, 0)
    _check_count("D", D, 0)
    _check_dtype(dtype)
    angles = _angles(jnp.arange(L), base, D, numerics.wide(dtype))
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1)
    return waves.reshape(L, 2 * angles.shape[-1])[:, :D].astype(dtype)


def _key_minus_query(T: int, S: int, offset: Any) -> jax.Array:
    """j - (i + offset), int32 ``[..., T, S]``, of magnitude at most 2^31 - 1."""
    _check_count("T", T, 0)
    _check_count("S", S, 0)
    offset = jnp.asarray(as_int32("offset", offset), jnp.int32)[..., None, None]
    i, j = (lax.broadcasted_iota(jnp.int32, (T, S), axis) for axis in (0, 1))
    room = jnp.maximum(j - i, 0) - INT32.max, jnp.minimum(j - i, 0) + INT32.max
    return j - i - jnp.clip(offset, *room)


def _t5_starts(buckets: int, max_distance: int) -> np.ndarray:
    """The smallest distance in each bucket of one side.

    Bucket e + k begins at the smallest n with (n / e)^g >= (max_distance / e)^k, where g buckets
    grow: a comparison of integers once both sides are multiplied by e^g.
    """
    e = buckets // 2
    g = buckets - e

    def power(n: int) -> int:
        return n**g

    bounds = [max_distance**k * e ** (g - k) for k in range(g)]
    growing = [bisect.bisect_left(range(max_distance), bound, key=power) for bound in bounds]
    return np.array([*range(e), *growing], np.int32)


def _angles(positions: jax.Array, base: float, dim: int, dtype: Any) -> jax.Array:
    """``positions[..., None] * base^(-2m/dim)``, ``[..., ceil(dim / 2)]``, up to whole turns.

    In float32, a whole position n is taken byte by byte, ``n = sum_b n_b 2^(8b)``, and the turns
    that ``2^(8b)`` makes are kept as their fractional part times 2^32, rounded. Then the turns of n
    are a sum of products of int32, whose overflow drops whole turns, and each of the four is off by
    at most 2^8 / 2 in 2^32.
    """
    if not (isinstance(base, numbers.Real) and base > 0):
        raise ValueError(f"base must be a positive number, not traced: got {base}")
    frequencies = float(base) ** -(np.arange(0, dim, 2) / max(dim, 1))
    positions = positions[..., None]
    if dtype == jnp.float64:
        return positions.astype(dtype) * frequencies
    fraction: Any = 0
    if jnp.issubdtype(positions.dtype, jnp.floating):
        positions = positions.astype(dtype)
        whole = jnp.floor(positions)
        fraction = (positions - whole) * frequencies.astype(np.float32)
        positions = whole
    positions = positions.astype(jnp.int32)
    total: Any = 0
    for b in range(4):
        byte = positions >> (8 * b)
        byte = byte if b == 3 else byte & 255  # the highest one has the sign
        turns = np.round(frequencies * 2.0 ** (8 * b) / (2 * np.pi) % 1 * 2.0**32)
        total = total + byte * turns.astype(np.int64).astype(np.uint32).view(np.int32)
    return total.astype(dtype) * np.float32(2 * np.pi / 2**32) + fraction


def _check_positions(positions: Any, shape: tuple[int, ...]) -> jax.Array:
    """``positions``, broadcastable to ``shape [..., L]``."""
    if positions is None:
        return jnp.arange(shape[-1])
    positions = jnp.asarray(positions)
    if not any(jnp.issubdtype(positions.dtype, kind) for kind in (jnp.integer, jnp.floating)):
        raise TypeError(f"positions must be integers or floating: got {positions.dtype}")
    fits = positions.shape[-1:] == shape[-1:]
    try:
        fits = fits and jnp.broadcast_shapes(positions.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"positions must be [L] or broadcast to [..., L] = {list(shape)}: got "
            f"{list(positions.shape)}"
        )
    return positions


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}: got {value}")


def _check_dtype(dtype: Any) -> None:
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype must be floating: got {jnp.dtype(dtype)}")
