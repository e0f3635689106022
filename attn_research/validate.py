"""Checks of the arguments of ``attend``: one line, naming the argument and the numbers."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research import dropout, masks, normalizers, scaling, scores, talking_heads
from attn_research import params as parameters
from attn_research.folders import unknown
from attn_research.numerics import three_axes, wide
from attn_research.transformed import TransformedKeys

IMPLEMENTATIONS = ("dense", "blocked", "blocked_any_mode", "cudnn", "splash")


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of ``attend``, as given."""

    score: Any
    score_params: Any
    score_state: Any
    scale: Any
    bias: Any
    mask: Any
    normalizer: Any
    softcap: Any
    talking_heads: Any
    dropout_rate: Any
    dropout_key: Any
    implementation: Any


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Checked inputs, with a head axis even for one head.

    ``query [..., T, N, Dq]``, ``key [..., S, K, Dk]``, ``value [..., S, K, Dv]``; ``bias`` has at
    least three axes and ``shape`` is that of the logits, ``[..., N, T, S]``.
    """

    query: jax.Array
    key: jax.Array
    transformed: TransformedKeys | None  # with ``key`` its keys
    value: jax.Array | None
    mask: masks.Mask | None
    bias: jax.Array | None
    score_params: Any  # its leaves as JAX arrays
    shape: tuple[int, ...]
    one_head: bool

    def visible(self) -> jax.Array | None:
        """The mask as an array of at least three axes, broadcastable to ``shape``."""
        if self.mask is None:
            return None
        return three_axes(self.mask.as_array(*self.shape[-2:]))


def floating_array(name: str, x: Any) -> jax.Array:
    x = jnp.asarray(x)
    if x.ndim < 2:
        raise ValueError(
            f"{name} must be [..., length, heads, features] or [length, features]: got shape "
            f"{x.shape}"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name} must be floating: got {x.dtype}; use {name}.astype(jnp.float32)")
    return x


def check(query: Any, key: Any, value: Any, options: Options) -> Inputs:
    """Raises ValueError or TypeError before anything is computed; returns what to compute with."""
    score, score_params = options.score, options.score_params
    if not callable(score):
        scores.get(score)
    normalizers.get(options.normalizer)
    dropout.check(options.dropout_rate, options.dropout_key)
    if options.implementation is not None and options.implementation not in IMPLEMENTATIONS:
        raise ValueError(unknown("implementation", options.implementation, IMPLEMENTATIONS))
    softcap = options.softcap
    if isinstance(softcap, int | float) and not 0 < softcap < math.inf:
        raise ValueError(f"softcap must be positive and finite (or None): got {softcap}")
    if softcap is not None and jnp.ndim(softcap):
        raise ValueError(f"softcap must be a scalar: got shape {jnp.shape(softcap)}")

    transformed = key if isinstance(key, TransformedKeys) else None
    if transformed is not None and transformed.score != score:
        raise ValueError(f"key was transformed for score {transformed.score!r}, not for {score!r}")
    query = floating_array("query", query)
    key = floating_array("key", key if transformed is None else transformed.keys)
    value = None if value is None else floating_array("value", value)
    others = [("key", key)] + ([] if value is None else [("value", value)])
    for name, x in others:
        if x.ndim != query.ndim:
            raise ValueError(
                f"query and {name} must have the same number of axes: query has {query.ndim} "
                f"{list(query.shape)}, {name} {x.ndim} {list(x.shape)}; arrays are [..., length, "
                "heads, features], or all of them [length, features]"
            )
    one_head = query.ndim == 2
    if one_head:
        query, key = query[:, None], key[:, None]
        value = None if value is None else value[:, None]
        if transformed is not None:
            transformed = dataclasses.replace(transformed, bad=transformed.bad[:, None])
    check_axes(query, key, value, transformed, score_params)
    scaling.check(options.scale, query.shape[-2], wide(query.dtype, key.dtype))
    talking_heads.check(options.talking_heads, query.shape[-2])
    key_dim = key.shape[-1] if transformed is None else transformed.key_dim
    if isinstance(score, str):
        parameters.check_params(
            score, score_params, query.shape[-1], key_dim, num_heads=query.shape[-2]
        )
    score_params = parameters.as_arrays(score_params)

    shape = logits_shape(query, key, value)
    mask = None if options.mask is None else masks.as_mask(options.mask)
    if mask is not None:
        visible = jax.eval_shape(lambda: mask.as_array(shape[-2], shape[-1]))
        check_broadcastable("mask", visible.shape, shape)
    bias = options.bias
    if bias is not None:
        bias = jnp.asarray(bias)
        if not jnp.issubdtype(bias.dtype, jnp.floating):
            hint = "; a boolean array goes in mask=" if bias.dtype == jnp.bool_ else ""
            raise TypeError(f"bias must be floating: got {bias.dtype}{hint}")
        bias = broadcastable("bias", bias, shape)
    _check_state(score, options.score_state, shape)
    return Inputs(query, key, transformed, value, mask, bias, score_params, shape, one_head)


def _check_state(score: Any, state: Any, shape: tuple[int, ...]) -> None:
    """``shape`` is that of the logits."""
    if state is None:
        return
    axes = scores.state_axes(score)
    if axes is None:
        raise ValueError(f"score_state is not for score {score!r}, which has no state")
    sizes = dict(zip("NTS", shape[-3:], strict=True))
    own = tuple(sizes[axis] for axis in axes)
    allowed = (*shape[:-3], *own)
    try:
        fits = jnp.broadcast_shapes(jnp.shape(state), allowed) == allowed
    except ValueError:
        fits = False
    if not fits or (axes and jnp.shape(state)[-len(own) :] != own):
        raise ValueError(
            f"score_state of score {score!r} must be [{', '.join(('...', *axes))}] = "
            f"{list(allowed)}: got {list(jnp.shape(state))}"
        )
    kind, name = (jnp.floating, "floating") if axes else (jnp.integer, "integer")
    dtype = jnp.asarray(state).dtype
    if not jnp.issubdtype(dtype, kind):
        raise TypeError(f"score_state of score {score!r} must be {name}: got {dtype}")


def check_axes(query: Any, key: Any, value: Any, transformed: Any, score_params: Any) -> None:
    heads, key_heads = query.shape[-2], key.shape[-2]
    named = parameters.head_count(score_params)
    if named not in (None, heads):
        raise ValueError(
            f"score_params are PerHead with {named} heads on axis 0, query has {heads} heads"
        )
    if key_heads == 0 or heads % key_heads:
        raise ValueError(
            f"query heads must be a multiple of key heads: query has {heads} on axis -2, key has "
            f"{key_heads}{_layout_hint(query, key)}"
        )
    if value is None:
        return
    if value.shape[-3] != key.shape[-3]:
        swapped = value.shape[-3:-1] == key.shape[-2:-4:-1]
        raise ValueError(
            f"key and value must have the same length: key has {key.shape[-3]} positions on axis "
            f"-3, value has {value.shape[-3]}{_SWAPPED if swapped else ''}"
        )
    value_heads = value.shape[-2]
    repeated = transformed is not None and key_heads == heads and value_heads > 0
    if value_heads != key_heads and not (repeated and heads % value_heads == 0):
        raise ValueError(
            f"key and value must have the same number of heads: key has {key_heads} on axis -2, "
            f"value has {value_heads}"
        )


_SWAPPED = (
    "; heads and length look swapped (arrays are [..., length, heads, features]): use "
    "x.swapaxes(-2, -3)"
)


def _layout_hint(query: Any, key: Any) -> str:
    """What is likely wrong when the numbers of heads do not fit."""
    if query.ndim == 3 and query.shape[-3] == key.shape[-3]:
        return (
            "; if these are [batch, length, features], give them an axis of heads: x[..., None, :]"
        )
    return _SWAPPED if query.shape[-3] == key.shape[-3] else ""


def logits_shape(query: Any, key: Any, value: Any) -> tuple[int, ...]:
    arrays = [("query", query), ("key", key)] + ([] if value is None else [("value", value)])
    try:
        batch = jnp.broadcast_shapes(*(x.shape[:-3] for _, x in arrays))
    except ValueError:
        shapes = ", ".join(f"{name} has {x.shape[:-3]}" for name, x in arrays)
        raise ValueError(
            f"batch axes (all before -3) must be equal or broadcast: {shapes}"
        ) from None
    return (*batch, query.shape[-2], query.shape[-3], key.shape[-3])


def broadcastable(name: str, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``x`` with at least three axes, if it can be broadcast to ``shape``."""
    check_broadcastable(name, x.shape, shape)
    return three_axes(x)


def check_broadcastable(name: str, own: tuple[int, ...], shape: tuple[int, ...]) -> None:
    try:
        fits = jnp.broadcast_shapes(own, shape) == shape
    except ValueError:
        fits = False
    if fits:
        return
    hint = ""
    if len(own) == 2 and len(shape) > 3 and own == (shape[0], shape[-1]):
        hint = f"; for a mask of keys per batch element, use {name}[:, None, None, :]"
    elif len(own) == 3 and len(shape) > 3 and own == (shape[0], *shape[-2:]):
        hint = f"; for one matrix per batch element, use {name}[:, None]"
    elif len(own) > 1 and own[-2:] == (shape[-1], shape[-2]) != shape[-2:]:
        hint = f"; queries come before keys: use {name}.swapaxes(-2, -1)"
    raise ValueError(
        f"{name} must broadcast to [..., N, T, S] = {list(shape)}: got {list(own)}{hint}"
    )
