"""Masks: their contents by hand, how they combine, and that they pass through jit.

Their blocks are in test_mask_blocks.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import attn_research as ar
from attn_research import masks, reference

LEAST, MOST = -(2**31), 2**31 - 1


@pytest.mark.parametrize("offset", [0, 2, -1])
@pytest.mark.parametrize(("T", "S"), [(3, 3), (2, 5), (4, 1)])
def test_causal(offset, T, S):
    want = [[j <= i + offset for j in range(S)] for i in range(T)]
    np.testing.assert_array_equal(masks.causal(offset).as_array(T, S), want)


def test_causal_with_an_offset_for_each_batch_element():
    got = masks.causal(jnp.array([0, 2])).as_array(2, 4)
    assert got.shape == (2, 1, 2, 4)
    np.testing.assert_array_equal(got[1, 0], masks.causal(2).as_array(2, 4))


def test_lengths():
    got = masks.lengths([[0, 1], [2, 9]]).as_array(7, 3)
    want = [[[0, 0, 0], [1, 0, 0]], [[1, 1, 0], [1, 1, 1]]]
    np.testing.assert_array_equal(got[:, :, 0, 0], np.array(want, bool))


def test_combinations(rng):
    a, b = rng.random((4, 5)) < 0.5, rng.random((2, 1, 1, 5)) < 0.5
    x, y = masks.dense(a), masks.dense(jnp.asarray(b))
    for got, want in [
        (x & y, a & b),
        (x | y, a | b),
        (~x, ~a),
        (x & b, a & b),
        (a & y, a & b),
        (jnp.asarray(a) | y, a | b),
        (~(x & masks.lengths(3)), ~(a & (np.arange(5) < 3))),
    ]:
        assert isinstance(got, masks.Mask)
        np.testing.assert_array_equal(*np.broadcast_arrays(got.as_array(4, 5), want))


def test_masks_are_pytrees_and_plain_arrays_are_masks(draw):
    drawn = draw(N=1)
    query, key, value = drawn.cast(jnp.float32)
    mask = masks.lengths(jnp.array([4, 0])) & ~masks.causal(-1)
    array = np.array(jnp.broadcast_to(mask.as_array(3, 5), (2, 1, 3, 5)))
    want = reference.attention(*drawn, mask=array)[0]
    run = jax.jit(lambda q, k, v, m: ar.attend(q, k, v, mask=m))
    np.testing.assert_allclose(run(query, key, value, mask), want, atol=2e-6)
    np.testing.assert_allclose(run(query, key, value, array), want, atol=2e-6)


def test_wrong_masks_are_errors(draw):
    drawn = draw().cast(jnp.float32)
    with pytest.raises(TypeError, match="mask must be boolean .*float32.*bias="):
        ar.attend(*drawn, mask=jnp.zeros((3, 5)))
    with pytest.raises(TypeError, match="boolean array or made by ar.masks: got str"):
        ar.attend(*drawn, mask="causal")
    with pytest.raises(ValueError, match=r"mask must broadcast to .* \[2, 2, 3, 5\]: got \[4, 5\]"):
        ar.attend(*drawn, mask=np.ones((4, 5), bool))
    with pytest.raises(ValueError, match=r"use mask\[:, None, None, :\]"):
        ar.attend(*drawn, mask=np.ones((2, 5), bool))
    with pytest.raises(TypeError, match="must be integers: got float"):
        masks.lengths(jnp.array([1.0]))


WINDOWS = [
    ((1, 0), ["1000", "1100", "0110"]),
    ((0, 2), ["1110", "0111", "0011"]),
    ((1, 1, 1), ["1110", "0111", "0011"]),
    ((None, 1), ["1100", "1110", "1111"]),
    ((1, None, 0), ["1111", "1111", "0111"]),
    ((2, -1), ["0000", "1000", "1100"]),  # strictly before
    ((-1, None), ["0111", "0011", "0001"]),
    ((-2, 1), ["0000", "0000", "0000"]),
    ((None, None), ["1111", "1111", "1111"]),
]


@pytest.mark.parametrize(("arguments", "want"), WINDOWS)
def test_windows_by_hand(arguments, want):
    want = [[x == "1" for x in row] for row in want]
    got = jnp.broadcast_to(masks.window(*arguments).as_array(3, 4), (3, 4))
    np.testing.assert_array_equal(got, want)


BY_HAND = [
    (masks.causal() & masks.window(1, 5), ["10000", "11000", "01100", "00110"]),
    (masks.causal() | masks.prefix(2), ["11000", "11000", "11100", "11110"]),
    ((masks.causal() | masks.prefix(3)) & masks.lengths(2), ["11000", "11000", "11000", "11000"]),
    (masks.dilated(2) & masks.causal(), ["10000", "01000", "10100", "01010"]),
    (masks.dilated(3, 1), ["01001", "00100", "10010", "01001"]),
    (masks.dilated(2) & masks.window(2, 2), ["10100", "01010", "10101", "01010"]),
    (masks.segments([0, 0, 1, 7], [0, 1, 1, 0, 2]), ["10010", "10010", "01100", "00000"]),
]


@pytest.mark.parametrize(("mask", "want"), BY_HAND)
def test_combinations_by_hand(mask, want):
    got = np.broadcast_to(mask.as_array(4, 5), (1, 4, 5))[0]
    np.testing.assert_array_equal(got, [[x == "1" for x in row] for row in want])


def test_packed_sequences_attend_as_if_alone(draw):
    """Krell et al. 2021: no sequence of a packed batch sees another."""
    drawn = draw(T=9, S=9)
    sizes = [[2, 3, 4], [5, 1, 3]]
    ids = np.array([np.repeat([0, 1, 2], size) for size in sizes])
    mask = masks.segments(ids) & masks.causal()
    got = jax.jit(lambda *x: ar.attend(*x, mask=mask))(*drawn.cast(jnp.float32))
    for b, element in enumerate(sizes):
        ends = np.cumsum(element)
        for start, end in zip(ends - element, ends, strict=True):
            alone = (x[b, start:end] for x in drawn)
            want = reference.attention(*alone, mask=np.tri(end - start, dtype=bool))[0]
            np.testing.assert_allclose(got[b, start:end], want, atol=2e-6)


def test_windows_agree_with_jax(draw, rng, quick_compile):
    query, key, value = draw(T=6, S=6, Dv=4).cast(jnp.float32)
    left, right = (int(x) for x in rng.integers(0, 4, 2))
    theirs = functools.partial(jax.nn.dot_product_attention, local_window_size=(left, right))
    ours = functools.partial(ar.attend, mask=masks.window(left, right))
    want, got = (jax.jit(f)(query, key, value) for f in (theirs, ours))
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("traced", [False, True])
def test_no_sum_wraps_around(traced, rng):
    """Numbers at the limits of int32, against Python's."""

    def arrays(left, right, offset):
        made = (
            masks.window(left, right, offset),
            masks.window(left, None, offset),
            masks.window(None, right, offset),
            masks.causal(offset),
            masks.dilated(3, offset),
            masks.dilated(MOST, offset),
            masks.lengths(right),
        )
        return [jnp.broadcast_to(m.as_array(3, 3), (1, 3, 3))[0] for m in made]

    def sees(left, right, offset, i, j):
        d = j - i
        return (
            offset - left <= d <= offset + right,
            offset - left <= d,
            d <= offset + right,
            d <= offset,
            (offset - d) % 3 == 0,
            (offset - d) % MOST == 0,
            j < right,
        )

    arrays = jax.jit(arrays) if traced else arrays
    for numbers in rng.choice([LEAST, LEAST + 1, -1, 0, 2, MOST - 1, MOST], (30, 3)).tolist():
        want = [[sees(*numbers, i, j) for j in range(3)] for i in range(3)]
        np.testing.assert_array_equal(np.moveaxis(arrays(*numbers), 0, -1), want, f"{numbers}")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64"])
def test_integers_of_any_width(dtype, rng):
    """Sums of narrow ones do not wrap, nor does the cut of wide ones."""
    with jax.enable_x64(dtype == "int64"):
        limits = jnp.iinfo(dtype)
        for left, right, offset in rng.choice([1, 2, limits.max], (9, 3)).tolist():
            mask = masks.window(*(jnp.asarray(x, dtype) for x in (left, right, offset)))
            want = [
                [i + offset - left <= j <= i + offset + right for j in range(3)] for i in range(2)
            ]
            np.testing.assert_array_equal(mask.as_array(2, 3), want)


def everything(n, left, offset, step, ids):
    """A mask of every kind."""
    positions = masks.window(left, 1, offset) & (masks.dilated(step, offset) | masks.prefix(n))
    return masks.lengths(n) & positions | ~masks.segments(ids, ids[..., :4]) & masks.causal(offset)


def test_one_compilation_serves_all_numbers():
    traces = []

    @jax.jit
    def array(mask):
        traces.append(mask)
        return mask.as_array(5, 4)

    for n in (1, 2, 4):
        ids = jnp.arange(5) // n
        array(everything(jnp.int32(n), jnp.int32(n), jnp.int32(-n), jnp.int32(n), ids))
    assert len(traces) == 1
    for n in (1, 2, 4):  # numbers that are not arrays are data too
        array(masks.causal(n) | masks.window(n, n + 1) & masks.lengths(n) | masks.dilated(n, n))
    assert len(traces) == 2


def test_vmap_over_a_mask_is_its_batch_axis(rng):
    n, left, offset, step = rng.integers(1, 4, (4, 3))
    ids = rng.integers(0, 3, (3, 5))
    dense = masks.dense(rng.random((3, 1, 5, 4)) < 0.5)
    mask = everything(n, left, offset, step, ids) | dense
    want = jax.jit(lambda m: m.as_array(5, 4))(mask)
    assert want.shape == (3, 1, 5, 4)
    got = jax.jit(jax.vmap(lambda m: m.as_array(5, 4)))(mask)
    np.testing.assert_array_equal(got, want)
    for b in range(3):
        alone = everything(n[b], left[b], offset[b], step[b], ids[b]) | dense.array[b]
        np.testing.assert_array_equal(alone.as_array(5, 4), want[b])


def test_a_scan_carries_a_mask():
    def step(mask, _):
        longer = jax.tree.map(lambda x: x + 1, mask)
        return longer, mask.as_array(2, 3)

    first = masks.lengths(jnp.array([0, 2])) & masks.causal(jnp.int32(-1))
    last, got = lax.scan(step, first, length=3)
    for t in range(3):
        want = masks.lengths(jnp.array([t, 2 + t])) & masks.causal(t - 1)
        np.testing.assert_array_equal(got[t], want.as_array(2, 3))
    assert isinstance(last, masks.Mask)


def test_arrays_on_either_side():
    a, x = np.eye(3, dtype=bool), masks.causal()
    sides = (a, jnp.asarray(a), a.tolist())
    for side in sides:
        for mask, want in (
            (side & x, a),
            (x & side, a),
            (x | side, np.tri(3)),
            (side | x, np.tri(3)),
        ):
            np.testing.assert_array_equal(mask.as_array(3, 3), want)
    got = jax.jit(lambda a: ((a & x) | (~x & a)).as_array(3, 3))(a)
    np.testing.assert_array_equal(got, a)
    for mask, want in ((True & x, np.tri(3)), (np.True_ | x, np.ones((3, 3)))):
        np.testing.assert_array_equal(mask.as_array(3, 3), want)


WRONG = [
    (lambda: masks.causal(1.0), TypeError, r"causal\(offset\) must be integers: got float64"),
    (lambda: masks.window(1.5, 0), TypeError, r"window\(left\) must be integers: got float"),
    (lambda: masks.window(0, True), TypeError, r"window\(right\) must be integers: got bool"),
    (lambda: masks.window(0, 0, None), TypeError, r"window\(offset\) must be integers: got object"),
    (lambda: masks.prefix([0.5]), TypeError, r"prefix\(n\) must be integers: got float64"),
    (lambda: masks.dilated(2, 0.0), TypeError, r"dilated\(offset\) must be integers"),
    (lambda: masks.dilated("2"), TypeError, r"dilated\(step\) must be integers: got <U1"),
    (lambda: masks.dilated(0), ValueError, r"dilated\(step\) must be at least 1: got 0"),
    (lambda: masks.dilated([2, -3]), ValueError, r"dilated\(step\) must be at least 1: got -3"),
    (lambda: masks.segments([1.0]), TypeError, r"segments\(q_ids\) must be integers: got float64"),
    (lambda: masks.segments([1], np.eye(2)), TypeError, r"segments\(k_ids\) must be integers"),
    (lambda: masks.segments(3), ValueError, r"segments\(q_ids\) must have an axis .*: got 3"),
    (
        lambda: masks.causal(2**31),
        ValueError,
        r"causal\(offset\) must fit .* int32: got 2147483648",
    ),
    (lambda: masks.window(2**80, 0), ValueError, r"window\(left\) must fit into int32: got 12089"),
    (lambda: masks.lengths([1, -(2**40)]), ValueError, r"must fit into int32: got -1099511627776"),
    (lambda: masks.causal() & "x", TypeError, "made by ar.masks: got str.*segments.*dilated"),
    (lambda: masks.dense(np.eye(2)), TypeError, "mask must be boolean .*: got float64"),
    (lambda: masks.causal() and masks.lengths(3), TypeError, "combine masks with & | ~"),
]


@pytest.mark.parametrize(("make", "error", "message"), WRONG)
def test_wrong_arguments_are_one_clear_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_sizes_that_do_not_fit(draw):
    drawn = draw().cast(jnp.float32)  # 3 queries, 5 keys
    with pytest.raises(
        ValueError, match=r"mask must broadcast .*\[2, 2, 3, 5\]: got \[2, 1, 3, 3\]"
    ):
        ar.attend(*drawn, mask=masks.segments(np.zeros((2, 3), int)))
    with pytest.raises(ValueError, match=r"one shape: got \[1, 4, 5\] and \[3, 5\]"):
        ar.attend(*drawn, mask=masks.segments(np.zeros(4, int), np.zeros(5, int)) & masks.causal())
