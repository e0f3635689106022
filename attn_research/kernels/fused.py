"""The fused kernels of accelerators: what they cannot do, and the call of either.

Both compute softmax of products of 16-bit queries and keys, in reverse mode alone.
"""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from attn_research import normalizers, scores
from attn_research import params as parameters
from attn_research.kernels import cudnn, splash
from attn_research.mask_types import Band, FirstKeys
from attn_research.validate import Inputs, Options

KERNELS: dict[str, ModuleType] = {"cudnn": cudnn, "splash": splash}


def why_not(name: str, inputs: Inputs, options: Options, with_lse: bool = False) -> str:
    """What of all this kernel ``name`` cannot do; empty if it can do it."""
    if not KERNELS[name].available():
        return f"without {KERNELS[name].NEEDS}"
    if with_lse:
        return "the log-sum-exp"
    options_refusal = _score(inputs, options) or _options(options)
    return options_refusal or _mask(inputs) or _arrays(name, inputs, options)


def _score(inputs: Inputs, options: Options) -> str:
    if scores.pairwise(options.score) != "dot":
        return f"the score {options.score!r}, which is no product of queries and keys"
    if hasattr(scores.get(options.score), "place"):
        return f"the score {options.score!r}, which reads positions"
    return "" if inputs.transformed is None else "keys that transform_keys made"


def _options(options: Options) -> str:
    normalizer = normalizers.get(options.normalizer)
    if normalizer.STREAMS != "softmax":
        return f"the normalizer {type(normalizer).__name__}"
    scale = options.scale
    if not (scale is None or isinstance(scale, str | float | int)) or scale == "log_n":
        return "a scale that is not one number known before tracing"
    for name in ("bias", "softcap", "talking_heads"):
        if getattr(options, name) is not None:
            return name
    rate = options.dropout_rate
    return "" if isinstance(rate, float | int) and rate == 0 else "dropout"


def _mask(inputs: Inputs) -> str:
    mask, (T, S) = inputs.mask, inputs.shape[-2:]
    if mask is None or isinstance(mask, FirstKeys):
        return ""
    causal = isinstance(mask, Band) and mask.low is None
    if causal and isinstance(mask.high, int) and mask.high == 0 and T == S:  # type: ignore[attr-defined]
        return ""
    return "masks but masks.lengths(...), and masks.causal() where T = S"


def _arrays(name: str, inputs: Inputs, options: Options) -> str:
    assert inputs.value is not None
    dtypes = [x.dtype for x in (inputs.query, inputs.key, inputs.value)]
    kernel = KERNELS[name]
    if len(set(dtypes)) > 1 or dtypes[0] not in kernel.DTYPES:
        allowed = " and ".join(jnp.dtype(x).name for x in kernel.DTYPES)
        return f"dtypes but {allowed}: got {', '.join(map(str, dtypes))}"
    return kernel.features(transformed(inputs, options)[0].shape[-1], inputs.value.shape[-1])


def transformed(inputs: Inputs, options: Options) -> Any:
    """Shapes and dtypes of queries and keys after the transforms of the score."""

    def transform(params: Any, query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        query = parameters.transform(options.score, "query", params, query)
        return query, parameters.transform_for_heads(options.score, params, key)

    return jax.eval_shape(transform, inputs.score_params, inputs.query, inputs.key)


def context(
    name: str,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    scale: float,
    causal: bool,
    lengths: Any,
) -> jax.Array:
    """``query [..., T, N, D]``, ``key [..., S, K, D]``, ``value [..., S, K', Dv]``, K a multiple of
    K', -> ``[..., T, N, Dv]`` in the 16-bit dtype of ``value``.

    ``lengths [...]`` (None: all keys are seen): batch elements see their first keys, those that see
    none give 0; what they do not see must be finite.
    """
    batch = jnp.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    value = jnp.repeat(value, key.shape[-2] // value.shape[-2], -2)

    def flat(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x, batch + x.shape[-3:]).reshape(-1, *x.shape[-3:])

    clipped = None
    if lengths is not None:
        lengths = jnp.broadcast_to(jnp.asarray(lengths, jnp.int32), batch)
        # An empty row is not left to the kernel: it sees one key, and its result is not used.
        clipped = jnp.clip(lengths, 1, key.shape[-3]).reshape(-1)
    out = KERNELS[name].call(flat(query), flat(key), flat(value), scale, causal, clipped)
    out = out.reshape(batch + out.shape[1:])
    return out if lengths is None else jnp.where(lengths[..., None, None, None] > 0, out, 0)
