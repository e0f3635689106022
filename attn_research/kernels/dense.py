"""The materializing implementation: logits and weights ``[..., N, T, S]`` exist in memory.

Inputs are ``[..., T, N, D]`` and ``[..., S, K, D]``, N a multiple of K, already transformed.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import clip_finite, contract, grow, wide
from attn_research.params import PerHead, head_count


def logits(pairwise: Any, params: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    """Raw logits ``[..., N, T, S]``, at least float32."""
    if callable(pairwise):
        return _function(pairwise, params, query, key)
    kernels = {"dot": _dot, "additive": _additive, "squared_distance": _squared_distance}
    return kernels[pairwise](params, query, key)


def _dot(params: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    heads, key_heads = query.shape[-2], key.shape[-2]
    if heads == 1:  # on CPU a third of the time: with a head axis XLA copies the keys
        return contract("...td,...sd->...ts", query[..., 0, :], key[..., 0, :])[..., None, :, :]
    if heads == key_heads:
        return contract("...tnd,...snd->...nts", query, key)
    grouped = query.reshape(*query.shape[:-2], key_heads, heads // key_heads, query.shape[-1])
    out = contract("...tkgd,...skd->...kgts", grouped, key)
    return out.reshape(*out.shape[:-4], heads, *out.shape[-2:])


def _additive(params: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    per_head = isinstance(params, PerHead)
    v = params.params["v"] if isinstance(params, PerHead) else params["v"]
    dtype = wide(query.dtype, key.dtype, v.dtype)
    query, key, v = query.astype(dtype), key.astype(dtype), v.astype(dtype)
    group = query.shape[-2] // key.shape[-2]
    if group > 1:
        key = jnp.repeat(key, group, -2)
    query, key = query.swapaxes(-2, -3), key.swapaxes(-2, -3)  # [..., N, length, E]
    spec = "...ntse,ne->...nts" if per_head else "...e,e->..."
    terms = 2.0 ** math.ceil(math.log2(max(v.shape[-1], 1)))  # exact; no partial sum overflows
    return clip_finite(_sum_tanh(spec, query, key, v / terms) * terms)


@functools.partial(jax.checkpoint, static_argnums=0)
def _sum_tanh(spec: str, query: jax.Array, key: jax.Array, v: jax.Array) -> jax.Array:
    """``sum_e v_e tanh(query_e + key_e)`` for all pairs. The tanh values are computed again for the
    gradient: storing ``[..., T, S, E]`` of them costs more than that (in a decoder's scan on a CPU,
    B = 64, S = 40, E = 256, the gradient takes 21 ms like this and 82 ms with them stored)."""
    tanh = jnp.tanh(query[..., :, None, :] + key[..., None, :, :])
    return jnp.einsum(spec, tanh, v, precision=jax.lax.Precision.HIGHEST)


def _squared_distance(params: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    """``-|q - k|^2``, times ``params["factor"]`` if there is one, from the differences: |q|^2 -
    2 q.k + |k|^2 loses all digits of the distance of two vectors that are near each other and far
    from 0."""
    own = (params.params if isinstance(params, PerHead) else params) or {}
    dtype = wide(query.dtype, key.dtype, *(x.dtype for x in own.values()))
    # Clipped, the differences are finite: no derivative of what overflows is 0 * inf. Two numbers
    # beyond this are equal or so far from each other that the result is the largest number.
    top = float(jnp.finfo(dtype).max) / 4
    query, key = (jnp.clip(x.astype(dtype), -top, top) for x in (query, key))
    group = query.shape[-2] // key.shape[-2]
    if group > 1:
        key = jnp.repeat(key, group, -2)
    squares = _sum_squares(query.swapaxes(-2, -3), key.swapaxes(-2, -3))
    far = squares == jnp.inf
    squares = jnp.where(far, 0, squares)
    if own:
        factor = own["factor"].astype(dtype)
        squares = squares * (factor[:, None, None] if factor.ndim else factor)
    return jnp.where(far | (squares == jnp.inf), -4 * top, -squares)


@jax.checkpoint
def _sum_squares(query: jax.Array, key: jax.Array) -> jax.Array:
    """``[..., T, S]``. Differences are computed again for the gradient, as in ``_sum_tanh``."""
    return jnp.sum(jnp.square(query[..., :, None, :] - key[..., None, :, :]), axis=-1)


def _function(
    f: Callable[..., jax.Array], params: Any, query: jax.Array, key: jax.Array
) -> jax.Array:
    dtype = wide(query.dtype, key.dtype)
    T, heads, S, key_heads = query.shape[-3], query.shape[-2], key.shape[-3], key.shape[-2]
    batch = jnp.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    query = jnp.broadcast_to(query.astype(dtype), batch + query.shape[-3:])
    key = jnp.broadcast_to(key.astype(dtype), batch + key.shape[-3:])
    if heads != key_heads:
        key = jnp.repeat(key, heads // key_heads, -2)
    per_head = head_count(params) is not None
    mapped = jax.vmap(f, in_axes=(0 if per_head else None, -2, -2), out_axes=0)
    for _ in batch:
        mapped = jax.vmap(mapped, in_axes=(None, 0, 0))
    out = mapped(params.params if isinstance(params, PerHead) else params, query, key)
    if jnp.shape(out) != (*batch, heads, T, S):
        raise ValueError(
            f"score function must return logits [T, S] = [{T}, {S}] for one head: got "
            f"{list(jnp.shape(out)[len(batch) + 1 :])}"
        )
    return out.astype(wide(dtype, out.dtype))


def mix(weights: jax.Array, value: jax.Array, bounded: bool) -> jax.Array:
    """``sum_j weights[..., n, t, j] value[..., j, k, :]`` -> ``[..., T, N, Dv]``; saturates.

    ``bounded`` says that no row of weights sums to more than 1, but for rounding: then no sum of
    their halves overflows."""
    dtype = wide(weights.dtype, value.dtype)
    weights, value = weights.astype(dtype), value.astype(dtype)
    if bounded:
        return grow(_mix(jnp.einsum, weights / 2, value), 2)
    return _mix(contract, weights, value)


def _mix(multiply: Callable[..., jax.Array], weights: jax.Array, value: jax.Array) -> jax.Array:
    heads, key_heads = weights.shape[-3], value.shape[-2]
    if heads == 1:
        out = multiply("...ts,...sd->...td", weights[..., 0, :, :], value[..., 0, :])
        return out[..., None, :]
    if heads == key_heads:
        return multiply("...nts,...snd->...tnd", weights, value)
    grouped = weights.reshape(
        *weights.shape[:-3], key_heads, heads // key_heads, *weights.shape[-2:]
    )
    out = multiply("...kgts,...skd->...tkgd", grouped, value)
    return out.reshape(*out.shape[:-3], heads, out.shape[-1])
