"""In the place of others' attention functions: ``jax.nn``'s, and those that Flax layers take.

The call is theirs, the numerics are those of ``attend``: rows that see no key give 0 and no
gradient, masked positions influence nothing.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attn_research import masks
from attn_research.attend import attend, attend_with_lse, attention_weights
from attn_research.numerics import wide


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """``jax.nn.dot_product_attention``, argument for argument.

    Args:
      query, key, value: ``[B, T, N, H]``, ``[B, S, K, H]``, ``[B, S, K, Dv]``, or without B, which
        is then 1 for the arguments below; N a multiple of K.
      bias, mask: numbers to add, booleans (True is visible), broadcastable to ``[B, N, T, S]``.
      scale: of the logits, by default 1/sqrt(H).
      is_causal: query i sees the keys j <= i.
      query_seq_lengths: ``[B]``: queries from there on give 0.
      key_value_seq_lengths: ``[B]``: keys from there on are not seen.
      local_window_size: ``(left, right)``: query i sees the keys i - left ... i + right; a number
        stands for both.
      implementation: as for ``attend``; "xla" is taken for "dense".
      return_residual: also return the log-sum-exp ``[B, T, N]``, in at least float32.

    Returns:
      ``[B, T, N, Dv]`` in the dtype of ``value``, without B if ``query`` has none.

    >>> q = k = v = jnp.eye(2)[:, None]  # [T, N, H]
    >>> print(dot_product_attention(q, k, v, is_causal=True)[:, 0].round(4))
    [[1.     0.    ]
     [0.3302 0.6698]]
    """
    shape = jnp.shape(query)
    query, key, value = (_four_axes(x) for x in (query, key, value))
    if len(shape) < 4:
        for name, x in (("key", key), ("value", value)):
            if x.shape[:-3] != (1,):
                raise ValueError(
                    f"query has no batch axis, {name} has one that is not 1: query is "
                    f"{list(shape)}, {name} {list(x.shape)}"
                )
    if bias is not None and jnp.issubdtype(jnp.result_type(bias), jnp.integer):
        bias = jnp.asarray(bias).astype(wide(query.dtype))
    visible = None if mask is None else masks.as_mask(mask)

    def see(more: masks.Mask) -> None:
        nonlocal visible
        visible = more if visible is None else visible & more

    if is_causal:
        see(masks.causal())
    if local_window_size is not None:
        both = isinstance(local_window_size, int)
        left, right = (local_window_size,) * 2 if both else local_window_size  # type: ignore[misc]
        see(masks.window(left, right))
    if key_value_seq_lengths is not None:
        see(masks.lengths(key_value_seq_lengths))
    if query_seq_lengths is not None:
        real = jnp.arange(query.shape[-3]) < jnp.asarray(query_seq_lengths)[..., None]
        see(masks.dense(real[..., None, :, None]))
    options: Any = dict(
        scale=scale,
        bias=bias,
        mask=visible,
        implementation="dense" if implementation == "xla" else implementation,
    )
    lse = None
    if return_residual:
        context, lse = attend_with_lse(query, key, value, **options)
        lse = lse.swapaxes(-1, -2)
    else:
        context = attend(query, key, value, **options)
    if len(shape) < 4:
        context = context.reshape(*shape[:-1], context.shape[-1])
        lse = None if lse is None else lse.reshape(shape[:-1])
    return context if lse is None else (context, lse)


def _four_axes(x: Any) -> jax.Array:
    """As ``jax.nn`` does it: axes of 1 before those that are there."""
    x = jnp.asarray(x)
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def flax_attention_fn(**options: Any) -> Callable[..., jax.Array]:
    """An ``attention_fn`` for ``flax.linen.MultiHeadDotProductAttention`` and
    ``flax.nnx.MultiHeadAttention``.

    Args:
      **options: of ``attend``, such as ``score``, ``score_params``, ``scale`` or ``normalizer``;
        bias, mask and dropout come from the layer. A ``mask`` given here narrows the layer's.

    Masks are visible where they are not 0, as Flax makes them. With dropout each batch element and
    head drops weights of its own, whatever ``broadcast_dropout`` says. ``sow_weights`` works.

    >>> import flax.linen as nn
    >>> attention = flax_attention_fn(score="cosine", scale=10.0)
    >>> layer = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=attention)
    >>> layer.init_with_output(jax.random.key(0), jnp.ones((1, 3, 4)))[0].shape
    (1, 3, 4)
    """
    own_mask = options.pop("mask", None)
    own_mask = None if own_mask is None else masks.as_mask(own_mask)

    def attention_fn(
        query: Any,
        key: Any,
        value: Any,
        bias: Any = None,
        mask: Any = None,
        broadcast_dropout: bool = True,
        dropout_rng: Any = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        is_causal: bool = False,
    ) -> jax.Array:
        dtype = dtype or jnp.result_type(query, key, value)
        query, key, value = (jnp.asarray(x, dtype) for x in (query, key, value))
        visible = own_mask
        if is_causal:
            visible = masks.causal() if visible is None else visible & masks.causal()
        if mask is not None:
            mask = mask if isinstance(mask, masks.Mask) else masks.dense(jnp.asarray(mask) != 0)
            visible = mask if visible is None else visible & mask
        given = options | dict(bias=bias, mask=visible)
        if dropout_rate and not deterministic:
            given |= dict(dropout_rate=dropout_rate, dropout_key=dropout_rng)
        with _precision(precision):
            if module is not None:
                _sow(module, attention_weights(query, key, **given))
            return attend(query, key, value, **given)

    return attention_fn


def _precision(precision: Any) -> Any:
    if precision is None:
        return contextlib.nullcontext()
    if isinstance(precision, jax.lax.Precision):
        precision = precision.name.lower()
    if not isinstance(precision, str):
        raise TypeError(f"precision must be a name or a jax.lax.Precision: got {precision!r}")
    return jax.default_matmul_precision(precision)


def _sow(module: Any, weights: jax.Array) -> None:
    """Leaves ``attention_weights`` where Flax leaves them."""
    import flax.linen
    import flax.nnx

    linen = isinstance(module, flax.linen.Module)
    module.sow("intermediates" if linen else flax.nnx.Intermediate, "attention_weights", weights)
