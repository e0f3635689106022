"""Linear attention: kernel features in the place of ``exp(q . k)``, O(T) in time and memory.

``context_i = phi(q_i) . sum_j phi(k_j) v_j^T / (phi(q_i) . sum_j phi(k_j))``

The sums are taken once for all queries; for a causal mask they run along, and one step of decoding
costs the same at any length. Katharopoulos, Vyas, Pappas, Fleuret 2020, "Transformers are RNNs:
Fast Autoregressive Transformers with Linear Attention"; Choromanski et al. 2021, "Rethinking
Attention with Performers".

This is a function of its own beside ``attend``, and no normalizer: a normalizer takes logits, and
here there are none. What it implies are the weights ``phi(q_i) . phi(k_j) / sum_j phi(q_i) .
phi(k_j)``, of which a row sums to 1, or to 0 where nothing is visible; but they are never formed.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_research import feature_maps, mask_algebra, masks, validate
from attn_research.kernels import linear as kernel
from attn_research.kernels.linear import LinearState
from attn_research.numerics import HARMLESS, clean, wide


def linear_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    feature_map: Any = "elu_plus_one",
    mask: Any = None,
    chunk_size: int = 64,
) -> jax.Array:
    """Attention with the weights ``phi(q_i) . phi(k_j)`` over their sum, never formed.

    Args:
      query: ``[..., T, N, Dq]``, or ``[T, Dq]`` for one head. float16, bfloat16, float32, float64.
      key: ``[..., S, K, Dk]`` or ``[S, Dk]``; N is a multiple of K: query head n reads key head
        ``n // (N / K)``.
      value: ``[..., S, K, Dv]`` or ``[S, Dv]``.
      feature_map: ``"elu_plus_one"``; ``ar.Performer(ar.random_features(rng, D, m))``, which
        estimates softmax attention; or a function phi from ``[..., D]`` to ``[..., F]``, with
        ``phi(q) . phi(k) > 0`` (a query for which all of these are 0 gets 0). It is given float32
        or float64. Of its features, those below about 1e-37 S of the largest of the keys seen, or
        1e-37 F of the largest of the query, count as 0 (1e-307 in float64), in values and weights
        alike: ``[exp(x), exp(-x)]`` gives 0 for q = -a, k = a if a > 42. The other maps have no
        such limit.
      mask: None; one that is the same for all queries (``ar.masks.lengths``, or an array ``[...,
        1, S]``); ``ar.masks.causal``, with any offset; or these combined with ``&``.
      chunk_size: a power of two: positions that a causal mask works on at once. It changes speed
        and memory, and the result by rounding only.

    Returns:
      ``[..., T, N, Dv]`` (``[T, Dv]``) in the dtype of ``value``. Features and sums are float32 for
      16-bit inputs, float64 if an input is. A query that sees no key gets 0, and no gradient flows
      through it. Keys and values which a query does not see do not influence it or its gradient;
      NaN or inf in what it does see makes its result NaN. Finite inputs never give NaN: sums of
      values too large for the dtype saturate.

    Raises:
      NotImplementedError: for any other mask; ``attend`` takes it, in O(T S).

    >>> q, k = jnp.zeros((2, 2)), jnp.array([[0.0, 0.0], [2.0, 5.0]])
    >>> v = jnp.array([[1.0], [3.0]])  # phi: [1 1] . [1 1] = 2 and [1 1] . [3 6] = 9
    >>> print(linear_attention(q, k, v).round(4)[:, 0])  # (2 * 1 + 9 * 3) / 11
    [2.6364 2.6364]
    >>> print(jax.jit(linear_attention)(q, k, v, mask=masks.causal())[:, 0].round(4))
    [1.     2.6364]
    """
    feature_map = feature_maps.resolve(feature_map)
    whole = isinstance(chunk_size, int | np.integer) and not isinstance(chunk_size, bool)
    if not whole or chunk_size < 1 or chunk_size & (chunk_size - 1):
        raise ValueError(f"chunk_size must be a power of two: got {chunk_size}")
    query, key, value = _arrays(query, key, value)
    one_head = query.ndim == 2
    if one_head:
        query, key, value = (x[:, None] for x in (query, key, value))
    validate.check_axes(query, key, value, None, None)
    shape = validate.logits_shape(query, key, value)
    _check_features(feature_map, query, key)
    offset, visible = _split(mask, shape)

    heads, T, S = shape[-3:]
    key_heads = key.shape[-2]
    dtype, out_dtype = wide(query.dtype, key.dtype, value.dtype), value.dtype
    # [..., K, N / K, length, features], where the second axis of keys and values is 1
    query = query.reshape(*query.shape[:-2], key_heads, heads // key_heads, query.shape[-1])
    query, bad_query = clean(jnp.moveaxis(query, -4, -2).astype(dtype))
    key, value = (x.swapaxes(-2, -3)[..., None, :, :].astype(dtype) for x in (key, value))
    per_head = (key_heads, heads // key_heads) if visible.shape[-3] == heads else (1, 1)
    visible = visible.reshape(*visible.shape[:-3], *per_head, S)
    visible = visible.reshape((1,) * (key.ndim - 1 - visible.ndim) + visible.shape)
    key, value, bad_key = _hide(key, value, visible)

    first_bad = jnp.where(bad_key, jnp.arange(S), S + T).min(-1, initial=S + T)[..., None]
    if offset is None or not T or not S:
        state = kernel.summary(kernel.key_features(feature_map, key, visible), value)
        context, seen = kernel.read(state, kernel.query_features(feature_map, query))
        bad = first_bad < S
    else:
        context, seen = kernel.causal(
            query, key, value, visible, offset, feature_map, int(chunk_size)
        )
        bad = first_bad <= jnp.arange(T) + offset
    context = jnp.where((bad | bad_query)[..., None], jnp.nan, context)
    context = jnp.where(seen[..., None], context, 0).astype(out_dtype)
    context = jnp.moveaxis(context, -2, -4)
    context = context.reshape(*context.shape[:-3], heads, context.shape[-1])
    return context[:, 0] if one_head else context


def init_linear_state(
    key: Any, value: Any, *, feature_map: Any = "elu_plus_one", mask: Any = None
) -> LinearState:
    """The ``ar.LinearState`` after the keys of a prompt; with S = 0, that before the first key.

    Args:
      key: ``[..., S, K, Dk]``.
      value: ``[..., S, K, Dv]``.
      feature_map: as for ``linear_attention``.
      mask: None, or one that is the same for all queries and heads (``ar.masks.lengths``, or an
        array ``[..., 1, 1, S]``).

    >>> state = init_linear_state(jnp.zeros((7, 0, 2, 4)), jnp.zeros((7, 0, 2, 3)))
    >>> state.kv.shape, state.normalizer.shape
    ((7, 2, 4, 3), (7, 2, 4))
    """
    feature_map = feature_maps.resolve(feature_map)
    _, key, value = _arrays(key, key, value)
    if key.ndim < 3:
        raise ValueError(f"key must be [..., S, K, Dk]: got shape {key.shape}")
    validate.check_axes(key, key, value, None, None)
    _check_features(feature_map, key, key)
    S = key.shape[-3]
    batch = validate.logits_shape(key, key, value)[:-3]
    offset, visible = _split(mask, (*batch, 1, S + 1, S))
    if offset is not None:
        raise ValueError("mask must be the same for all queries: got one with ar.masks.causal")
    dtype = wide(key.dtype, value.dtype)
    key, value = (x.swapaxes(-2, -3).astype(dtype) for x in (key, value))
    return _absorb(feature_map, key, value, visible[..., 0, :])


def linear_attention_step(
    state: LinearState, query: Any, key: Any, value: Any, *, feature_map: Any = "elu_plus_one"
) -> tuple[jax.Array, LinearState]:
    """One step of decoding: takes in one key and value, then answers one query.

    From ``init_linear_state`` of the first P keys, T steps give the rows of ``linear_attention``
    with ``mask=ar.masks.causal(P)`` over P + T keys, each in time and memory that do not depend on
    P and T.

    Args:
      state: from ``init_linear_state`` or the previous step, made with the same ``feature_map``.
      query: ``[..., N, Dq]``.
      key: ``[..., K, Dk]``.
      value: ``[..., K, Dv]``.
      feature_map: as for ``linear_attention``.

    Returns:
      The context ``[..., N, Dv]`` in the dtype of ``value``, and the new state.

    >>> step = jax.jit(linear_attention_step)
    >>> state = init_linear_state(jnp.zeros((0, 1, 2)), jnp.zeros((0, 1, 1)))
    >>> for k, v in (([0.0, 0.0], 1.0), ([2.0, 5.0], 3.0)):
    ...     context, state = step(state, jnp.zeros((1, 2)), jnp.array([k]), jnp.array([[v]]))
    ...     print(context.round(4))  # (2 * 1 + 9 * 3) / 11
    [[1.]]
    [[2.6364]]
    """
    feature_map = feature_maps.resolve(feature_map)
    batch, shapes = state.kv.shape[:-3], [jnp.shape(x) for x in (query, key, value)]
    try:
        fits = jnp.broadcast_shapes(batch, *(shape[:-2] for shape in shapes)) == batch
    except ValueError:
        fits = False
    if not fits or min(map(len, shapes)) < 2:
        raise ValueError(
            "query [..., N, Dq], key [..., K, Dk] and value [..., K, Dv] of a step have no axis of "
            f"positions, and the batch axes of the state, {list(batch)}: got "
            + ", ".join(str(list(shape)) for shape in shapes)
        )
    query, key, value = _arrays(query, key, value)
    validate.check_axes(
        query[..., None, :, :], key[..., None, :, :], value[..., None, :, :], None, None
    )
    kept = (key.shape[-2], _check_features(feature_map, query, key), value.shape[-1])
    if state.kv.shape[-3:] != kept:
        raise ValueError(
            f"state must hold kv [..., K, F, Dv] = {list(kept)} for these arguments: got "
            f"{list(state.kv.shape)}"
        )
    dtype, out_dtype = wide(query.dtype, key.dtype, value.dtype), value.dtype
    heads, key_heads = query.shape[-2], key.shape[-2]
    query = query.reshape(*query.shape[:-2], key_heads, heads // key_heads, query.shape[-1])
    query, bad = clean(query.astype(dtype))
    key, value = (x[..., None, :].astype(dtype) for x in (key, value))  # S = 1
    state = kernel.merge(state, _absorb(feature_map, key, value, jnp.ones((1,), bool)))
    context, seen = kernel.read(state, kernel.query_features(feature_map, query))
    context = jnp.where(bad[..., None], jnp.nan, context)
    context = jnp.where(seen[..., None], context, 0).astype(out_dtype)
    return context.reshape(*context.shape[:-3], heads, context.shape[-1]), state


def _absorb(feature_map: Any, key: jax.Array, value: jax.Array, visible: jax.Array) -> LinearState:
    """The state after ``key [..., K, S, D]``, spoiled by a visible one that is not finite."""
    key, value, bad = _hide(key, value, visible)
    state = kernel.summary(kernel.key_features(feature_map, key, visible), value)
    bad = bad.any(-1)[..., None]
    return dataclasses.replace(state, normalizer=jnp.where(bad, jnp.nan, state.normalizer))


def _hide(
    key: jax.Array, value: jax.Array, visible: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``key [..., S, D]`` and ``value`` made safe, and which of them are visible and not finite."""
    key, bad_key = clean(jnp.where(visible[..., None], key, HARMLESS))
    value, bad_value = clean(jnp.where(visible[..., None], value, 0))
    return key, value, bad_key | bad_value


def _split(mask: Any, shape: tuple[int, ...]) -> tuple[Any, jax.Array]:
    """The causal offset in a mask, or None, and the rest of it, ``[..., N | 1, 1, S]``."""
    T, S = shape[-2:]
    offset: Any = None
    rest: Any = None
    stack = [] if mask is None else [masks.as_mask(mask)]
    while stack:
        part = stack.pop()
        like = jax.eval_shape(lambda part=part: part.as_array(T, S)).shape
        if len(like) < 2 or like[-2] == 1:
            rest = part if rest is None else rest & part
        elif isinstance(part, masks.Band) and part.low is None and part.high is not None:
            offset = part.high if offset is None else jnp.minimum(offset, part.high)
        elif isinstance(part, mask_algebra.And):
            stack += [part.left, part.right]
        else:
            raise NotImplementedError(
                "linear_attention takes masks that are the same for all queries, ar.masks.causal, "
                f"and these combined with &: got {type(part).__name__} of shape {list(like)}; "
                "ar.attend takes it"
            )
    if isinstance(offset, jax.Array) or np.ndim(offset):
        offset = jnp.asarray(offset)[..., None, None, None]
        validate.broadcastable("mask", offset, shape)
        offset = jnp.clip(offset, -T, S)
    elif offset is not None:
        offset = max(-T, min(int(offset), S))
    visible = jnp.ones((1, 1, S), bool) if rest is None else rest.as_array(T, S)
    visible = validate.broadcastable("mask", visible, shape)
    return offset, jnp.broadcast_to(visible, (*visible.shape[:-1], S))


def _arrays(query: Any, key: Any, value: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    query, key, value = (
        validate.floating_array(name, x)
        for name, x in (("query", query), ("key", key), ("value", value))
    )
    for name, x in (("key", key), ("value", value)):
        if x.ndim != query.ndim:
            raise ValueError(
                f"query and {name} must have the same number of axes: query has shape "
                f"{query.shape}, {name} {x.shape}"
            )
    return query, key, value


def _check_features(feature_map: Any, query: jax.Array, key: jax.Array) -> int:
    """F, which must be the same for both."""
    F, of_key = (
        feature_maps.count(feature_map, name, x.shape[-1])
        for name, x in (("query", query), ("key", key))
    )
    if F != of_key:
        raise ValueError(
            f"feature_map must give query and key as many features: query, of {query.shape[-1]}, "
            f"gets {F}; key, of {key.shape[-1]}, {of_key}"
        )
    return F
