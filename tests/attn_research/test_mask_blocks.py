"""Blocks of masks, and which blocks can be skipped: against loops over all pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from attn_research import masks

B, N = 2, 2


def draw_mask(rng, T, S, depth=2):
    """A mask and its oracle ``sees(b, n, i, j)``, for T queries and S keys."""
    if depth and rng.random() < 0.8:
        (x, f), (y, g) = draw_mask(rng, T, S, depth - 1), draw_mask(rng, T, S, depth - 1)
        return [
            (x & y, lambda *at: f(*at) and g(*at)),
            (x | y, lambda *at: f(*at) or g(*at)),
            (~x, lambda *at: not f(*at)),
        ][rng.integers(3)]

    def numbers(low, high):
        """An int, or one for each batch element, as a function of that element too."""
        x = rng.integers(low, high, B)
        if rng.random() < 0.5:
            return int(x[0]), lambda b: int(x[0])
        return (jnp.asarray(x) if rng.random() < 0.5 else x), lambda b: int(x[b])

    offset, o = numbers(-3, 4)
    kind = rng.integers(7)
    if kind == 0:
        return masks.causal(offset), lambda b, n, i, j: j <= i + o(b)
    if kind == 1:
        (left, lo), (right, hi) = numbers(-1, 4), numbers(-1, 4)
        if rng.random() < 0.3:
            left, lo = None, lambda b: 10**6
        if rng.random() < 0.3:
            right, hi = None, lambda b: 10**6
        return (
            masks.window(left, right, offset),
            lambda b, n, i, j: i + o(b) - lo(b) <= j <= i + o(b) + hi(b),
        )
    if kind == 2:
        x, count = numbers(0, S + 2)
        make = masks.lengths if rng.random() < 0.5 else masks.prefix
        return make(x), lambda b, n, i, j: j < count(b)
    if kind == 3:
        q, k = (np.cumsum(rng.random((B, size)) < 0.3, -1) for size in (T, S))
        return masks.segments(q, k), lambda b, n, i, j: q[b, i] == k[b, j]
    if kind == 4:
        q, k = rng.integers(-2, 3, T), rng.integers(-2, 3, (B, S))
        return masks.segments(jnp.asarray(q), k), lambda b, n, i, j: q[i] == k[b, j]
    if kind == 5:
        step, s = numbers(1, 5)
        return masks.dilated(step, offset), lambda b, n, i, j: (i + o(b) - j) % s(b) == 0
    shape = [(B, N, T, S), (N, 1, S), (B, 1, T, 1), (T, S), (S,), ()][rng.integers(6)]
    array = rng.random(shape) < 0.5
    full = np.broadcast_to(array, (B, N, T, S))
    return masks.dense(array), lambda *at: full[at]


def materialized(sees, T, S):
    want = [[[[sees(b, n, i, j) for j in range(S)] for i in range(T)] for n in range(N)]
            for b in range(B)]  # fmt: skip
    return np.array(want, bool).reshape(B, N, T, S)


def all_blocks(mask, T, S, rows, cols):
    """Starts of every block that begins in the sequence; their values, ``some`` and ``all``."""
    starts = np.array([(i, j) for i in range(T) for j in range(S)], np.int32)

    @jax.jit
    def run(mask, starts):
        def one(start):
            at = *start, rows, cols
            block = jnp.broadcast_to(mask.block(*at), (B, N, rows, cols))
            return block, mask.some(*at), mask.all(*at)

        return lax.map(one, starts)

    return starts, *map(np.asarray, run(mask, starts))


@pytest.mark.parametrize("repeat", range(30))
def test_every_block_of_any_mask(repeat, rng, quick_compile):
    """Blocks of any size from any traced start, sticking out or not: nothing shifts, and no block
    is skipped (or left unmasked) that may not be."""
    T, S, rows, cols = (int(x) for x in rng.integers(1, 8, 4))
    mask, sees = draw_mask(rng, T, S)
    want = materialized(sees, T, S)
    np.testing.assert_array_equal(np.broadcast_to(mask.as_array(T, S), want.shape), want)
    for (i, j), block, some, every in zip(*all_blocks(mask, T, S, rows, cols), strict=True):
        inside = want[..., i : i + rows, j : j + cols]
        np.testing.assert_array_equal(block[..., : inside.shape[-2], : inside.shape[-1]], inside)
        assert some or not inside.any(), (i, j)
        assert inside.all() or not every, (i, j)


@pytest.mark.parametrize("repeat", range(4))
def test_starts_that_are_ints(repeat, rng):
    """The same outside of jit."""
    T, S = (int(x) for x in rng.integers(1, 8, 2))
    mask, sees = draw_mask(rng, T, S)
    want = materialized(sees, T, S)
    for i, j in ((0, 0), (T // 2, S // 2), (T - 1, 0), (0, S - 1)):
        for rows, cols in ((T, S), (1, 1), (3, 5)):
            inside = want[..., i : i + rows, j : j + cols]
            block = np.broadcast_to(mask.block(i, j, rows, cols), (B, N, rows, cols))
            got = block[..., : inside.shape[-2], : inside.shape[-1]]
            np.testing.assert_array_equal(got, inside)
            some, every = mask.some(i, j, rows, cols), mask.all(i, j, rows, cols)
            assert (some or not inside.any()) and (inside.all() or not every)


def test_what_is_known_is_a_bool():
    mask = masks.causal() & ~masks.window(3, None) | masks.lengths([1, 2]) & masks.dense(True)
    assert [mask.some(9, col, 2, 2) for col in (0, 2, 8)] == [True, True, False]
    assert [mask.all(9, col, 2, 2) for col in (0, 2, 5)] == [True, True, False]
    assert all(type(f(9, 2, 2, 2)) is bool for f in (mask.some, mask.all))


def exact(rng):
    """Masks whose ``some`` and ``all`` must be exact, with their oracle on all positions."""
    offset, left, right, n = (rng.integers(low, high, B) for low, high in
                              ((-4, 5), (-2, 5), (-2, 5), (0, 9)))  # fmt: skip
    return [
        (masks.causal(offset), lambda b, n, i, j: j <= i + offset[b]),
        (~masks.causal(int(offset[0])), lambda b, n, i, j: j > i + offset[0]),
        (
            masks.window(left, right, offset),
            lambda b, n, i, j: i + offset[b] - left[b] <= j <= i + offset[b] + right[b],
        ),
        (masks.window(left, None), lambda b, n, i, j: j >= i - left[b]),
        (masks.lengths(n), lambda b, _, i, j: j < n[b]),
        (~masks.prefix(int(n[1])), lambda b, _, i, j: j >= n[1]),
        (masks.window(None, None), lambda *at: True),
        (masks.window(-2, 1), lambda *at: False),
    ]


def test_positions_know_exactly_which_blocks_to_skip(rng, quick_compile):
    T, S = 7, 8
    rows, cols = (int(x) for x in rng.integers(1, 5, 2))
    for mask, sees in exact(rng):
        want = materialized(sees, T + rows, S + cols)
        for (i, j), _, some, every in zip(*all_blocks(mask, T, S, rows, cols), strict=True):
            inside = want[..., i : i + rows, j : j + cols]
            assert some == inside.any() and every == inside.all(), (mask, i, j)


def test_packed_batches_and_combinations_skip_blocks(quick_compile):
    """How many of 4 x 4 blocks are looked at, and how many of those are masked."""
    ids = np.repeat([[3, 5], [0, 1]], 8, -1)
    for mask, seen, full in (
        (masks.segments(ids), 8, 8),
        (masks.segments(ids) & masks.causal(), 6, 2),
        (masks.window(3, 0), 7, 0),
        (masks.causal() | masks.prefix(8), 11, 9),
        (masks.causal() & masks.lengths([4, 5]), 7, 3),
        (masks.causal() & masks.dense(np.tri(16, dtype=bool)), 10, 0),
        (~masks.segments(ids), 8, 8),
    ):
        run = jax.jit(lambda i, j, m=mask: (m.some(i, j, 4, 4), m.all(i, j, 4, 4)))
        got = np.array([run(i, j) for i in range(0, 16, 4) for j in range(0, 16, 4)])
        assert got.sum(0).tolist() == [seen, full], mask


def test_long_sequences_cost_no_more_than_their_block():
    T = 10**6
    ids = np.arange(T) // 1000
    mask = masks.segments(ids) & masks.causal() & masks.lengths(T - 1) & masks.dilated(3)
    got = jax.jit(lambda i: mask.block(i, i, 3, 4))(T - 3)
    want = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(got[0], np.array(want, bool))


def test_what_sticks_out_joins_no_segments():
    mask = masks.segments(np.repeat([3, 5], [8, 6]))
    got = [[bool(mask.some(i, j, 4, 4)) for j in range(0, 14, 4)] for i in range(0, 14, 4)]
    np.testing.assert_array_equal(got, np.kron(np.eye(2, dtype=bool), np.ones((2, 2), bool)))


def test_a_whole_array_is_not_copied(rng):
    array = jnp.asarray(rng.random((2, 1, 5, 4)) < 0.5)
    assert masks.dense(array).as_array(5, 4) is array
    assert masks.dense(array).block(0, 0, 5, 4) is array
    for at in ((0, 2), (2, 0)):
        block = masks.dense(array).block(*at, 5, 4)
        inside = array[..., at[0] :, at[1] :]
        np.testing.assert_array_equal(block[..., : 5 - at[0], : 4 - at[1]], inside)
    keys = jnp.ones((2, 1, 1, 6), bool)
    assert masks.dense(keys).block(0, 0, 9, 6) is keys
    assert masks.dense(keys).block(7, 2, 3, 2).shape == (2, 1, 1, 2)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_batches_and_sequences(shape):
    b, T, S = shape
    ids = np.zeros((b, T), int), np.zeros((b, S), int)
    numbers = np.ones(b, int)
    mask = masks.dense(np.ones((b, 1, T, S), bool)) & masks.segments(*ids)
    mask = mask & masks.window(numbers, 1) & masks.lengths(numbers) & masks.dilated(numbers)
    assert mask.as_array(T, S).shape == (b, 1, T, S)
    block, some, every = jax.jit(
        lambda i: (mask.block(i, i, 2, 2), mask.some(i, i, 2, 2), mask.all(i, i, 2, 2))
    )(0)
    assert jnp.broadcast_shapes(block.shape, (b, 1, 2, 2)) == (b, 1, 2, 2)
    assert some.shape == () and not every
