"""What a query does not see must not reach it, forward or backward, not even as 0 * NaN."""

import dataclasses

import jax
import jax.numpy as jnp

from attn_research import numerics
from attn_research.validate import Inputs


@dataclasses.dataclass(frozen=True)
class Hidden:
    """Inputs made safe, and where NaN must be put back because it is seen.

    ``bad_pairs`` is broadcastable to ``[..., N, T, S]``: pairs whose query or key held NaN or inf.
    ``bad_values [..., N | 1, 1, S]`` are the values that did. All of these are replaced in
    ``query``, ``key`` and ``value``. ``visible`` also leaves out what a bias of -inf hides.
    """

    query: jax.Array
    key: jax.Array
    transformed: bool
    value: jax.Array | None
    visible: jax.Array | None
    bias: jax.Array | None
    bad_pairs: jax.Array | None
    bad_values: jax.Array | None


def hide(inputs: Inputs, score_may_hide: bool = False) -> Hidden:
    """Takes out of the inputs what must not influence the result.

    Without mask and bias everything is seen, and nothing is done. If all queries see the same keys
    (a mask of key lengths, T = 1), what is unseen is replaced; NaN in the rest spreads by itself.
    Otherwise, or if the score may say -inf, vectors that are not finite are replaced and
    remembered, pair by pair.
    """
    query, key, value, visible, bias = (
        inputs.query,
        inputs.key,
        inputs.value,
        inputs.visible(),
        inputs.bias,
    )
    transformed = inputs.transformed is not None
    heads = query.shape[-2]
    bad_pairs = bad_values = None
    if bias is not None:
        kept = bias != -jnp.inf
        visible = kept if visible is None else visible & kept
    if inputs.transformed is not None:
        bad_pairs = _per_query_head(inputs.transformed.bad, heads)

    if visible is not None and not score_may_hide and _by_position(inputs, visible):
        seen = jnp.broadcast_to(visible, (*visible.shape[:-1], key.shape[-3]))
        row = jnp.swapaxes(seen.any(-1, keepdims=True), -2, -3)  # [..., 1, N | 1, 1]
        query = jnp.where(row, query, numerics.HARMLESS)
        seen = jnp.moveaxis(seen, -1, -3)  # [..., S, N | 1, 1]
        key = key if transformed else jnp.where(seen, key, numerics.HARMLESS)
        value = None if value is None else jnp.where(seen, value, 0)
    elif visible is not None or score_may_hide:
        safe = flag(inputs, score_may_hide)
        query, key, value = safe.query, safe.key, safe.value
        assert safe.bad_query is not None and safe.bad_key is not None
        bad_query = jnp.swapaxes(safe.bad_query, -1, -2)[..., None]  # [..., N, T, 1]
        bad_pairs = _per_query_head(safe.bad_key, heads) | bad_query
        if safe.bad_value is not None:
            bad_values = _per_query_head(safe.bad_value, heads)
    return Hidden(query, key, transformed, value, visible, bias, bad_pairs, bad_values)


@dataclasses.dataclass(frozen=True)
class Flagged:
    """Inputs made safe, and the positions ``[..., length, heads]`` whose NaN must be put back where
    it is seen (None: of no position)."""

    query: jax.Array
    key: jax.Array
    value: jax.Array | None
    bad_query: jax.Array | None
    bad_key: jax.Array | None
    bad_value: jax.Array | None


def flag(inputs: Inputs, score_may_hide: bool) -> Flagged:
    """``hide`` for an implementation that looks at pairs and masks block by block."""
    transformed = inputs.transformed
    bad_key = None if transformed is None else transformed.bad
    if inputs.mask is None and inputs.bias is None and not score_may_hide:
        return Flagged(inputs.query, inputs.key, inputs.value, None, bad_key, None)
    query, bad_query = numerics.clean(inputs.query)
    key = inputs.key
    if transformed is None:
        key, bad_key = numerics.clean(key)
    value, bad_value = (None, None) if inputs.value is None else numerics.clean(inputs.value)
    return Flagged(query, key, value, bad_query, bad_key, bad_value)


def _by_position(inputs: Inputs, visible: jax.Array) -> bool:
    """Whether ``visible`` says for each key and head, whatever the query, if it is seen."""
    sides = [inputs.key] + ([] if inputs.value is None else [inputs.value])
    same_heads = all(x.shape[-2] == inputs.query.shape[-2] for x in sides)
    return visible.shape[-2] == 1 and (visible.shape[-3] == 1 or same_heads)


def _per_query_head(flags: jax.Array, heads: int) -> jax.Array:
    """``[..., S, K]`` -> ``[..., N, 1, S]``."""
    flags = jnp.repeat(flags, heads // flags.shape[-1], -1)
    return jnp.swapaxes(flags, -1, -2)[..., None, :]
