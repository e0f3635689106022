"""What all normalizers have in common."""

from typing import ClassVar

import jax
import jax.numpy as jnp


class Normalizer:
    """Turns logits into weights. A subclass is a frozen dataclass, registered as a pytree: what may
    be traced is data, the rest static.

    Attributes:
      SUMS_TO_ONE: whether the weights of a row that sees a key sum to 1.
      STREAMS: whether it can be computed block by block of keys in one pass: "softmax" (needs the
        running maximum and sum), "elementwise" (each weight depends on its own logit and the number
        of visible keys alone) or None.
    """

    SUMS_TO_ONE: ClassVar[bool]
    STREAMS: ClassVar[str | None]

    def normalize(self, logits: jax.Array) -> jax.Array:
        """Weights for ``logits [..., N, T, S]``, in their dtype.

        A key that is not visible has the logit -inf and must get weight exactly 0 and derivative 0;
        so must a whole row of them. Logits are at most the largest finite number, or NaN: a row
        with NaN must give NaN for the keys it sees.
        """
        raise NotImplementedError

    def normalize_with_lse(self, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The weights, and the log-sum-exp of the visible logits ``[..., N, T]``."""
        return self.normalize(logits), log_sum_exp(logits)


def log_sum_exp(logits: jax.Array) -> jax.Array:
    """``log sum_j exp(l_j)`` over the last axis: -inf with derivative 0 for a row of -inf.

    >>> print(log_sum_exp(jnp.array([[0.0, 0.0], [-jnp.inf, -jnp.inf]])).round(4))
    [0.6931   -inf]
    """
    from attn_research.normalizers import softmax

    return softmax.weights_and_lse(logits)[1]


def visible_count(logits: jax.Array) -> jax.Array:
    """The number of visible keys of each row, ``[..., 1]``, at least 1, in the dtype of logits."""
    count = jnp.sum(logits != -jnp.inf, axis=-1, keepdims=True)
    return jnp.maximum(count, 1).astype(logits.dtype)
