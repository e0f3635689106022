"""Attention by cuDNN's fused kernel on NVIDIA GPUs, through ``jax.nn.dot_product_attention``.

Not yet run on a GPU: tested on the CPU with JAX's own implementation in the place of cuDNN's. It
computes in float32 from 16-bit inputs and rounds the weights to 16 bits before they mix the values.
Products above 3e38, which bfloat16 can make, overflow there and give NaN. Reverse mode alone.
"""

from typing import Any

import jax
import jax.numpy as jnp

NEEDS = "an NVIDIA GPU of compute capability 8.0 or more"
DTYPES = jnp.bfloat16, jnp.float16


def available() -> bool:
    """Whether the default device is an NVIDIA GPU that has the kernel (Ampere and newer)."""
    if jax.default_backend() != "gpu":
        return False
    device = jax.devices()[0]
    nvidia = "cuda" in device.client.platform_version
    return nvidia and int(device.compute_capability.split(".")[0]) >= 8


def features(keys: int, values: int) -> str:
    """What of the numbers of features it cannot do; empty if it can."""
    if keys == values and 0 < values <= 128 and values % 8 == 0:
        return ""
    return (
        "features but a multiple of 8 up to 128, the same for keys and values: got "
        f"{keys} and {values}"
    )


def call(
    query: jax.Array, key: jax.Array, value: jax.Array, scale: float, causal: bool, lengths: Any
) -> jax.Array:
    """``[B, L, heads, D]``, the dtype of ``value``; ``lengths [B]`` of at least 1, or None."""
    query, key = query.astype(value.dtype), key.astype(value.dtype)
    options: dict[str, Any] = {} if lengths is None else dict(key_value_seq_lengths=lengths)
    return jax.nn.dot_product_attention(
        query, key, value, scale=scale, is_causal=causal, implementation="cudnn", **options
    )
