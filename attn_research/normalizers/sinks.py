"""Softmax with a learned sink ``s``: ``p_j = exp(l_j) / (exp(s) + sum_i exp(l_i))``.

The sink takes the share ``exp(s) / (exp(s) + sum_i exp(l_i))`` and has no value: one more key of
logit s whose value is 0. One learned logit a head: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model
Card"; that trained models need a sink: Xiao et al. 2024, "Efficient Streaming Language Models with
Attention Sinks". An empty row gives 0.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research.normalizers._base import Normalizer, option, share


@jax.custom_jvp
def weights_and_rest(logits: jax.Array, sink: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights ``[..., S]`` and the share of the sink ``[..., 1]``.

    ``sink``, of the dtype of ``logits [..., S]``, is broadcastable to ``[..., 1]``; it is counted
    once a row. -inf is no sink.

    >>> weights, rest = weights_and_rest(jnp.log(jnp.array([1.0, 3.0])), jnp.log(4.0))
    >>> print(weights.round(4), rest.round(4))
    [0.125 0.375] [0.5]
    """
    largest = jnp.finfo(logits.dtype).max
    logits = jnp.minimum(logits, largest)  # see softmax.py
    sink = jnp.minimum(sink, largest)
    top = jnp.maximum(jnp.max(logits, axis=-1, keepdims=True), sink)
    top = jnp.where(top == -jnp.inf, 0, top)
    exps, rest = jnp.exp(logits - top), jnp.exp(sink - top)
    total = jnp.sum(exps, axis=-1, keepdims=True) + rest
    total = jnp.where(total == 0, 1, total)
    return exps / total, rest / total


@weights_and_rest.defjvp
def _weights_and_rest_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    weights, rest = weights_and_rest(*primals)
    weighted, weighted_rest = weights * tangents[0], rest * tangents[1]
    mean = jnp.sum(weighted, axis=-1, keepdims=True) + weighted_rest
    return (weights, rest), (weighted - weights * mean, weighted_rest - rest * mean)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sinks(Normalizer):
    """``logit``: that of the sink, a scalar or ``[N]``, may be traced and learned; 0 by default,
    which is ``softmax_one``; -inf is softmax. Rows sum to less than 1; an empty one to 0.

    >>> print(Sinks(logit=jnp.log(4.0)).normalize(jnp.log(jnp.array([[1.0, 3.0]]))).round(4))
    [[0.125 0.375]]
    """

    logit: Any = 0.0

    SUMS_TO_ONE = False
    STREAMS = "sinks"

    def __post_init__(self) -> None:
        if isinstance(self.logit, int | float) and not self.logit < math.inf:
            raise ValueError(f"logit of sinks must be a number below infinity: got {self.logit}")

    def normalize(self, logits: jax.Array) -> jax.Array:
        return weights_and_rest(logits, option("logit", self.logit, logits))[0]

    def kept(self, lse: jax.Array) -> jax.Array:
        lse = lse[..., None]
        sink = jnp.minimum(option("logit", self.logit, lse), jnp.finfo(lse.dtype).max)
        return share(lse, sink)[..., 0]


NORMALIZER = Sinks
