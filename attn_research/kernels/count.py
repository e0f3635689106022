"""How many keys each query sees, counted block by block."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attn_research.mask_algebra import Dense, Mask
from attn_research.numerics import three_axes, vary, varying

_ROWS, _COLS = 128, 1024


def visible_keys(mask: Mask | None, bias: jax.Array | None, T: int, S: int) -> Any:
    """``[..., N | 1, T]``, or the number S if all see all: a bias of -inf hides, too.

    >>> from attn_research import masks
    >>> print(visible_keys(masks.causal(), None, 3, 3))
    [[1 2 3]]
    """
    if bias is not None:
        kept = Dense(bias != -jnp.inf)
        mask = kept if mask is None else mask & kept
    if mask is None:
        return S
    rows, cols = min(_ROWS, T), min(_COLS, S)

    def row_block(row: jax.Array) -> jax.Array:
        def add(total: jax.Array, col: jax.Array) -> tuple[jax.Array, None]:
            block = three_axes(mask.block(row, col, rows, cols)) & (col + jnp.arange(cols) < S)
            block = jnp.broadcast_to(block, (*block.shape[:-2], rows, cols))
            return total + block.sum(-1), None

        lead = jax.eval_shape(lambda: mask.block(0, 0, rows, cols)).shape[:-2]
        start = jnp.zeros((*(lead or (1,)), rows), int)
        start = vary(start, varying(mask))
        return lax.scan(add, start, cols * jnp.arange(math.ceil(S / cols)))[0]

    total = lax.map(row_block, rows * jnp.arange(math.ceil(T / rows)))
    total = jnp.moveaxis(total, 0, -2)
    return total.reshape(*total.shape[:-2], -1)[..., :T]
