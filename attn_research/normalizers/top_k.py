"""Softmax over the k largest logits of a row; the other keys get 0.

Exactly k are kept, or all if no more are visible: of equal logits those with the lower index. Zhao
et al. 2019, "Explicit Sparse Transformer"; Gupta et al. 2021, "Memory-efficient Transformers via
Top-k Attention". An empty row gives 0.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from attn_research.normalizers import softmax
from attn_research.normalizers._base import Normalizer, spread_nan


def _kept(logits: jax.Array, k: int) -> jax.Array:
    logits = lax.stop_gradient(logits)
    logits = jnp.where(logits == 0, 0, logits)  # top_k puts -0 below 0
    values, index = lax.top_k(logits, min(k, logits.shape[-1]))
    # The last of each, but not as values[..., -1:]: that slice makes XLA sort whole rows, which
    # takes 50 times as long on a CPU.
    last = jnp.min(values, axis=-1, keepdims=True)
    last_index = jnp.max(jnp.where(values == last, index, -1), axis=-1, keepdims=True)
    tied = (logits == last) & (jnp.arange(logits.shape[-1]) <= last_index)
    return (logits > last) | tied


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TopK(Normalizer):
    """``k``: how many keys are kept, a Python integer, 8 by default. Rows sum to 1; an empty one to
    0.

    >>> logits = jnp.log(jnp.array([[1.0, 3.0, 1.0, 0.5]]))
    >>> print(TopK(k=2).normalize(logits).round(4))
    [[0.25 0.75 0.   0.  ]]
    """

    k: int = dataclasses.field(default=8, metadata={"static": True})

    SUMS_TO_ONE = True
    STREAMS = None

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool):
            raise TypeError(f"k of top_k must be a Python integer: got {type(self.k).__name__}")
        if self.k < 1:
            raise ValueError(f"k of top_k must be at least 1: got {self.k}")

    def normalize(self, logits: jax.Array) -> jax.Array:
        kept = jnp.where(_kept(logits, self.k), logits, -jnp.inf)
        return spread_nan(softmax.weights_and_lse(kept)[0], logits)


NORMALIZER = TopK
