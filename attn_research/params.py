"""Parameters of scores: how they are made, checked and mapped over heads."""

import dataclasses
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from attn_research import scores
from attn_research.folders import unknown


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PerHead:
    """Score parameters of their own for each head: every leaf of ``params`` has a leading axis N.

    Parameters that are not wrapped are shared by the heads.
    """

    params: Any


def init_score(
    name: str,
    key: jax.Array,
    query_dim: int,
    key_dim: int,
    num_heads: int | None = None,
    **options: Any,
) -> Any:
    """Draws the parameters of the score ``name`` for queries and keys of these feature sizes.

    Args:
      name: one of ``SCORES``.
      key: a ``jax.random`` key.
      query_dim, key_dim: feature sizes of one head.
      num_heads: None for parameters shared by the heads; N for ``PerHead`` parameters.
      **options: those of the score's own ``init`` (``dim``, ``use_bias``, ``dtype``: float32 unless
        said otherwise).

    Returns:
      A dict of arrays (empty for ``dot``), or ``PerHead`` of it.

    >>> params = init_score("additive", jax.random.key(0), 4, 6, dim=8)
    >>> {name: p.shape for name, p in params.items()}
    {'query': (4, 8), 'key': (6, 8), 'v': (8,)}
    """
    score = scores.get(name)
    allowed = [p.name for p in inspect.signature(score.init).parameters.values()][3:]
    for option in options:
        if option not in allowed:
            raise TypeError(unknown(f"option of score {name!r}", option, allowed))
    for what, size in (("query_dim", query_dim), ("key_dim", key_dim), ("num_heads", num_heads)):
        if size is not None and (isinstance(size, bool) or size != int(size) or size < 1):
            raise ValueError(f"{what} must be a positive integer: got {size}")
    if getattr(score, "SAME_DIM", False):
        check_same_dim(name, query_dim, key_dim)

    def init(key: jax.Array) -> Any:
        return score.init(key, query_dim, key_dim, **options)

    if num_heads is None:
        return init(key)
    return PerHead(jax.vmap(init)(jax.random.split(key, num_heads)))


def check_same_dim(name: str, query_dim: int, key_dim: int) -> None:
    """Raises unless the feature sizes agree."""
    if query_dim != key_dim:
        raise ValueError(
            f"score {name!r} needs equal feature sizes: query has {query_dim}, key has {key_dim}; "
            "use score='general' or project one of them"
        )


def check_params(name: str, params: Any, query_dim: int, key_dim: int, num_heads: int) -> None:
    """Raises one line if ``params`` are not those of the score ``name`` for these sizes."""
    score = scores.get(name)
    if getattr(score, "SAME_DIM", False):
        check_same_dim(name, query_dim, key_dim)
    if not hasattr(score, "PARAMS"):
        return
    per_head = isinstance(params, PerHead)
    given = (params.params if isinstance(params, PerHead) else params) or {}
    optional = getattr(score, "OPTIONAL_PARAMS", {})
    expected = score.PARAMS | {k: axes for k, axes in optional.items() if k in given}
    if set(given) != set(expected):
        if not expected:
            raise ValueError(f"score {name!r} has no parameters: score_params has {sorted(given)}")
        make = f"ar.init_score({name!r}, rng, query_dim={query_dim}, key_dim={key_dim})"
        raise ValueError(
            f"score {name!r} needs score_params {sorted(expected)}: got "
            f"{sorted(given) or None}; {make} makes them"
        )
    sizes = {"Dq": query_dim, "Dk": key_dim, "Dq+Dk": query_dim + key_dim}
    for leaf, axes in expected.items():
        shape = jnp.shape(given[leaf])
        if per_head and (not shape or shape[0] != num_heads):
            raise ValueError(
                f"score_params[{leaf!r}] is PerHead, so its axis 0 must be the {num_heads} heads "
                f"of query: got shape {shape}"
            )
        shape = shape[1:] if per_head else shape
        wanted = tuple(sizes.get(a, a) for a in axes)
        fits = len(shape) == len(axes)
        for axis, size in zip(axes, shape, strict=False):
            fits = fits and sizes.setdefault(axis, size) == size
        if not fits:
            raise ValueError(
                f"score_params[{leaf!r}] of score {name!r} must have shape "
                f"[{', '.join(map(str, wanted))}]: got {list(shape)} (query has {query_dim} "
                f"features, key {key_dim}; E must agree among the parameters; a leading head axis "
                "must be said by ar.PerHead)"
            )


def as_arrays(params: Any) -> Any:
    """``params`` with JAX arrays for leaves."""
    return jax.tree.map(jnp.asarray, params)


def over_heads(f: Callable[..., jax.Array], params: Any, x: jax.Array) -> jax.Array:
    """``f(params, x [..., L, H, D])``, with each head's own parameters if they are ``PerHead``."""
    if isinstance(params, PerHead):
        if not jax.tree_util.tree_leaves(params):
            return f(params.params, x)
        return jax.vmap(f, in_axes=(0, -2), out_axes=-2)(params.params, x)
    return f(params, x)


def head_count(params: Any) -> int | None:
    """N of ``PerHead`` parameters that have leaves, else None."""
    leaves = jax.tree_util.tree_leaves(params) if isinstance(params, PerHead) else []
    return jnp.shape(leaves[0])[0] if leaves else None


def transform(score: Any, side: str, params: Any, x: jax.Array) -> jax.Array:
    """The per-position transform of ``x [..., L, H, D]``; identity for a function."""
    if not isinstance(score, str):
        return x
    module: ModuleType = scores.get(score)
    return over_heads(getattr(module, f"transform_{side}"), params, x)


def transform_for_heads(score: Any, params: Any, key: jax.Array) -> jax.Array:
    """The key-side transform of ``key [..., S, K, Dk]``; N heads of it if PerHead."""
    heads = head_count(params) if isinstance(score, str) else None
    if heads and heads != key.shape[-2]:
        key = jnp.repeat(key, heads // key.shape[-2], -2)
    return transform(score, "key", params, key)


def pairwise(score: Any, params: Any) -> tuple[Any, Any]:
    """The pairwise kernel of a score (a name or a function), and the parameters that it reads."""
    if not isinstance(score, str):
        return score, params
    module = scores.get(score)
    if not hasattr(module, "pairwise_params"):
        return module.PAIRWISE, params
    if isinstance(params, PerHead):
        return module.PAIRWISE, PerHead(jax.vmap(module.pairwise_params)(params.params))
    return module.PAIRWISE, module.pairwise_params(params)


def place(
    score: Any, params: Any, query: jax.Array, key: jax.Array, state: Any, count: Any
) -> tuple[jax.Array, jax.Array]:
    """What positions and ``score_state`` add to ``query [..., T, N, E]`` and ``key [..., S, K, E]``
    after the transforms: ``place`` of the score, head by head. ``count [..., N | 1, T | 1]`` is
    the number of keys that each query sees, or one number."""
    module = scores.get(score) if isinstance(score, str) else None
    if module is None or not hasattr(module, "place"):
        return query, key
    heads = query.shape[-2]
    if heads != key.shape[-2]:
        key = jnp.repeat(key, heads // key.shape[-2], -2)
    own = head_count(params) is not None
    axes = scores.state_axes(score) or ()
    state_axis = axes.index("N") - len(axes) if state is not None and "N" in axes else None
    count = jnp.asarray(count)
    count_axis = -2 if count.ndim > 1 and count.shape[-2] == heads else None
    if count.ndim > 1 and count_axis is None:
        count = count[..., 0, :]
    mapped = jax.vmap(
        module.place,
        in_axes=(0 if own else None, -2, -2, state_axis, count_axis),
        out_axes=(-2, -2),
    )
    given = params.params if isinstance(params, PerHead) else params
    return mapped(given, query, key, state, count)
