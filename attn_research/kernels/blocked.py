"""Attention by blocks, for any pairwise function, in memory linear in T and S.

The gradient keeps the context and a few numbers a row, and computes each block of logits again
(Dao, Fu, Ermon, Rudra, Re 2022, "FlashAttention"). What lies between a pair and its logit (pairwise
function, scale, soft-cap, bias) is one differentiable function of a block: ``jax.vjp`` of it sends
gradients to queries, keys, bias and all parameters. Blocks in which nothing is visible are skipped.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attn_research.kernels.blocks import Constants, Element, Inputs, Plan
from attn_research.kernels.streams import Seen
from attn_research.numerics import contract, vary, wide


def attend_any_mode(plan: Plan, inputs: Inputs, constants: Constants) -> Any:
    """Context ``[M, H, G, T', Dv]`` and lse ``[M, H, G, T']`` (None: the stream has none).

    All modes of differentiation work; in reverse mode what a block leaves for the gradient is kept.
    """
    return _run(plan, inputs, constants)[:2]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(plan: Plan, inputs: Inputs, constants: Constants) -> Any:
    """The same, in reverse mode alone (and forward over reverse), in linear memory."""
    return _run(plan, inputs, constants)[:2]


def _run(plan: Plan, inputs: Inputs, constants: Constants) -> Any:
    """``attend``, and what its stream keeps."""
    dtype = wide(inputs.query.dtype, inputs.key.dtype, inputs.value.dtype)
    width = inputs.value.shape[-1]

    def element(m: jax.Array) -> Any:
        one = Element(plan, inputs, constants, m, turned=False)

        def row_block(i: jax.Array) -> Any:
            row = i * one.rows
            count = one.rows_of(constants.count, row)
            query = one.query_of(row)
            look = functools.partial(_look, one, query, one.shrunk(query, row), dtype)

            def fold(step: Any, start: Any) -> Any:
                """``step(carry, block)`` for all blocks of the row that have a visible pair."""

                def column_block(carry: Any, j: Any) -> tuple[Any, None]:
                    col = j * one.cols

                    def see(carry: Any) -> Any:
                        def whole(carry: Any) -> Any:
                            return step(carry, look(row, col, whole=True))

                        def part(carry: Any) -> Any:
                            return step(carry, look(row, col, whole=False))

                        return _cond(one.whole(row, col), whole, part, carry)

                    return _unless_empty(one, row, col, see, carry), None

                start = vary(start, plan.axes)
                return lax.scan(column_block, start, jnp.arange(blocks[1]))[0]

            shape = one.H, one.G, one.rows
            found = plan.stream.search(one, fold, shape, dtype, count)
            start = plan.stream.start(shape, width, dtype)
            carry = fold(lambda carry, seen: plan.stream.step(carry, one, found, seen), start)
            return plan.stream.finish(carry, found)

        blocks = one.blocks()
        rows = lax.map(row_block, jnp.arange(blocks[0]))
        return jax.tree.map(functools.partial(_join, axis=2), rows)

    return lax.map(element, jnp.arange(plan.elements))


def _look(
    one: Element, query: jax.Array, shrunk: Any, dtype: Any, row: Any, col: Any, whole: bool
) -> Seen:
    key, visible, largest = one.cols_of(one.key, col), None, None
    if whole:
        assert one.plan.bare is not None
        logits, largest = one.plan.bare(one.shared, one.own, query, key, shrunk)
    else:
        bias = one.bias_of(row, col)
        logits, visible = one.logits(row, col, shrunk, query, key, bias, one.shared, one.own)
    value = one.cols_of(one.value, col)

    def mix(weights: jax.Array) -> jax.Array:
        mixed = one.drop(weights, row, col).astype(dtype)
        mixed = mixed.reshape(one.H, one.G * one.rows, one.cols)
        multiply = jnp.einsum if one.plan.stream.bounded else contract
        mixed = multiply("hxc,hcd->hxd", mixed, value)
        return mixed.reshape(*weights.shape[:3], value.shape[-1])

    return Seen(logits, visible, largest, mix)


def sees(plan: Plan, inputs: Inputs, constants: Constants, flags: Any) -> Any:
    """Which queries ``[M, H, G, T']`` see a key that is flagged, for every leaf ``[M, H, S']``."""

    def element(m: jax.Array) -> Any:
        one = Element(plan, inputs, constants, m, turned=False)

        def row_block(i: jax.Array) -> Any:
            row = i * one.rows
            query = one.query_of(row)

            def column_block(carry: Any, j: jax.Array) -> tuple[Any, None]:
                col = j * one.cols
                arguments = query, one.cols_of(one.key, col), one.bias_of(row, col)
                visible = one.logits(row, col, None, *arguments, one.shared, one.own)[1]

                def add(seen: jax.Array, flag: jax.Array) -> jax.Array:
                    here = one.by_col(flag[m], col)
                    return seen | (here if visible is None else here & visible).any(-1)

                return jax.tree.map(add, carry, flags), None

            start = jax.tree.map(lambda _: jnp.zeros((one.H, one.G, one.rows), bool), flags)
            return lax.scan(column_block, vary(start, plan.axes), jnp.arange(blocks[1]))[0]

        blocks = one.blocks()
        return jax.tree.map(
            functools.partial(_join, axis=2), lax.map(row_block, jnp.arange(blocks[0]))
        )

    return lax.map(element, jnp.arange(plan.elements))


def _unless_empty(one: Element, row: Any, col: Any, see: Any, carry: Any) -> Any:
    return _cond(one.some(row, col), see, lambda carry: carry, carry)


def _cond(which: Any, one: Any, other: Any, carry: Any) -> Any:
    """``lax.cond``, where ``which`` may be known."""
    if isinstance(which, bool):
        return one(carry) if which else other(carry)
    return lax.cond(which, one, other, carry)


def _forward(plan: Plan, inputs: Inputs, constants: Constants) -> Any:
    context, lse, kept = _run(plan, inputs, constants)
    return (context, lse), (inputs, constants, context, kept)


def _backward(plan: Plan, residuals: Any, cotangents: Any) -> Any:
    inputs, constants, context, kept = residuals
    d_context, d_lse = cotangents
    dtype, width = d_context.dtype, d_context.shape[-1]
    delta = plan.stream.delta(kept, context, d_context, d_lse)

    def element(carry: Any, m: jax.Array) -> Any:
        d_bias, d_shared, d_heads = carry
        one = Element(plan, inputs, constants, m, turned=True)
        blocks = one.blocks()

        def column_block(carry: Any, j: jax.Array) -> Any:
            col = j * one.cols
            key, value = one.cols_of(one.key, col), one.cols_of(one.value, col)
            shrunk = one.shrunk(key, col)

            def row_block(carry: Any, i: Any) -> Any:
                row = i * one.rows

                def see(carry: Any) -> Any:
                    d_query, d_key, d_value, d_bias, d_shared, d_heads = carry
                    logits, back, visible = jax.vjp(
                        functools.partial(one.logits, row, col, shrunk),
                        one.query_of(row),
                        key,
                        one.bias_of(row, col),
                        one.shared,
                        one.own,
                        has_aux=True,
                    )
                    d_rows, delta_here, kept_here = one.rows_of((d_context, delta, kept), row)
                    d_rows = d_rows.reshape(one.H, one.G * one.rows, width)
                    d_mixed = jnp.einsum("hcd,hxd->hcx", value, d_rows).reshape(logits.shape)
                    weights, d_logits, d_normalizer = plan.stream.pull(
                        one,
                        kept_here,
                        logits,
                        visible,
                        one.drop(d_mixed, row, col),
                        delta_here,
                    )
                    mixed = one.drop(weights, row, col).astype(dtype)
                    d_value += mixed.reshape(one.H, one.cols, one.G * one.rows) @ d_rows
                    dq, dk, db, ds, do = back(d_logits.astype(logits.dtype))
                    d_query = _add(d_query, dq, (0, 0, row, 0))
                    if db is not None:
                        d_bias = _add(d_bias, db, one.bias_start(row, col))
                    d_heads = _sum(d_heads, (do, d_normalizer))
                    return d_query, d_key + dk, d_value, d_bias, _sum(d_shared, ds), d_heads

                return _unless_empty(one, row, col, see, carry), None

            d_query, *rest = carry
            zeros = jnp.zeros_like(key), jnp.zeros(value.shape, dtype)
            carry = vary((d_query, *zeros, *rest), plan.axes)
            carry, _ = lax.scan(row_block, carry, jnp.arange(blocks[0]))
            d_query, d_key, d_value, *rest = carry
            return (d_query, *rest), (d_key, d_value)

        heads_now = jax.tree.map(lambda x: x[one.group], d_heads)
        start = jnp.zeros_like(one.query), d_bias, d_shared, heads_now
        (d_query, d_bias, d_shared, heads_now), columns = lax.scan(
            column_block, vary(start, plan.axes), jnp.arange(blocks[1])
        )
        d_heads = jax.tree.map(lambda x, y: x.at[one.group].set(y), d_heads, heads_now)
        d_key, d_value = (_join(x, 1) for x in columns)
        return (d_bias, d_shared, d_heads), (d_query, d_key, d_value)

    ours = inputs.bias, inputs.shared, (inputs.own, inputs.normalizer)
    start = vary(jax.tree.map(lambda x: jnp.zeros(x.shape, wide(x.dtype)), ours), plan.axes)
    sums, (d_query, d_key, d_value) = lax.scan(element, start, jnp.arange(plan.elements))
    d_bias, d_shared, (d_own, d_normalizer) = jax.tree.map(_like, sums, ours)

    def back(x: jax.Array) -> jax.Array:
        """``[M, H, ..., L, E]`` -> ``[B, L, heads, E]``."""
        batch = len(inputs.key)
        return x.reshape(batch, math.prod(x.shape[:-2]) // batch, *x.shape[-2:]).swapaxes(1, 2)

    d_query, d_key, d_value = back(d_query), back(d_key), back(d_value)
    return Inputs(d_query, d_key, d_value, d_bias, d_shared, d_own, d_normalizer), None


attend.defvjp(_forward, _backward)


def _join(blocks: jax.Array, axis: int) -> jax.Array:
    """``[blocks, ..., size, ...]`` -> ``[..., blocks * size, ...]``; ``size`` is at ``axis``."""
    blocks = jnp.moveaxis(blocks, 0, axis)
    shape = blocks.shape
    return blocks.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _add(x: jax.Array, block: jax.Array, start: tuple[Any, ...]) -> jax.Array:
    """``x`` with ``block`` added at ``start``."""
    now = lax.dynamic_slice(x, start, block.shape)
    return lax.dynamic_update_slice(x, now + block.astype(x.dtype), start)


def _sum(sums: Any, parts: Any) -> Any:
    """Their sums, in at least float32; what is no float has no derivative."""

    def add(total: jax.Array, part: jax.Array) -> jax.Array:
        return total if part.dtype == jax.dtypes.float0 else total + part

    return jax.tree.map(add, sums, parts)


def _like(total: jax.Array, x: jax.Array) -> Any:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return total.astype(x.dtype)
    return np.zeros(x.shape, jax.dtypes.float0)
