"""Attention by the splash kernel for TPUs that comes with JAX.

Not yet run on a TPU: tested in interpret mode on the CPU. Its products are of bfloat16 and summed
in float32. It takes no scale: the scaled queries go in as a rounded part and what is left of it,
side by side, so that scaling rounds nothing that matters. Under ``jit`` with arrays sharded over
several TPUs it must be within ``shard_map(..., check_vma=False)``, as JAX cannot split it. Logits
near the limits of float32 do not saturate there. Reverse mode alone.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NEEDS = "a TPU"
DTYPES = (jnp.bfloat16,)
LANES = 128  # sizes of blocks are multiples of it


def available() -> bool:
    """Whether the default device is a TPU."""
    return jax.default_backend() == "tpu"


def features(keys: int, values: int) -> str:
    """What of the numbers of features it cannot do; empty if it can."""
    return "" if keys and values else f"keys or values without features: got {keys} and {values}"


def call(
    query: jax.Array, key: jax.Array, value: jax.Array, scale: float, causal: bool, lengths: Any
) -> jax.Array:
    """``[B, L, heads, D]``, the dtype of ``value``; ``lengths [B]`` of at least 1, or None."""
    T, S = query.shape[1], key.shape[1]
    query, key = _scaled(query, key, scale)
    query, key, value = (_padded(x.astype(value.dtype)).swapaxes(1, 2) for x in (query, key, value))
    rows, cols = query.shape[2], key.shape[2]
    kernel, segments = _kernel(query.shape[1], rows, cols, causal), None
    if lengths is not None or cols > S:
        seen = jnp.broadcast_to(S if lengths is None else lengths, len(query))
        hidden = (jnp.arange(cols) >= seen[:, None]).astype(jnp.int32)
        segments = _splash().SegmentIds(jnp.zeros((len(query), rows), jnp.int32), hidden)
    return jax.vmap(kernel)(query, key, value, segments).swapaxes(1, 2)[:, :T]


def _scaled(query: jax.Array, key: jax.Array, scale: float) -> tuple[jax.Array, jax.Array]:
    """Queries and keys whose products in bfloat16 are scaled products, to a relative 2^-16."""
    exact = scale > 0 and math.frexp(scale)[0] == 0.5
    if exact and query.dtype == jnp.bfloat16:
        return query * jnp.asarray(scale, query.dtype), key
    query = query.astype(jnp.float32) * scale
    rounded = query.astype(jnp.bfloat16)
    rest = (query - rounded.astype(jnp.float32)).astype(jnp.bfloat16)
    return jnp.concatenate([rounded, rest], -1), jnp.concatenate([key, key], -1)


def _padded(x: jax.Array) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % LANES), (0, 0), (0, 0)))


def _splash() -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    return splash_attention_kernel


def _kernel(heads: int, rows: int, cols: int, causal: bool, interpret: bool = False) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask

    kind = splash_attention_mask.CausalMask if causal else splash_attention_mask.FullMask
    q, kv = (int(np.gcd(length, 512)) for length in (rows, cols))
    sizes = _splash().BlockSizes(
        block_q=q,
        block_kv=kv,
        block_kv_compute=kv,
        block_q_dkv=q,
        block_kv_dkv=kv,
        block_kv_dkv_compute=kv,
        block_q_dq=q,
        block_kv_dq=kv,
    )
    return _splash().make_splash_mha_single_device(
        splash_attention_mask.MultiHeadMask([kind((rows, cols))] * heads),
        block_sizes=sizes,
        interpret=interpret,
    )
