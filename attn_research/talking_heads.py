"""Talking heads: logits and weights are mixed over the heads by learned matrices.

Shazeer, Lan, Cheng, Ding, Hou 2020, "Talking-Heads Attention".
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp


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


def mix(matrix: Any, x: jax.Array) -> jax.Array:
    """``x [..., M, T, S]`` -> ``[..., N, T, S]``; ``x`` itself if ``matrix`` is None."""
    if matrix is None:
        return x
    return jnp.einsum("mn,...mts->...nts", jnp.asarray(matrix).astype(x.dtype), x)
