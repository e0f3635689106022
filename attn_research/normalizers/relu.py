"""ReLU over the number of visible keys: ``p_j = max(l_j, 0) / n``.

Wortsman, Lee, Gilmer, Kornblith 2023, "Replacing softmax with ReLU in Vision Transformers". Weights
are not bounded by 1. The derivative at l = 0 is 0. An empty row gives 0.
"""

import dataclasses

import jax

from attn_research.normalizers._base import Normalizer, spread_nan, visible_count


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Relu(Normalizer):
    """No options. Rows sum to the mean of the positive parts; an empty one to 0.

    >>> print(Relu().normalize(jax.numpy.array([[3.0, -1.0, 0.0, 6.0]])))
    [[0.75 0.   0.   1.5 ]]
    """

    SUMS_TO_ONE = False
    STREAMS = "elementwise"

    def normalize(self, logits: jax.Array) -> jax.Array:
        return spread_nan(self.weigh(logits, visible_count(logits)), logits)

    def weigh(self, logits: jax.Array, count: jax.Array) -> jax.Array:
        return jax.nn.relu(logits) / count


NORMALIZER = Relu
