"""Sums over keys of kernel features, and attention by reading them, in O(length).

Shapes: queries and their features ``[..., T, F]``, those of keys ``[..., S, F]``, values
``[..., S, Dv]``; leading axes broadcast. All scales are constants that cancel, so they are kept
from differentiation, and each is the largest of what it scales: sums neither overflow nor vanish.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attn_research import feature_maps
from attn_research.feature_maps import FeatureMap, Features
from attn_research.numerics import clip_finite, contract


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LinearState:
    """All that linear attention keeps of the keys and values that it has seen. A pytree.

    Attributes:
      kv: ``sum_j phi(k_j) v_j^T / exp(log_scale)``, ``[..., K, F, Dv]``.
      normalizer: ``sum_j phi(k_j) / exp(log_scale)``, ``[..., K, F]``.
      log_scale: the largest ``log phi(k_j)``, ``[..., K, F]`` (``[..., K, 1]``, one for all
        features, for a feature map that is a function of the user's); -inf before the first key.
    """

    kv: jax.Array
    normalizer: jax.Array
    log_scale: jax.Array


def key_features(feature_map: FeatureMap, key: jax.Array, visible: jax.Array) -> Features:
    """Features of ``key [..., S, D]``, 0 where ``visible [..., S]`` is False."""
    log, factor = feature_maps.features(feature_map, key, of_keys=True)
    visible = visible[..., None]
    log = jnp.where(visible, log, -jnp.inf)
    return Features(log, None if factor is None else jnp.where(visible, factor, 0))


def query_features(feature_map: FeatureMap, query: jax.Array) -> Features:
    """Features of ``query [..., T, D]``, each row up to a factor."""
    return feature_maps.features(feature_map, query, of_keys=False)


def summary(keys: Features, value: jax.Array) -> LinearState:
    """The state after these keys; without keys (S = 0), the empty state."""
    log_scale = lax.stop_gradient(jnp.max(keys.log, -2, initial=-jnp.inf))
    weights = _scaled(keys, 0, _finite(log_scale)[..., None, :])
    sums = contract("...fs,...sd->...fd", weights.swapaxes(-1, -2), _and_one(value))
    return LinearState(sums[..., :-1], sums[..., -1], log_scale)


def merge(first: LinearState, second: LinearState) -> LinearState:
    """The state after the keys of both; associative."""
    log_scale = jnp.maximum(first.log_scale, second.log_scale)
    shift = _finite(log_scale)
    one, two = (jnp.exp(state.log_scale - shift) for state in (first, second))
    return LinearState(
        clip_finite(first.kv * one[..., None] + second.kv * two[..., None]),
        first.normalizer * one + second.normalizer * two,
        log_scale,
    )


def read(state: LinearState, queries: Features) -> tuple[jax.Array, jax.Array]:
    """Context ``[..., T, Dv]`` of queries that see all of the state, and whether they do see
    anything, ``[..., T]``."""
    return _ratio(_past(state, queries, _top(queries.log + state.log_scale[..., None, :])))


def causal(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    visible: jax.Array,
    offset: Any,
    feature_map: FeatureMap,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    """What ``read`` returns, where query i sees those ``visible [..., S]`` of the keys 0 .. i +
    offset.

    ``offset``, between -T and S, is an int or an array ``[..., 1]``, with the leading axes of the
    keys; T and S are at least 1. Positions are read in chunks of ``chunk``, a power of two:
    features and weights exist for one chunk at a time, forward and backward. What fills the chunks
    up are copies of real positions: the feature map is asked for nothing else.
    """
    T = query.shape[-2]
    chunk = min(chunk, 1 << max(T - 1, 0).bit_length())
    length = -(-T // chunk) * chunk
    before, xs = _align(offset, length, key, value, visible[..., None])
    query = _repeat_ends(query, 0, length - T)

    def split(x: jax.Array) -> jax.Array:
        x = x.reshape(*x.shape[:-2], length // chunk, chunk, x.shape[-1])
        return jnp.moveaxis(x, -3, 0)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(state: LinearState, xs: Any) -> tuple[LinearState, Any]:
        queries = query_features(feature_map, xs[0])
        keys = key_features(feature_map, xs[1], xs[3][..., 0])
        seen = lax.cummax(lax.stop_gradient(keys.log), keys.log.ndim - 2)
        top = _top(queries.log + jnp.maximum(seen, state.log_scale[..., None, :]))
        weights = _within(queries, keys, top)
        chunk = contract("...ts,...sd->...td", weights, _and_one(xs[2]))
        out = _ratio(clip_finite(_past(state, queries, top) + chunk))
        return merge(state, summary(keys, xs[2])), out

    state = summary(key_features(feature_map, before[0], before[2][..., 0]), before[1])
    _, (context, seen) = lax.scan(step, state, [split(x) for x in (query, *xs)])
    context, seen = jnp.moveaxis(context, 0, -3), jnp.moveaxis(seen, 0, -2)
    context = context.reshape(*context.shape[:-3], length, context.shape[-1])
    return context[..., :T, :], seen.reshape(*seen.shape[:-2], length)[..., :T]


def _align(
    offset: Any, length: int, key: jax.Array, value: jax.Array, visible: jax.Array
) -> tuple[Any, Any]:
    """Key, value and ``visible [..., S, 1]`` in two parts: the positions j < offset, which each
    query sees, and, as many as queries, those that query i is the first to see, i + offset."""
    S, arrays = key.shape[-2], (key, value, visible)
    j = jnp.arange(length) + offset
    if isinstance(offset, int):
        first, last = (min(max(end, 0), S - 1) for end in (offset, offset + length - 1))
        low = min(max(-offset, 0), length - 1)
        high = length - low - (last + 1 - first)
        before = tuple(x[..., : max(offset, 0), :] for x in arrays)
        own = [_repeat_ends(x[..., first : last + 1, :], low, high) for x in arrays]
    else:
        before = key, value, visible & (jnp.arange(S) < offset)[..., None]
        at = jnp.clip(j, 0, S - 1)[..., None]
        at = at.reshape((1,) * (key.ndim - at.ndim) + at.shape)
        own = [jnp.take_along_axis(x, at, -2) for x in arrays]
    key, value, visible = own
    return before, (key, value, visible & ((j >= 0) & (j < S))[..., None])


def _repeat_ends(x: jax.Array, low: int, high: int) -> jax.Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(low, high), (0, 0)], mode="edge")


def _within(queries: Features, keys: Features, top: jax.Array) -> jax.Array:
    """Weights ``[..., C, C]`` of keys on the queries of their chunk, 0 above the diagonal.

    Blocks on the diagonal are put together two by two. Below them, the keys have a scale of their
    own, the largest in the block: all of its queries see that key, so they can take it up.
    """
    own = _scaled(queries, keys.log, top)
    own = own if keys.factor is None else own * keys.factor
    weights = own.sum(-1)[..., None, None]
    size = 1
    while size < top.shape[-2]:
        early = jax.tree.map(lambda x, size=size: _halves(x, size)[0], keys)
        late = jax.tree.map(lambda x, size=size: _halves(x, size)[1], queries)
        scale = lax.stop_gradient(jnp.max(early.log, -2, keepdims=True))
        below = jnp.einsum(
            "...tf,...sf->...ts",
            _scaled(late, scale, _halves(top, size)[1]),
            _scaled(early, 0, _finite(scale)),
        )
        first, second = weights[..., 0::2, :, :], weights[..., 1::2, :, :]
        rows = [[first, jnp.zeros_like(first)], [below, second]]
        weights = jnp.concatenate([jnp.concatenate(row, -1) for row in rows], -2)
        size *= 2
    return weights[..., 0, :, :]


def _halves(x: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """``[..., C, F]`` in blocks of twice ``size``: their halves, ``[..., C / 2 size, size, F]``."""
    x = x.reshape(*x.shape[:-2], x.shape[-2] // (2 * size), 2, size, x.shape[-1])
    return x[..., 0, :, :], x[..., 1, :, :]


def _past(state: LinearState, queries: Features, top: jax.Array) -> jax.Array:
    """Sums of weighted values and, last, of weights, ``[..., T, Dv + 1]``."""
    weights = _scaled(queries, state.log_scale[..., None, :], top)
    sums = jnp.concatenate([state.kv, state.normalizer[..., None]], -1)
    return contract("...tf,...fd->...td", weights, sums)


def _and_one(value: jax.Array) -> jax.Array:
    """``[v, 1]``: a weight that is lost to rounding is then lost to both sums."""
    return jnp.concatenate([value, jnp.ones_like(value, shape=(*value.shape[:-1], 1))], -1)


def _scaled(features: Features, plus: Any, minus: jax.Array) -> jax.Array:
    # In this order: the difference is what ``minus`` was the maximum of, exactly, so never above 0
    out = jnp.exp((features.log + plus) - minus)
    return out if features.factor is None else out * features.factor


def _top(logs: jax.Array) -> jax.Array:
    return _finite(lax.stop_gradient(jnp.max(logs, -1, keepdims=True)))


def _finite(log: jax.Array) -> jax.Array:
    """The logarithm of a scale to divide by: 1 where there is nothing to scale."""
    return jnp.where(log == -jnp.inf, 0, log)


def _ratio(sums: jax.Array) -> tuple[jax.Array, jax.Array]:
    context, total = sums[..., :-1], sums[..., -1]
    seen = total != 0
    total = jnp.where(seen, total, 1)
    scale = lax.stop_gradient(total)  # with it the derivative has no total^2, which may vanish
    return (context / scale[..., None]) / (total / scale)[..., None], seen
