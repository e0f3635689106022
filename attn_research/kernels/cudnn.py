"""Attention by cuDNN's fused kernel on NVIDIA GPUs, through ``jax.nn.dot_product_attention``.

Not yet run on a GPU: tested on the CPU with JAX's own implementation in the place of cuDNN's. It
computes in float32 from 16-bit inputs and rounds the weights to 16 bits before they mix the values.
Products above 3e38, which bfloat16 can make, overflow there and give NaN. Reverse mode alone.
"""

from typing import Any

import jax
import jax.numpy as jnp

LARGEST_HEAD = 128  # features; and a multiple of 8


def available() -> bool:
    """Whether the default device is an NVIDIA GPU that has the kernel (Ampere and newer)."""
    if jax.default_backend() != "gpu":
        return False
    device = jax.devices()[0]
    nvidia = "cuda" in device.client.platform_version
    return nvidia and int(device.compute_capability.split(".")[0]) >= 8


def context(
    query: jax.Array, key: jax.Array, value: jax.Array, scale: float, causal: bool, lengths: Any
) -> jax.Array:
    """``query [..., T, N, D]``, ``key [..., S, K, D]``, ``value [..., S, K', D]``, K a multiple of
    K', -> ``[..., T, N, D]``, all in the 16-bit dtype of ``value``.

    ``lengths [...]`` (None: all keys are seen): batch elements see their first keys, those that see
    none give 0; what they do not see must be finite.
    """
    dtype = value.dtype
    batch = jnp.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    value = jnp.repeat(value, key.shape[-2] // value.shape[-2], -2)

    def flat(x: jax.Array) -> jax.Array:
        x = jnp.broadcast_to(x.astype(dtype), batch + x.shape[-3:])
        return x.reshape(-1, *x.shape[-3:])

    options: dict[str, Any] = dict(scale=scale, is_causal=causal)
    if lengths is not None:
        lengths = jnp.broadcast_to(jnp.asarray(lengths, jnp.int32), batch)
        # An empty row is not left to the kernel: it sees one key, and its result is not used.
        options["key_value_seq_lengths"] = jnp.clip(lengths, 1, key.shape[-3]).reshape(-1)
    out = _call(flat(query), flat(key), flat(value), **options)
    out = out.reshape(batch + out.shape[1:])
    return out if lengths is None else jnp.where(lengths[..., None, None, None] > 0, out, 0)


def _call(*arrays: jax.Array, **options: Any) -> jax.Array:
    return jax.nn.dot_product_attention(*arrays, implementation="cudnn", **options)
