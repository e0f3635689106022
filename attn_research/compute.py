"""Score -> scale -> bias -> mask -> normalize -> mix, of inputs that were checked.

What keeps masked positions from leaking, forward and backward, is ``hide.py``; the rest is a
straight line, once with the whole weights in memory and once block by block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attn_research import choose, dropout, normalizers, numerics, scaling, scores, talking_heads
from attn_research import params as parameters
from attn_research.hide import Hidden, flag, hide
from attn_research.kernels import count, dense, fused, layout, searched, streams
from attn_research.mask_types import Band, FirstKeys
from attn_research.validate import Inputs, Options


def context(inputs: Inputs, options: Options) -> jax.Array:
    """``[..., T, N, Dv]`` (``[T, Dv]``) in the dtype of value."""
    return _attend(inputs, options, with_lse=False)[0]


def context_and_lse(inputs: Inputs, options: Options) -> tuple[jax.Array, jax.Array]:
    """The same, and lse ``[..., N, T]``."""
    out, lse = _attend(inputs, options, with_lse=True)
    assert lse is not None
    return out, lse


def weights(inputs: Inputs, options: Options) -> jax.Array:
    """``[..., N, T, S]``."""
    return _weights(_hide(inputs, options), inputs, options)[0]


def _attend(inputs: Inputs, options: Options, with_lse: bool) -> tuple[jax.Array, jax.Array | None]:
    assert inputs.value is not None
    implementation = choose.implementation(inputs, options, with_lse)
    lse: jax.Array | None
    if implementation == "dense":
        out, lse = _dense(inputs, options)
    elif implementation in fused.KERNELS:
        out, lse = _fused(implementation, inputs, options), None
    else:
        any_mode = implementation == "blocked_any_mode"
        out, lse = _blocked(inputs, options, any_mode, with_lse)
    out = out.astype(inputs.value.dtype)
    return (out[:, 0] if inputs.one_head else out), lse


def _dense(inputs: Inputs, options: Options) -> tuple[jax.Array, jax.Array]:
    hidden = _hide(inputs, options)
    weights, lse, visible = _weights(hidden, inputs, options)
    if hidden.bad_values is not None:
        seen = hidden.bad_values if visible is None else hidden.bad_values & visible
        weights = weights * jnp.where(seen, jnp.nan, 1).astype(weights.dtype)
    assert hidden.value is not None
    undropped = isinstance(options.dropout_rate, float | int) and options.dropout_rate == 0
    bounded = undropped and options.talking_heads is None
    bounded = bounded and normalizers.get(options.normalizer).SUMS_TO_ONE
    out = dense.mix(weights, hidden.value, bounded)
    if visible is not None:
        sees_something = visible.any(-1).swapaxes(-1, -2)[..., None]  # [..., T | 1, N | 1, 1]
        out = jnp.where(sees_something, out, 0)
    return out, lse


def _hide(inputs: Inputs, options: Options) -> Hidden:
    return hide(inputs, score_may_hide=callable(scores.pairwise(options.score)))


def _weights(
    hidden: Hidden, inputs: Inputs, options: Options
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Weights ``[..., N, T, S]``, lse ``[..., N, T]``, and which pairs are visible."""
    mixing, keys = options.talking_heads, hidden.key.shape[-3]
    visible = talking_heads.visible_to_all(mixing, hidden.visible)
    seen = keys if visible is None else scaling.count_visible(visible, keys)
    query, key, dim = _place(inputs, options, hidden.query, hidden.key, seen)
    pairwise, pairwise_params = parameters.pairwise(options.score, inputs.score_params)
    logits = dense.logits(pairwise, pairwise_params, query, key)
    if callable(pairwise):
        kept = logits != -jnp.inf
        visible = kept if visible is None else visible & kept
        visible = talking_heads.visible_to_all(mixing, visible)
        logits = numerics.clip_finite(jnp.where(kept, logits, 0))
    logits = scaling.apply(logits, options.scale, _default_scale(options), dim, visible)
    if options.softcap is not None:
        cap = jnp.asarray(options.softcap).astype(logits.dtype)
        logits = cap * jnp.tanh(logits / cap)
    if hidden.bias is not None:
        logits = numerics.clip_finite(logits + hidden.bias.astype(logits.dtype))
    logits = talking_heads.mix_logits(mixing, logits)
    if hidden.bad_pairs is not None:
        logits = jnp.where(hidden.bad_pairs, jnp.nan, logits)
    if visible is not None:
        logits = jnp.where(visible, logits, -jnp.inf)
    if not logits.shape[-1]:
        return logits, jnp.full(logits.shape[:-1], -jnp.inf, logits.dtype), visible
    weights, lse = normalizers.get(options.normalizer).normalize_with_lse(logits)
    weights = talking_heads.mix_weights(mixing, weights)
    return dropout.drop(weights, options.dropout_rate, options.dropout_key), lse, visible


def _place(
    inputs: Inputs, options: Options, query: jax.Array, key: jax.Array, seen: Any
) -> tuple[jax.Array, jax.Array, int]:
    """Queries and keys as the pairwise kernel gets them, and d of the scale."""
    score, score_params = options.score, inputs.score_params
    query = parameters.transform(score, "query", score_params, query)
    if inputs.transformed is None:
        key = parameters.transform_for_heads(score, score_params, key)
    dim = query.shape[-1]
    query, key = parameters.place(score, score_params, query, key, options.score_state, seen)
    return query, key, dim


def _default_scale(options: Options) -> str:
    named = isinstance(options.score, str)
    return scores.get(options.score).DEFAULT_SCALE if named else "none"


def _blocked(
    inputs: Inputs, options: Options, any_mode: bool, with_lse: bool
) -> tuple[jax.Array, jax.Array | None]:
    pairwise, pairwise_params = parameters.pairwise(options.score, inputs.score_params)
    safe = flag(inputs, score_may_hide=callable(pairwise))
    assert inputs.value is not None
    seen: Any = None
    if choose.needs_count(options):
        seen = count.visible_keys(inputs.mask, inputs.bias, *inputs.shape[-2:])
    query, key, dim = _place(inputs, options, safe.query, safe.key, seen)
    # What no transform reads can be cleaned where it is taken from: before, that would be a copy.
    raw = tuple(pairwise == "dot" and x is y for x, y in ((query, safe.query), (key, safe.key)))
    query, key = inputs.query if raw[0] else query, inputs.key if raw[1] else key
    if callable(pairwise):  # a wrong shape is said of the whole, not of a block
        jax.eval_shape(functools.partial(dense.logits, pairwise), pairwise_params, query, key)
    problem = layout.Problem(
        pairwise,
        pairwise_params,
        query,
        key,
        inputs.value,
        inputs.bias,
        inputs.mask,
        safe.bad_query,
        safe.bad_key,
        safe.bad_value,
        raw,
        seen,
        options.scale,
        _default_scale(options),
        dim,
        options.softcap,
        options.dropout_rate,
        options.dropout_key,
    )
    normalizer = normalizers.get(options.normalizer)
    if jax.tree.leaves(normalizer):  # likewise an option of a wrong shape
        some = jax.ShapeDtypeStruct((query.shape[-2], 1, 1), jnp.float32)
        jax.eval_shape(normalizer.normalize, some)
    if normalizer.STREAMS == "elementwise":
        out, _ = layout.context_and_lse(problem, streams.ELEMENTWISE, normalizer, any_mode)
        sees = jnp.swapaxes(jnp.atleast_2d(seen) > 0, -1, -2)[..., None]
        lse = layout.lse(problem, any_mode) if with_lse else None
        return jnp.where(sees, out, 0), lse
    if normalizer.STREAMS in ("threshold", "bisection"):
        if normalizer.STREAMS == "threshold":
            stream: Any = searched.Threshold(normalizer.POWER)  # type: ignore[attr-defined]
            out, largest = layout.context_and_lse(problem, stream, None)
        else:
            out, largest = layout.context_and_lse(problem, searched.Bisection(), normalizer)
        assert largest is not None
        lse = layout.lse(problem) if with_lse else None
        return jnp.where((largest == -jnp.inf).swapaxes(-1, -2)[..., None], 0, out), lse
    out, lse = layout.context_and_lse(problem, streams.SOFTMAX, None, any_mode)
    assert lse is not None
    if inputs.mask is not None or inputs.bias is not None or callable(pairwise):
        out = jnp.where((lse == -jnp.inf).swapaxes(-1, -2)[..., None], 0, out)
    if normalizer.STREAMS == "sinks":
        out = out * normalizer.kept(lse).swapaxes(-1, -2)[..., None]
    return out, lse


def _fused(name: str, inputs: Inputs, options: Options) -> jax.Array:
    mask, bad = inputs.mask, None
    safe: Any
    if isinstance(mask, Band):  # the causal one, T = S
        safe = flag(inputs, score_may_hide=False)
        bad = safe.bad_key | safe.bad_value
        bad = jnp.repeat(bad, inputs.query.shape[-2] // bad.shape[-1], -1).astype(jnp.int32)
        bad = (jax.lax.cummax(bad, bad.ndim - 2) > 0) | safe.bad_query
    else:
        safe = _hide(inputs, options)
    query, key, dim = _place(inputs, options, safe.query, safe.key, None)
    scale = scaling.resolve(options.scale, _default_scale(options), dim)
    lengths = mask.count if isinstance(mask, FirstKeys) else None
    out = fused.context(name, query, key, safe.value, scale, isinstance(mask, Band), lengths)
    return out if bad is None else out * jnp.where(bad, jnp.nan, 1).astype(out.dtype)[..., None]
