"""What all normalizers have in common."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from attn_research import scaling


class Normalizer:
    """Turns logits into weights. A subclass is a frozen dataclass, registered as a pytree: what may
    be traced is data, the rest static.

    Attributes:
      SUMS_TO_ONE: whether the weights of a row that sees a key sum to 1.
      STREAMS: how it can be computed block by block of keys:

        - "softmax": in one pass, with a running maximum and sum of exponentials;
        - "sinks": as softmax, but at the end of a row, once, its weights are multiplied by
          ``kept(lse)``;
        - "elementwise": in one pass by ``weigh``, as each weight depends on its own logit and the
          number of visible keys alone;
        - "threshold": a few passes over the blocks search one number t a row, from sums over the
          keys: weights are ``max(l / POWER - t, 0)^POWER``, POWER 1 or 2;
        - "bisection": likewise, but y is searched, and weights are those of ``entmax.weights_at``;
        - None: not known to; the whole row is needed.
    """

    SUMS_TO_ONE: ClassVar[bool]
    STREAMS: ClassVar[str | None]

    def normalize(self, logits: jax.Array) -> jax.Array:
        """Weights for ``logits [..., N, T, S]``, S at least 1, in their dtype.

        A key that is not visible has the logit -inf and must get weight exactly 0 and derivative 0;
        so must a whole row of them. Logits are at most the largest finite number, of either sign,
        and give no NaN or inf, forward or backward; or they are NaN: a row with NaN must give NaN
        for all keys that it sees. An option may be an array ``[N]``, a number for each head.
        """
        raise NotImplementedError

    def weigh(self, logits: jax.Array, count: jax.Array) -> jax.Array:
        """If STREAMS is "elementwise": weights for ``logits [..., N, T, S]``, of which ``count
        [..., T, 1]``, at least 1, are visible in a row. What is not visible may get any weight."""
        raise NotImplementedError

    def kept(self, lse: jax.Array) -> jax.Array:
        """If STREAMS is "sinks": the sum of a row with this lse ``[..., N, T]``."""
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


def share(lse: jax.Array, sink: Any) -> jax.Array:
    """``exp(lse) / (exp(sink) + exp(lse))``; 0 where nothing is visible."""
    empty = lse == -jnp.inf
    return jnp.where(empty, 0, jax.nn.sigmoid(jnp.where(empty, 0, lse) - sink))


def seen_in_bad_rows(logits: jax.Array) -> jax.Array:
    """The visible keys of rows with NaN."""
    return jnp.isnan(logits).any(-1, keepdims=True) & (logits != -jnp.inf)


def spread_nan(weights: jax.Array, logits: jax.Array) -> jax.Array:
    """``weights``, but NaN for all visible keys of a row with NaN, as are derivatives other than 0.

    >>> logits = jnp.array([[jnp.nan, 1.0, -jnp.inf], [0.0, 1.0, 2.0]])
    >>> print(spread_nan(jnp.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), logits))
    [[nan nan 0. ]
     [0.2 0.3 0.5]]
    """
    return weights * jnp.where(seen_in_bad_rows(logits), jnp.nan, 1).astype(weights.dtype)


def option(name: str, x: Any, logits: jax.Array) -> jax.Array:
    """The option called ``name``, a scalar or ``[N]``, made broadcastable to ``logits [..., N, T,
    S]``, in their dtype. Raises ValueError if it has another shape."""
    heads = logits.shape[-3:-2]
    if jnp.shape(x) not in ((), heads):
        each = f", or one number for each of the {heads[0]} heads" if heads else ""
        raise ValueError(
            f"{name} of the normalizer must be a scalar{each}: got shape {jnp.shape(x)}"
        )
    return scaling.per_head(x, logits.dtype)
