"""Local: ``logits[i, j] = q_i^T W k_j - (j - p_i)^2 / (2 sigma^2)`` for ``|j - p_i| <= D``, else
-inf; unscaled by default.

Luong, Pham, Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation",
section 3.2, with the score ``general``. Which of its two models is said by the parameters:

- local-p (``init_score("local", ...)``): ``p_i = n sigmoid(v . tanh(W_p^T q_i))``, between 0 and n,
  the number of keys that query i sees, so that padding moves nothing (it is taken to be behind the
  keys); the gaussian has ``sigma = D / 2``.
- local-m (``predict=False``): p_i = i, the position of the query, and no gaussian. Far beyond the
  last key it sees nothing, and gives 0. ``score_state``, an integer or one for each batch element,
  is the position of the first query (None is 0), for decoding step by step; local-p has no use for
  it.

Two things differ from the paper. There, local-p multiplies the *weights* by the gaussian, after the
softmax, and they no longer sum to 1; here its logarithm is added to the logits, so that the weights
are those of the paper divided by their sum. And positions count from 0. A key that enters or leaves
the window changes the result by a jump: the gradient is that between two jumps. ``scale=`` and
``softcap=`` act on all of the logit, gaussian included.

d = Dq, the number of terms in ``q . (W k)``. Parameters: ``{"kernel" [Dq, Dk], "width" []}`` with
``D = 1 + |9 + width|``, and for local-p ``"predict" [Dq, P]`` and ``"v" [P]``. So width 0 is the D
of the paper, 10, every number is legal, and some key is at most D away from any p between 0 and n.

>>> from attn_research import attention_weights
>>> params = {"kernel": jnp.zeros((1, 1)), "width": jnp.array(-8.0)}  # D = 2, sigma = 1
>>> query, keys = jnp.ones((1, 1)), jnp.ones((6, 1))
>>> options = dict(score="local", score_params=params)
>>> print(attention_weights(query, keys, score_state=4, **options).round(4))
[[0.   0.   0.25 0.25 0.25 0.25]]
>>> params |= {"predict": jnp.zeros((1, 1)), "v": jnp.zeros(1)}  # p = 6 sigmoid(0) = 3
>>> weights = attention_weights(query, keys, **options)
>>> print((weights / weights[0, 3]).round(2))  # exp(-4 / 2) = 0.14, exp(-1 / 2) = 0.61
[[0.   0.14 0.61 1.   0.61 0.14]]
"""

from typing import Any

import jax
import jax.numpy as jnp

from attn_research.numerics import contract, project
from attn_research.scores._place import append, positions

DEFAULT_SCALE = "none"
PARAMS = {"kernel": ("Dq", "Dk"), "width": ()}
OPTIONAL_PARAMS = {"predict": ("Dq", "P"), "v": ("P",)}
STATE: tuple[str, ...] = ()


def init(
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    *,
    window: float = 10.0,
    predict: bool = True,
    dim: int | None = None,
    dtype: Any = jnp.float32,
) -> dict[str, jax.Array]:
    """Kernel normal with variance 1/Dk, as in ``general``; D is ``window`` (10 in the paper).

    W_p is normal with variance 1/Dq and v with variance 1/P, so what the sigmoid gets is well below
    1 in size: p starts near the middle of the keys, where its gradient is largest. ``dim`` is P, by
    default the query dimension; ``predict=False`` is local-m.
    """
    if not window >= 1:
        raise ValueError(f"window must be at least 1: got {window}")
    for_kernel, for_predict, for_v = jax.random.split(key, 3)
    params = {
        "kernel": jax.random.normal(for_kernel, (query_dim, key_dim), dtype) * key_dim**-0.5,
        "width": jnp.asarray(window - 10, dtype),
    }
    if not predict:
        return params
    dim = query_dim if dim is None else dim
    return params | {
        "predict": jax.random.normal(for_predict, (query_dim, dim), dtype) * query_dim**-0.5,
        "v": jax.random.normal(for_v, (dim,), dtype) * dim**-0.5,
    }


def transform_query(params: Any, x: jax.Array) -> jax.Array:
    """Identity."""
    return x


def transform_key(params: Any, x: jax.Array) -> jax.Array:
    """``W k``."""
    return project(x, params["kernel"].T)


def place(
    params: Any, query: jax.Array, key: jax.Array, state: Any, count: Any
) -> tuple[jax.Array, jax.Array]:
    """p_i becomes the last feature of query i, j that of key j."""
    if "v" in params:
        hidden = jnp.tanh(project(query, params["predict"]))
        p = jax.nn.sigmoid(project(hidden, params["v"][:, None])[..., 0]) * count
    else:
        p = positions(query.shape[-2], state)
    return append(query, p), append(key, positions(key.shape[-2], None))


def _near(params: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    logits = contract("td,sd->ts", query[:, :-1], key[:, :-1])
    away = key[:, -1] - query[:, -1:]
    window = 1 + jnp.abs(9 + params["width"])
    if "v" in params:
        logits = logits - 2 * jnp.square(away / window)  # 2 sigma^2 = D^2 / 2
    return jnp.where(jnp.abs(away) <= window, logits, -jnp.inf)


PAIRWISE = _near
