"""From the arrays of ``attend`` to the layout of the blocked kernel and back."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from attn_research import dropout, numerics
from attn_research.kernels import blocked, distance, pairs, streams
from attn_research.kernels.blocks import Constants, Inputs, Plan, Sizes


@dataclasses.dataclass(frozen=True)
class Problem:
    """Attention after the transforms of the score; what is None is not there.

    ``query [..., T, N, E]``, ``key [..., S, K, E]``, ``value [..., S, K', Dv]``, K a multiple of
    K'; ``bias`` and ``mask`` as for ``attend``, ``bad_query [..., T, N]`` and the like: where NaN
    was; ``count [..., N | 1, T | 1]``: visible keys.
    """

    pairwise: Any
    params: Any
    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias: jax.Array | None
    mask: Any
    bad_query: Any
    bad_key: Any
    bad_value: Any
    raw: tuple[bool, ...]  # whether NaN still is in query, in key; in value it is
    count: Any
    scale: Any
    default_scale: str
    dim: int  # d of the scale
    softcap: Any
    dropout_rate: Any
    dropout_key: Any


def context_and_lse(
    problem: Problem, stream: Any, normalizer: Any, any_mode: bool = False
) -> tuple[jax.Array, jax.Array | None]:
    """``[..., T, N, Dv]`` in at least float32, and ``[..., N, T]`` if the stream gives it."""
    if problem.pairwise == "squared_distance" and not any_mode:
        query, key = distance.prepare(problem.query, problem.key, pairs.largest_factor(problem))
        problem = dataclasses.replace(problem, query=query, key=key)
    arrays = problem.query, problem.key, problem.value
    value = problem.value.astype(numerics.wide(*(x.dtype for x in arrays)))
    power = _power(value, problem.bad_value)
    problem, shape = dataclasses.replace(problem, value=value / power), Shape.of(problem)
    plan, inputs, constants = _lay_out(problem, shape, stream, normalizer, any_mode)
    plan = dataclasses.replace(plan, axes=numerics.varying((inputs, constants)))
    inputs = numerics.vary(inputs, plan.axes)
    attend = blocked.attend_any_mode if any_mode else blocked.attend
    out, lse = _spoil(problem, shape, (plan, inputs, constants), *attend(plan, inputs, constants))
    T, heads = problem.query.shape[-3:-1]
    out = out[..., :T, :].reshape(*shape.batch, heads, T, out.shape[-1])
    out = jnp.moveaxis(out, -3, -2)
    if constants.rate is not None:
        power = power / (1 - jnp.asarray(problem.dropout_rate, power.dtype))
    out = numerics.grow(out, jnp.repeat(power, heads // power.shape[-2], -2))
    if lse is None:
        return out, None
    lse = lse.astype(numerics.wide(problem.query.dtype, problem.key.dtype))
    return out, lse[..., :T].reshape(*shape.batch, heads, T)


def lse(problem: Problem, any_mode: bool = False) -> jax.Array:
    """That alone."""
    no_values = problem.value[..., :0]
    problem = dataclasses.replace(problem, value=no_values, bad_value=None)
    found = context_and_lse(problem, streams.SOFTMAX, None, any_mode)[1]
    assert found is not None
    return found


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the layout."""

    batch: tuple[int, ...]
    M: int
    H: int
    G: int
    T: int  # padded
    S: int  # padded
    blocks: Sizes

    @staticmethod
    def of(problem: Problem) -> "Shape":
        arrays = problem.query, problem.key, problem.value
        batch = jnp.broadcast_shapes(*(x.shape[:-3] for x in arrays))
        T, heads, E = problem.query.shape[-3:]
        S, key_heads = problem.key.shape[-3:-1]
        G = heads // key_heads
        blocks = block_sizes(problem.pairwise, key_heads, G, T, S, E)
        padded = math.ceil(T / blocks.rows) * blocks.rows, math.ceil(S / blocks.cols) * blocks.cols
        M = math.prod(batch) * key_heads // blocks.together
        return Shape(batch, M, blocks.together, G, *padded, blocks)

    def of_queries(self, x: jax.Array, fill: Any = None) -> jax.Array:
        """``[..., T, heads, E]`` -> ``[B, T', heads, E]``: no copy, if nothing is missing. ``fill``
        None repeats the last."""
        x = jnp.broadcast_to(x, self.batch + x.shape[-3:])
        return _pad(x.reshape(math.prod(self.batch), *x.shape[-3:]), 1, self.T, fill)

    def of_keys(self, x: jax.Array, fill: Any = None) -> jax.Array:
        """``[..., S, K | K', E]`` -> ``[B, S', K, E]``."""
        x = jnp.repeat(x, self.M * self.H // math.prod(self.batch) // x.shape[-2], -2)
        x = jnp.broadcast_to(x, self.batch + x.shape[-3:])
        return _pad(x.reshape(math.prod(self.batch), *x.shape[-3:]), 1, self.S, fill)

    def by_query(self, x: jax.Array, fill: Any) -> jax.Array:
        """``[..., T, N]`` -> ``[M, H, G, T']``."""
        x = self.of_queries(x[..., None], fill).swapaxes(1, 2)
        return x.reshape(self.M, self.H, self.G, self.T)

    def by_key(self, x: jax.Array, fill: Any) -> jax.Array:
        """``[..., S, K | K']`` -> ``[M, H, S']``."""
        x = self.of_keys(x[..., None], fill).swapaxes(1, 2)
        return x.reshape(self.M, self.H, self.S)


def block_sizes(pairwise: Any, key_heads: int, G: int, T: int, S: int, E: int) -> Sizes:
    """Blocks that stay in cache, whatever T and S.

    Measured on 2 cores, 8 heads, d = 64, T = S = 4096: dot takes 105 ms in blocks of 1024 x 1024,
    124 in 512 x 512; its gradient 304 ms in 256 x 1024, 388 in 1024 x 1024. Additive: the arrays of
    its gradient are ``[cols, E]``, which should stay in cache; 2^15 to 2^17 numbers take the same
    time. Of a function all that is known is that it may make an array ``[rows, cols, E]``: at T = S
    = 1024, ``v . relu(q + k)`` and its gradient take 240 ms in blocks of 64 x 64, 800 in 32 x 512,
    1600 in 256 x 512.
    """
    if pairwise in ("dot", "squared_distance"):
        rows, cols, whole, back = 1024 // min(G, 16), 1024, 2**19, 2**18
    elif pairwise == "additive":
        rows, cols, whole, back = 512 // min(G, 16), max(2**16 // max(E, 1), 32), 2**19, 2**17
    else:
        rows, cols, whole, back = 64, max(2**12 // max(E, 1), 16), 2**12, 2**12
    rows, cols = _even(T, rows), _even(S, cols)
    most = 1 if pairwise in ("additive", "squared_distance") else whole // (rows * cols * G)
    together = max(h for h in range(1, max(min(most, key_heads), 1) + 1) if key_heads % h == 0)
    back_rows = rows
    while back_rows * cols * G * together > back and back_rows % 2 == 0:
        back_rows //= 2
    return Sizes(together, rows, cols, back_rows)


def _even(length: int, most: int) -> int:
    """A size that cuts ``length`` into parts of at most ``most`` with little left over."""
    parts = math.ceil(length / most)
    return length if parts <= 1 else math.ceil(length / parts / 32) * 32


def _lay_out(
    problem: Problem, shape: Shape, stream: Any, normalizer: Any, any_mode: bool
) -> tuple[Plan, Inputs, Constants]:
    heads = problem.query.shape[-2]
    dtype = numerics.wide(problem.query.dtype, problem.key.dtype)

    def own(x: Any) -> jax.Array:
        """``[N, ...]`` -> ``[N / (H G), H, G, ...]``."""
        return x.reshape(-1, shape.H, shape.G, *x.shape[1:])

    def each_head(x: Any) -> jax.Array:
        return own(jnp.broadcast_to(jnp.asarray(x, dtype), (heads,)))

    functions, shared, mine = pairs.logits_of(problem, own, each_head, any_mode)
    bias = problem.bias
    if bias is not None:
        bias = bias.reshape((1,) * (len(shape.batch) + 3 - bias.ndim) + bias.shape)
        bias = bias if bias.shape[-2] == 1 else _pad(bias, -2, shape.T, 0)
        bias = bias if bias.shape[-1] == 1 else _pad(bias, -1, shape.S, 0)
    count = seeds = rate = None
    if problem.count is not None:
        T = problem.query.shape[-3]
        count = jnp.broadcast_to(jnp.asarray(problem.count), (*shape.batch, heads, T))
        count = shape.by_query(jnp.swapaxes(count, -1, -2), 1)
    if not (isinstance(problem.dropout_rate, float | int) and problem.dropout_rate == 0):
        seeds = dropout.seeds(problem.dropout_key, (*shape.batch, heads))
        seeds = seeds.reshape(shape.M, shape.H, shape.G, 2)
        rate = jax.lax.stop_gradient(jnp.asarray(problem.dropout_rate))
    lengths = problem.query.shape[-3], problem.key.shape[-3]
    plan = Plan(*functions, stream, shape.M, shape.batch, *lengths, shape.blocks)
    inputs = Inputs(
        shape.of_queries(problem.query.astype(dtype)),
        shape.of_keys(problem.key.astype(dtype)),
        shape.of_keys(problem.value, 0),
        bias,
        shared,
        mine,
        jax.tree.map(each_head, normalizer),
    )

    def flags(bad: Any, lay: Any, raw: bool) -> Any:
        # What fills up repeats the last vector: it is as bad.
        return lay(bad[..., None]) if raw and bad is not None else None

    bad_query = flags(problem.bad_query, shape.of_queries, problem.raw[0])
    bad_key = flags(problem.bad_key, shape.of_keys, problem.raw[1])

    def shrinking(x: jax.Array, bad: Any) -> jax.Array:
        power = jax.lax.stop_gradient(numerics.shrinking(x))
        return power if bad is None else jnp.where(bad, 1, power)

    dot = problem.pairwise == "dot"
    constants = Constants(
        problem.mask,
        bad_query,
        bad_key,
        flags(problem.bad_value, shape.of_keys, True),
        (shrinking(inputs.query, bad_query), shrinking(inputs.key, bad_key)) if dot else None,
        count,
        seeds,
        rate,
    )
    return plan, inputs, constants


def _spoil(
    problem: Problem, shape: Shape, laid_out: tuple[Plan, Inputs, Constants], out: Any, lse: Any
) -> tuple[jax.Array, jax.Array | None]:
    """Context and lse with NaN, which gives no gradient, where a query or what it sees held NaN."""
    if problem.bad_key is None:
        return out, lse
    flags = [problem.bad_key] if problem.bad_value is None else [problem.bad_key, problem.bad_value]
    flags = [shape.by_key(x, False) for x in flags]
    plan, inputs, constants = laid_out
    inputs = jax.lax.stop_gradient(inputs)
    bad_logits, *bad = jax.lax.cond(
        functools.reduce(jnp.logical_or, [x.any() for x in flags]),
        lambda: blocked.sees(plan, inputs, constants, numerics.vary(flags, plan.axes)),
        lambda: numerics.vary([jnp.zeros(out.shape[:-1], bool)] * len(flags), plan.axes),
    )
    if problem.bad_query is not None:
        bad_logits |= shape.by_query(problem.bad_query, False)
    out = jnp.where(functools.reduce(jnp.logical_or, bad, bad_logits)[..., None], jnp.nan, out)
    return out, None if lse is None else jnp.where(bad_logits & (lse > -jnp.inf), jnp.nan, lse)


def _power(value: jax.Array, bad: jax.Array | None) -> jax.Array:
    """``[..., 1, K', 1]``: a power of two by which values are divided, 1 unless they are so large
    that a sum of them overflows, though not one of their means."""
    top = jnp.max(jnp.abs(jax.lax.stop_gradient(value)), -1, keepdims=True, initial=0)
    top = top if bad is None else jnp.where(bad[..., None], 0, top)
    top = jnp.max(top, -3, keepdims=True, initial=0)
    room = 2.0 ** (math.ceil(math.log2(max(value.shape[-3], 1))) + 2)
    limit = float(jnp.finfo(value.dtype).max) / room
    return jnp.where(top > limit, room, 1).astype(value.dtype)


def _pad(x: jax.Array, axis: int, size: int, fill: Any) -> jax.Array:
    missing = size - x.shape[axis]
    if not missing:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    if fill is None:  # what a score has derivatives at
        return jnp.pad(x, widths, mode="edge")
    return jnp.pad(x, widths, constant_values=fill)
