"""The logits of a block: the pairwise kernel, and what comes between it and the normalizer."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research import numerics, scaling
from attn_research.kernels import additive, dense, distance
from attn_research.params import PerHead


def logits_of(
    problem: Any, own: Any, each_head: Any, any_mode: bool
) -> tuple[tuple[Any, Any, Any], Any, Any]:
    """The functions of a block (see ``Plan``), and parameters: those that heads share, and each.

    ``problem`` is that of ``layout.py``; ``own`` lays out what has a leading axis of heads,
    ``each_head`` also what is one for all.
    """
    params, pairwise = problem.params, problem.pairwise
    if any_mode and isinstance(pairwise, str):
        pairwise = _PLAIN.get(pairwise, pairwise)
    per_head = isinstance(params, PerHead) and bool(jax.tree_util.tree_leaves(params))
    given = params.params if isinstance(params, PerHead) else params
    shared = None if per_head else given
    mine: dict[str, Any] = {"params": jax.tree.map(own, given) if per_head else None}
    scale = problem.scale
    log_n = scaling.as_log_n(scale)
    static: Any = 1.0
    if log_n is not None:
        mine["scale"] = each_head(log_n.s)
        static = scaling.resolve(None, problem.default_scale, problem.dim)
    elif scale is None or isinstance(scale, str | int | float):
        static = scaling.resolve(scale, problem.default_scale, problem.dim)
    else:
        mine["scale"] = each_head(scale)
    if problem.softcap is not None:
        mine["softcap"] = each_head(problem.softcap)

    def by_head(x: jax.Array, turned: bool) -> jax.Array:
        return x[:, None, :, None] if turned else x[..., None, None]

    def scaled(x: jax.Array, mine: Any, bias: Any, count: Any, turned: bool) -> jax.Array:
        if static != 1:
            x = x * static
            x = x if abs(static) <= 1 else numerics.clip_finite(x)
        if "scale" in mine:
            factor = by_head(mine["scale"], turned).astype(x.dtype)
            if log_n is not None:
                factor = factor * jnp.log(jnp.maximum(count, 1).astype(x.dtype))
            x = numerics.clip_finite(x * factor)
        return capped(x, mine, bias, turned)

    def capped(x: jax.Array, mine: Any, bias: Any, turned: bool) -> jax.Array:
        if "softcap" in mine:
            cap = by_head(mine["softcap"], turned).astype(x.dtype)
            x = cap * jnp.tanh(x / cap)
        if bias is not None:
            x = numerics.clip_finite(x + bias.astype(x.dtype))
        # This also stands between the product and the difference from the largest: see softmax.py
        return numerics.clip_finite(x)

    def logits(
        shared: Any,
        mine: Any,
        query: Any,
        key: Any,
        bias: Any,
        count: Any,
        shrunk: Any,
        turned: bool,
    ) -> tuple[jax.Array, Any]:
        params = mine["params"] if per_head else shared
        x, kept = _pairs(pairwise, params, per_head, query, key, shrunk, turned), None
        if callable(problem.pairwise):
            kept = x != -jnp.inf
            x = numerics.clip_finite(jnp.where(kept, x, 0))
        return scaled(x, mine, bias, count, turned), kept

    def rising(
        shared: Any, mine: Any, query: Any, key: Any, shrunk: Any
    ) -> tuple[jax.Array, jax.Array]:
        """For dot: what comes after the product keeps its order."""
        raw, power = numerics.contract_shrunk("hxe,hce->hxc", shrunk, key)
        largest = jnp.max(raw, -1, keepdims=True)

        def finish(x: jax.Array) -> jax.Array:
            # grow(x, power) * static in half the steps: power is one of two
            limit = float(jnp.finfo(x.dtype).max) * static
            x = jnp.clip(x * (power * static), -limit, limit)
            return capped(x.reshape(*query.shape[:-1], -1), mine, None, False)

        return finish(raw), finish(largest)[..., 0]

    def near(
        shared: Any, mine: Any, query: Any, key: Any, shrunk: None
    ) -> tuple[jax.Array, jax.Array]:
        """For squared distance, where the product does."""
        params = mine["params"] if per_head else shared
        x, y = _merged(query)[0], key[0]  # heads one by one
        squares = jnp.einsum("re,ce->rc", x, y, precision=jax.lax.Precision.HIGHEST)
        factor = factor_of(params).astype(squares.dtype)
        squares = squares.reshape(*query.shape[:-1], -1)
        x = squares * (by_head(factor, False) if factor.ndim else factor)
        x = scaled(x, mine, None, None, False)
        return x, x.max(-1)

    bare: Any = None
    if pairwise == "squared_distance" and log_n is None:
        bare = near
    elif pairwise == "dot" and 0 <= static <= 1 and "scale" not in mine:
        # In any mode what is kept for the gradient would be that of both ways.
        bare = None if any_mode and problem.mask is not None else rising
    may_be_bare = distance.near if bare is near else None
    return (logits, bare, may_be_bare), shared, mine


def _merged(x: jax.Array) -> jax.Array:
    """``[H, G, rows, E]`` -> ``[H, G rows, E]``: products over several axes are slow."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[-1])


def _pairs(
    pairwise: Any,
    params: Any,
    per_head: bool,
    query: jax.Array,
    key: jax.Array,
    shrunk: Any,
    turned: bool,
) -> jax.Array:
    """``[H, G, rows, E]``, ``[H, cols, E]`` -> ``[H, G, rows, cols]``, or turned.

    What is turned is about to be differentiated; what is not may have no reverse mode of its own,
    so that forward over reverse works.
    """
    H, G = query.shape[:2]
    if pairwise == "dot":
        if turned:
            out = numerics.contract("hce,hxe->hcx", key, _merged(query), shrunk)
            return out.reshape(H, key.shape[-2], *query.shape[1:-1])
        out = numerics.contract("hxe,hce->hxc", _merged(query), key, shrunk)
        return out.reshape(*query.shape[:-1], key.shape[-2])

    def f(params: Any, query: jax.Array, key: jax.Array) -> jax.Array:
        if pairwise == "additive":
            v = params["v"].astype(query.dtype)
            kernel = _additive()
            return kernel.sum_tanh(query, key, v).T if turned else kernel.values(query, key, v)
        if pairwise == "squared_distance":
            return _squared_distance(params, query, key, turned)
        out = pairwise(params, query, key)
        return out.T if turned else out

    def of_group(params: Any, query: jax.Array, key: jax.Array) -> jax.Array:
        """The G query heads of a key head."""
        if callable(pairwise):
            return jax.vmap(f, in_axes=(0 if per_head else None, 0, None))(params, query, key)
        # One after the other: under vmap what is chosen by lax.cond would all be computed.
        heads = [jax.tree.map(lambda x: x[g], params) if per_head else params for g in range(G)]  # noqa: B023
        return jnp.stack([f(heads[g], query[g], key) for g in range(G)])

    if H == 1:
        first = jax.tree.map(lambda x: x[0], params) if per_head else params
        out = of_group(first, query[0], key[0])[None]
    else:
        out = jax.vmap(of_group, in_axes=(0 if per_head else None, 0, 0))(params, query, key)
    return out.swapaxes(1, 2) if turned else out


def _additive() -> Any:
    """The module of the additive kernel for this machine."""
    if jax.default_backend() != "gpu":
        return additive
    from attn_research.kernels import additive_pallas

    return additive_pallas


def _squared_distance(params: Any, query: jax.Array, key: jax.Array, turned: bool) -> jax.Array:
    """As in ``dense.py``, of what ``distance.prepare`` made."""
    far, query, key = ~distance.near(query), query[:, :-2] / 2, key[:, :-2]
    if turned:
        squares = distance.minus_squares(key, query, far)
    else:
        squares = distance.values(query, key, far)
    overflow = squares == -jnp.inf
    factor = factor_of(params).astype(query.dtype)
    scaled = numerics.clip_finite(jnp.where(overflow, 0, squares) * factor)
    return jnp.where(overflow, -float(jnp.finfo(query.dtype).max), scaled)


def largest_factor(problem: Any) -> jax.Array:
    """The largest number, without its sign, by which squared distances are multiplied."""
    scale, log_n = problem.scale, scaling.as_log_n(problem.scale)
    times: Any = 1.0
    if log_n is not None:
        scale, times = None, log_n.s * math.log(max(problem.key.shape[-3], 2))
    if scale is None or isinstance(scale, str):
        scale = scaling.resolve(scale, problem.default_scale, problem.dim)
    factor = jnp.max(jnp.abs(factor_of(problem.params)))
    return jax.lax.stop_gradient(factor * jnp.max(jnp.abs(scale)) * jnp.max(jnp.abs(times)))


def factor_of(params: Any) -> jax.Array:
    params = params.params if isinstance(params, PerHead) else params
    return jnp.asarray((params or {}).get("factor", 1.0))


def _plain(pairwise: str) -> Any:
    """The pairwise kernel of ``dense.py`` as a function of one head."""

    def f(params: Any, query: jax.Array, key: jax.Array) -> jax.Array:
        return dense.logits(pairwise, params, query[:, None], key[:, None])[0]

    return f


# What has no derivative of its own, so that all modes of differentiation work.
_PLAIN = {name: _plain(name) for name in ("additive", "squared_distance")}
