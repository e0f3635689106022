"""Hard attention: all weight on one key, the largest logit; of equal ones that of lowest index.

The derivative is that of the relaxation ``softmax(l / temperature)`` (straight through). With a
random key, Gumbel noise ``-ln(-ln u)`` is added to the logits, so that key j is drawn with
probability softmax(l)_j (Gumbel 1954); the relaxation is then of the noisy logits. Xu et al. 2015,
"Show, Attend and Tell"; Jang, Gu, Poole 2017, "Categorical Reparameterization with Gumbel-Softmax";
Maddison, Mnih, Teh 2017, "The Concrete Distribution". An empty row gives 0.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.normalizers import softmax
from attn_research.normalizers._base import Normalizer, option, seen_in_bad_rows


def _below_top(logits: jax.Array) -> jax.Array:
    """Minus the largest of the row, which changes no softmax."""
    logits = jnp.minimum(logits, jnp.finfo(logits.dtype).max)  # see softmax.py
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    return logits - jnp.where(top == -jnp.inf, 0, top)


@jax.custom_jvp
def _relaxed(logits: jax.Array, temperature: jax.Array) -> jax.Array:
    """``softmax(logits / temperature)``."""
    return softmax.weights_and_lse(_below_top(logits) / temperature)[0]


@_relaxed.defjvp
def _relaxed_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (logits, temperature), (dlogits, dtemperature) = primals, tangents
    weights = _relaxed(logits, temperature)
    z = jnp.where(weights == 0, 0, _below_top(logits))  # else it may be -inf
    weighted = weights * (dlogits - z / temperature * dtemperature) / temperature
    return weights, weighted - weights * jnp.sum(weighted, axis=-1, keepdims=True)


@jax.custom_jvp
def _one_hot(logits: jax.Array, temperature: jax.Array) -> jax.Array:
    largest = jnp.arange(logits.shape[-1]) == jnp.argmax(logits, -1)[..., None]
    one_hot = (largest & (logits != -jnp.inf)).astype(logits.dtype)
    return jnp.where(seen_in_bad_rows(logits), jnp.nan, one_hot)


@_one_hot.defjvp
def _one_hot_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return _one_hot(*primals), jax.jvp(_relaxed, primals, tangents)[1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hard(Normalizer):
    """Rows sum to 1; an empty one to 0.

    ``key``: a ``jax.random`` key to draw with, or None, which takes the largest; what is drawn
    depends on the shape of the logits too. ``temperature``: a scalar or ``[N]``, may be traced, 1
    by default. ``straight_through``: False gives the relaxation itself in place of the one-hot.

    >>> logits = jnp.log(jnp.array([[1.0, 3.0]]))
    >>> print(Hard().normalize(logits))
    [[0. 1.]]
    >>> print(jax.jacobian(Hard().normalize)(logits)[0, :, 0].round(4))  # diag(p) - p p^T
    [[ 0.1875 -0.1875]
     [-0.1875  0.1875]]
    >>> print(Hard(temperature=0.5, straight_through=False).normalize(logits / 2).round(4))
    [[0.25 0.75]]
    >>> drawn = Hard(jax.random.key(0)).normalize(jnp.broadcast_to(logits, (1000, 2)))
    >>> bool(abs(drawn[:, 1].mean() - 0.75) < 0.05)
    True
    """

    key: Any = None
    temperature: Any = 1.0
    straight_through: bool = dataclasses.field(default=True, metadata={"static": True})

    SUMS_TO_ONE = True
    STREAMS = None

    def __post_init__(self) -> None:
        if isinstance(self.key, int | float):
            raise TypeError(f"key of hard must be a jax.random key (or None): got {self.key}")
        if not isinstance(self.straight_through, bool):
            raise TypeError(
                f"straight_through of hard must be True or False: got {self.straight_through!r}"
            )
        temperature = self.temperature
        if isinstance(temperature, int | float) and not 0 < temperature < math.inf:
            raise ValueError(f"temperature of hard must be positive and finite: got {temperature}")

    def normalize(self, logits: jax.Array) -> jax.Array:
        temperature = option("temperature", self.temperature, logits)
        if self.key is not None:
            noise = jax.random.gumbel(self.key, logits.shape, logits.dtype)
            logits = _below_top(logits) + noise
        made = _one_hot if self.straight_through else _relaxed
        return made(logits, temperature)


NORMALIZER = Hard
