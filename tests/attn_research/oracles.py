"""What tests compare with, and parameters to do it for."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attn_research as ar
from attn_research import params as parameters
from attn_research import reference, scores


def is_positional(score: str) -> bool:
    """Whether the logits depend on where queries and keys stand."""
    return hasattr(scores.get(score), "place")


def draw_params(name: str, rng: Any, Dq: int, Dk: int, num_heads: int | None = None, **options):
    """Parameters of a score as NumPy float64, filled at random, so that none is zero."""
    params = ar.init_score(name, jax.random.key(0), Dq, Dk, num_heads=num_heads, **options)
    leaves = params.params if isinstance(params, ar.PerHead) else params
    filled = {k: rng.normal(size=x.shape) * 0.5 for k, x in leaves.items()}
    return ar.PerHead(filled) if num_heads else filled


def as_options(params: Any) -> dict[str, Any]:
    """``params`` as options of ``reference.attention``."""
    per_head = isinstance(params, ar.PerHead)
    return {"score_params": params.params if per_head else params, "per_head": per_head}


def formula(score: str) -> Any:
    """What ``reference.attention`` takes for ``score``: its name where its formula is there; else
    the score's own functions on one pair at a time, in float64."""
    return score if score in reference.LOGITS else _pair_by_pair(score)


def _pair_by_pair(score: str) -> Any:
    def logit(params, q, k):
        with jax.enable_x64(True):
            leaves = jax.tree.map(np.asarray, params)
            query = parameters.transform(score, "query", leaves, jnp.asarray(q)[None, None])
            _, lse = ar.attend_with_lse(
                q[None], k[None], np.ones((1, 1)), score=score, score_params=leaves, scale="none"
            )
        return float(lse[0]), query.shape[-1], scores.get(score).DEFAULT_SCALE

    return logit


def default_options(normalizer: str) -> dict[str, Any]:
    """The options that a normalizer has by default, for ``reference.attention``."""
    made = ar.normalizer(normalizer)
    return {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}


def oracle(drawn, params, **options):
    """Context and weights by ``reference.attention``."""
    return reference.attention(*drawn, **as_options(params), **options)[:2]


def both(drawn, params, **options):
    """The same from the library, in the dtype of the inputs."""

    @jax.jit
    def run(q, k, v, params, state):
        given = dict(score_params=params, score_state=state, **options)
        return ar.attend(q, k, v, **given), ar.attention_weights(q, k, **given)

    state = options.pop("score_state", None)
    return run(*drawn, params, state)


def weights_of(query, key, params, **options):
    return jax.jit(lambda p: ar.attention_weights(query, key, score_params=p, **options))(params)


def single(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)
