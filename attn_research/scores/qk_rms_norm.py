"""QK-norm with gains: ``logits[i, j] = RMSNorm(q_i) . RMSNorm(k_j)``, scaled by 1/sqrt(d).

``RMSNorm(x) = gain * x / sqrt(mean(x^2) + 1e-6)``, a gain for each feature, of queries and of keys:
Zhang, Sennrich 2019, "Root Mean Square Layer Normalization". Normalizing q and k keeps logits from
growing in training: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters",
with LayerNorm; as here in Gemma 3 (Gemma Team 2025; its gains are 1 + a parameter) and Qwen 3 (Yang
et al. 2025), with the epsilon of both. 1/sqrt(d) stays. d = Dq = Dk. Parameters:
``{"query_gain" [D], "key_gain" [D]}``.

>>> import attn_research as ar
>>> params = {"query_gain": jnp.array([1.0, 2.0]), "key_gain": jnp.ones(2)}
>>> q, k = jnp.ones((1, 2)), jnp.array([[7.0, 1.0], [0.0, 0.0]])  # [1 2] . [1.4 0.2] = 1.8
>>> print(ar.attention_weights(q, k, score="qk_rms_norm", score_params=params).round(4))
[[0.7812 0.2188]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import clip_finite, wide
from attn_research.scores._norms import largest, power_of_two

DEFAULT_SCALE = "rsqrt_dim"
PAIRWISE = "dot"
PARAMS = {"query_gain": ("Dq",), "key_gain": ("Dk",)}
SAME_DIM = True


def init(
    key: jax.Array, query_dim: int, key_dim: int, *, dtype: Any = jnp.float32
) -> dict[str, jax.Array]:
    """Gains 1: the norms are sqrt(d), a scaled logit sqrt(d) cos(q, k), whose variance is 1 for
    independent vectors, one of them of any direction alike, however long they are."""
    return {"query_gain": jnp.ones((query_dim,), dtype), "key_gain": jnp.ones((key_dim,), dtype)}


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """``RMSNorm(q)``."""
    return _rms_norm(x, params["query_gain"])


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``RMSNorm(k)``."""
    return _rms_norm(x, params["key_gain"])


def _rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    x = x.astype(wide(x.dtype))
    power = jnp.maximum(power_of_two(largest(x)), 1)  # no square overflows
    x = x / power
    mean = jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6 / power / power
    return clip_finite(gain * (x / jnp.sqrt(mean)))
