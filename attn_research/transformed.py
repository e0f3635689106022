"""The key side of a score, computed once and used for many queries (a decoder's steps)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attn_research import numerics, scores
from attn_research import params as parameters


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TransformedKeys:
    """What ``transform_keys`` returns; ``attend`` takes it in place of ``key``. A pytree.

    Attributes:
      keys: transformed keys ``[..., S, H, E]`` (``[S, E]`` for one head).
      bad: ``[..., S, H]``: keys that held NaN or inf; they are replaced before the transform, and
        spoil exactly the queries that see them.
      score: the score that they were transformed for.
      key_dim: the feature size before the transform.
    """

    keys: jax.Array
    bad: jax.Array
    score: Any = dataclasses.field(metadata={"static": True})
    key_dim: int = dataclasses.field(metadata={"static": True})


def transform_keys(key: Any, *, score: Any = "dot", score_params: Any = None) -> TransformedKeys:
    """Computes the key side of ``score`` once.

    ``attend(query, transform_keys(key, score=s, score_params=p), value, score=s, score_params=p)``
    equals ``attend(query, key, value, score=s, score_params=p)``.

    Args:
      key: ``[..., S, K, Dk]`` or ``[S, Dk]``.
      score: a name or a function (whose transform is the identity).
      score_params: as for ``attend``. ``PerHead`` parameters give N heads of keys.

    >>> params = parameters.init_score("additive", jax.random.key(0), 4, 6, dim=8)
    >>> transform_keys(jnp.ones((5, 2, 6)), score="additive", score_params=params).keys.shape
    (5, 2, 8)
    """
    key = jnp.asarray(key)
    if key.ndim < 2:
        raise ValueError(f"key must be [..., S, K, Dk] or [S, Dk]: got shape {key.shape}")
    if not jnp.issubdtype(key.dtype, jnp.floating):
        raise TypeError(f"key must be floating: got {key.dtype}")
    one_head = key.ndim == 2
    cleaned, bad = numerics.clean(key[:, None] if one_head else key)
    heads = parameters.head_count(score_params) or cleaned.shape[-2]
    if isinstance(score, str):
        scores.get(score)
        query_dim = _query_dim(score, score_params, key.shape[-1])
        parameters.check_params(score, score_params, query_dim, key.shape[-1], heads)
    if heads % cleaned.shape[-2]:
        raise ValueError(
            f"score_params hold {heads} heads, key has {cleaned.shape[-2]}: the first must be a "
            "multiple of the second"
        )
    score_params = parameters.as_arrays(score_params)
    group = heads // cleaned.shape[-2]
    if group > 1:
        cleaned, bad = jnp.repeat(cleaned, group, -2), jnp.repeat(bad, group, -1)
    out = parameters.transform(score, "key", score_params, cleaned)
    if one_head and heads == 1:
        out, bad = out[:, 0], bad[:, 0]
    return TransformedKeys(out, bad, score, key.shape[-1])


def _query_dim(score: str, score_params: Any, key_dim: int) -> int:
    """Dq as the parameters tell it (no query is at hand here)."""
    per_head = isinstance(score_params, parameters.PerHead)
    given = score_params.params if per_head else score_params
    for name, axes in getattr(scores.get(score), "PARAMS", {}).items():
        shape = jnp.shape((given or {}).get(name, ()))[per_head:]
        if "Dq" in axes and len(shape) == len(axes):
            return shape[axes.index("Dq")]
        if "Dq+Dk" in axes and len(shape) == len(axes):
            return max(shape[axes.index("Dq+Dk")] - key_dim, 1)
    return key_dim
