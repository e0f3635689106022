"""Talking heads: logits and weights are mixed over the heads by learned matrices.

Shazeer, Lan, Cheng, Ding, Hou 2020, "Talking-Heads Attention".
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import contract


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TalkingHeads:
    """``logits'_n = sum_m before[m, n] logits_m``, likewise ``after`` on the weights.

    Each is ``[N, N]``, or None for no mixing there. Logits are mixed after scale, soft-cap and
    bias; a pair that one head does not see, none sees. After the mixing of weights rows need not
    sum to 1.

    >>> swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    >>> TalkingHeads(before=swap).before.shape
    (2, 2)
    """

    before: Any = None
    after: Any = None


def check(talking_heads: Any, num_heads: int) -> None:
    """Raises unless the matrices fit."""
    if talking_heads is None:
        return
    if not isinstance(talking_heads, TalkingHeads):
        raise TypeError(
            f"talking_heads must be ar.TalkingHeads: got {type(talking_heads).__name__}"
        )
    for name in ("before", "after"):
        matrix = getattr(talking_heads, name)
        if matrix is not None and jnp.shape(matrix) != (num_heads, num_heads):
            raise ValueError(
                f"talking_heads.{name} must be [N, N] = [{num_heads}, {num_heads}]: got "
                f"{list(jnp.shape(matrix))}"
            )


def visible_to_all(mixing: TalkingHeads | None, visible: Any) -> Any:
    """``visible [..., N | 1, T, S]``, or None for all: if heads are mixed, what all of them see."""
    mixes = mixing is not None and not (mixing.before is None and mixing.after is None)
    return visible.all(-3, keepdims=True) if mixes and visible is not None else visible


def mix_logits(mixing: TalkingHeads | None, logits: jax.Array) -> jax.Array:
    """``[..., N, T, S]``, mixed before the normalizer."""
    return logits if mixing is None else _mix(mixing.before, logits)


def mix_weights(mixing: TalkingHeads | None, weights: jax.Array) -> jax.Array:
    """``[..., N, T, S]``, mixed after it."""
    return weights if mixing is None else _mix(mixing.after, weights)


def _mix(matrix: Any, x: jax.Array) -> jax.Array:
    """``x [..., M, T, S]`` -> ``[..., N, T, S]``; ``x`` itself if ``matrix`` is None."""
    if matrix is None:
        return x
    x = jnp.moveaxis(x, -3, 0)
    mixed = contract("nm,mp->np", jnp.asarray(matrix).astype(x.dtype).T, x.reshape(x.shape[0], -1))
    return jnp.moveaxis(mixed.reshape(x.shape), 0, -3)
