"""The small parts that models share: dense layers, embeddings, dropout."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from experiments.config import SCALES


def dense_init(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """{"kernel" [inputs, outputs] (Glorot & Bengio 2010, uniform), "bias" [outputs] (zeros)}."""
    kernel = jax.nn.initializers.glorot_uniform()(key, (inputs, outputs))
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


def dense(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """x [..., inputs] -> [..., outputs]."""
    return x @ params["kernel"] + params["bias"]


def embed(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Tokens [...] int32, rows of `table` [V, E] -> [..., E]."""
    return jnp.take(table, tokens, axis=0, mode="clip")


def drops(rate: Any, key: jax.Array | None) -> bool:
    """Whether there is dropout: not without a key (evaluation), not at a rate known to be 0."""
    return key is not None and not (isinstance(rate, float | int) and rate == 0)


def dropout(x: jax.Array, rate: Any, key: jax.Array | None, place: int) -> jax.Array:
    """Zeroes a fraction `rate` of x and scales the rest (Srivastava et al. 2014), if it `drops`.

    `place` sets the places of a model that share one key apart.
    """
    if not drops(rate, key):
        return x
    assert key is not None
    keep = jax.random.bernoulli(jax.random.fold_in(key, place), 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


def scale_value(scale: Any) -> Any:
    """The config's word for a scale as `ar.attend` takes it; an array is one already. ValueError if
    it is none."""
    if not isinstance(scale, str):
        return scale
    if scale == "default":
        return None
    if scale not in SCALES and not math.isfinite(float(scale)):
        raise ValueError(f"{scale} is no finite number")
    return scale if scale in SCALES else float(scale)
