"""Position biases and encodings against loops over pairs and exact integers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import positions, reference

pytestmark = pytest.mark.usefixtures("quick_compile")


def slopes_of_the_authors(n):
    """By recursion, as the paper's footnote and code say it."""
    if n & (n - 1) == 0:
        return [2.0 ** -(8 * i / n) for i in range(1, n + 1)]
    below = 1 << (n.bit_length() - 1)
    return slopes_of_the_authors(below) + slopes_of_the_authors(2 * below)[::2][: n - below]


def plain_alibi(N, T, S, offset):
    bias = np.zeros((N, T, S))
    for n, i, j in np.ndindex(N, T, S):
        bias[n, i, j] = -slopes_of_the_authors(N)[n] * abs(i + offset - j)
    return bias


def exact_bucket(relative, num_buckets, max_distance, bidirectional):
    """The published formula for j - i; its floor is decided in integers, one bucket at a time."""
    buckets, first = num_buckets, 0
    if bidirectional:
        buckets //= 2
        first = buckets if relative > 0 else 0
    n = abs(relative) if bidirectional else max(-relative, 0)
    e = buckets // 2
    if n < e:
        return first + n
    floor = 0  # the largest f with f <= log(n / e) / log(M / e) * (buckets - e)
    while n ** (buckets - e) * e ** (floor + 1) >= max_distance ** (floor + 1) * e ** (buckets - e):
        floor += 1
        if e + floor >= buckets:
            break
    return first + min(e + floor, buckets - 1)


@pytest.mark.parametrize("N", [*range(1, 18), 20, 32, 40])
def test_alibi_slopes(N):
    got = positions.alibi_slopes(N)
    np.testing.assert_allclose(got, slopes_of_the_authors(N), rtol=2e-7)
    assert got.shape == (N,) and got.dtype == jnp.float32


def test_alibi_slopes_by_hand():
    assert positions.alibi_slopes(8).tolist() == [1 / 2**n for n in range(1, 9)]
    assert positions.alibi_slopes(1).tolist() == [1 / 256]
    np.testing.assert_allclose(
        positions.alibi_slopes(12)[8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-7
    )


@pytest.mark.parametrize("offset", [0, 3, -2])
def test_alibi_is_minus_slope_times_distance(offset):
    for N, T, S in [(3, 4, 5), (2, 1, 7), (2, 5, 1), (2, 0, 3)]:
        got = positions.alibi(N, T, S, offset)
        np.testing.assert_allclose(got, plain_alibi(N, T, S, offset), rtol=2e-7)
    with jax.enable_x64(True):
        got = positions.alibi(5, 4, 5, offset, jnp.float64)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, plain_alibi(5, 4, 5, offset), rtol=1e-15)


def test_alibi_with_traced_offsets_compiles_once():
    run = jax.jit(lambda offset: positions.alibi(3, 1, 6, offset))
    whole = plain_alibi(3, 6, 6, 0)
    for t in range(6):
        np.testing.assert_allclose(run(t)[:, 0], whole[:, t], rtol=2e-7)
    assert run._cache_size() == 1
    batch = positions.alibi(3, 2, 6, jnp.array([1, 4]))
    assert batch.shape == (2, 3, 2, 6)
    np.testing.assert_allclose(batch[1], whole[:, 4:6], rtol=2e-7)


def test_distances_never_wrap_around():
    for offset in (-(2**31), -(2**31) + 1, 2**31 - 1, np.int32(-(2**31) + 1)):
        far = abs(int(offset))
        np.testing.assert_allclose(positions.alibi(1, 3, 3, offset), -far / 256)
        for way in (True, False):
            want = exact_bucket(-int(offset), 32, 128, way)
            got = positions.t5_buckets(3, 3, bidirectional=way, offset=offset)
            assert (got == want).all(), (offset, way)
    for offset in (np.uint32([3_000_000_000]), np.array([2**40, -(2**40)])):
        with jax.enable_x64(True):
            got = jax.jit(lambda o: positions.alibi(1, 3, 3, o, jnp.float64))(offset)
            np.testing.assert_allclose(got, -(2.0**31) / 256, rtol=1e-8)


def test_alibi_in_16_bits_is_finite_at_any_distance():
    got = positions.alibi(8, 1, 2, 300_000, jnp.float16)
    assert got.dtype == jnp.float16
    assert got[0].tolist() == [[-65504, -65504]] and got[7, 0, 0] == -1172  # 300,000 / 256
    assert positions.alibi(8, 1, 1, 1000, jnp.bfloat16)[0, 0, 0] == -500


def test_attend_with_alibi(draw):
    drawn = draw(T=4, S=6, N=3, K=1)
    query, key, value = drawn.cast(jnp.float32)
    run = jax.jit(lambda q, k, v, m: ar.attend(q, k, v, bias=positions.alibi(3, 4, 6, 2), mask=m))
    want = reference.attention(*drawn, bias=plain_alibi(3, 4, 6, 2))[0]
    np.testing.assert_allclose(run(query, key, value, None), want, atol=2e-6)
    # Under a causal mask, what the authors' code adds: slope * j.
    visible = np.arange(6) <= np.arange(4)[:, None] + 2
    by_key = np.array(slopes_of_the_authors(3))[:, None, None] * np.arange(6)
    want = reference.attention(*drawn, bias=by_key, mask=visible)[0]
    got = run(query, key, value, ar.masks.causal(2))
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_t5_buckets_by_hand():
    # 16 buckets a side, the upper 8 beginning at 8 * 2^(k / 2): 11.3, 16, 22.6, 32, 45.3, 64, 90.5
    distances = [0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 128, 5000]
    want = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15]
    before = positions.t5_buckets(1, 1, offset=jnp.array(distances))[:, 0, 0]
    assert before.tolist() == want
    after = positions.t5_buckets(1, 1, offset=-jnp.array(distances[1:]))[:, 0, 0]
    assert after.tolist() == [16 + b for b in want[1:]]
    one_way = positions.t5_buckets(6, 6, bidirectional=False)
    assert one_way.dtype == jnp.int32
    np.testing.assert_array_equal(one_way, np.maximum(np.arange(6)[:, None] - np.arange(6), 0))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_are_the_formula_in_exact_arithmetic(bidirectional, rng):
    sizes = [(32, 128), (64, 4096), (6, 7), (5 - bidirectional, 3), (36 * (1 + bidirectional), 98)]
    sizes += [(2 * int(b), int(b + m)) for b, m in rng.integers((2, 1), (20, 300), size=(4, 2))]
    for num_buckets, max_distance in sizes:
        S = min(2 * max_distance + 9, 999)
        options = num_buckets, max_distance, bidirectional
        got = jax.jit(lambda o, S=S, options=options: positions.t5_buckets(2, S, *options, o))(
            S // 2
        )
        want = [[exact_bucket(j - i - S // 2, *options) for j in range(S)] for i in (0, 1)]
        np.testing.assert_array_equal(got, want, err_msg=str(options))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_of_powers_of_two_are_those_of_the_float32_formula(bidirectional):
    for num_buckets, max_distance in [(32, 128), (32, 256), (64, 1024), (16, 64)]:
        B = num_buckets // 2 if bidirectional else num_buckets
        e = B // 2
        n = np.arange(e, 3 * max_distance)
        log = np.log(n.astype(np.float32) / np.float32(e)) / np.float32(math.log(max_distance / e))
        want = np.minimum(e + (log * np.float32(B - e)).astype(int), B - 1)
        got = positions.t5_buckets(1, 1, num_buckets, max_distance, bidirectional, jnp.asarray(n))
        np.testing.assert_array_equal(got[:, 0, 0], want)


def test_t5_bias_looks_its_table_up(rng):
    table = rng.normal(size=(8, 3))
    buckets = [[exact_bucket(j - i - 4, 8, 20, True) for j in range(9)] for i in range(5)]
    run = jax.jit(lambda t, o: positions.t5_bias(t, 5, 9, max_distance=20, offset=o))
    got = run(jnp.asarray(table, jnp.float32), 4)
    np.testing.assert_array_equal(got, np.moveaxis(table[buckets], -1, 0).astype(np.float32))
    batch = positions.t5_bias(table, 5, 9, max_distance=20, offset=jnp.array([[0], [4]]))
    assert batch.shape == (2, 1, 3, 5, 9)
    np.testing.assert_array_equal(batch[1, 0], got)


@pytest.mark.usefixtures("forward_mode")
def test_t5_gradient_reaches_the_table(draw, rng):
    drawn = draw(T=4, S=7)
    table, pull = rng.normal(size=(4, 2)), rng.normal(size=(2, 4, 2, 3))
    step = rng.normal(size=table.shape)
    buckets = np.array([[exact_bucket(j - i, 4, 5, False) for j in range(7)] for i in range(4)])

    def loss(table):
        bias = positions.t5_bias(table, 4, 7, max_distance=5, bidirectional=False)
        return (ar.attend(*drawn, bias=bias) * pull).sum()

    def plain_loss(table):
        bias = np.moveaxis(table[buckets], -1, 0)
        return (reference.attention(*drawn, bias=bias)[0] * pull).sum()

    with jax.enable_x64(True):
        value, grad = jax.jit(jax.value_and_grad(loss))(table)
        along = jax.jit(lambda t: jax.jvp(loss, (t,), (step,))[1])(table)
    assert float(value) == pytest.approx(plain_loss(table), rel=1e-12)
    difference = (plain_loss(table + 1e-5 * step) - plain_loss(table - 1e-5 * step)) / 2e-5
    assert (np.asarray(grad) * step).sum() == pytest.approx(difference, rel=1e-6, abs=1e-8)
    assert float(along) == pytest.approx(difference, rel=1e-6, abs=1e-8)


def test_t5_gradient_of_a_16_bit_table_is_summed_in_float32():
    table = jnp.zeros((2, 1), jnp.bfloat16)

    def total(t):
        return positions.t5_bias(t, 40, 40, max_distance=2, bidirectional=False).sum()

    assert jax.grad(total)(table).tolist() == [[820], [780]]  # a sum in bfloat16 stops at 256


@pytest.mark.parametrize("D", [1, 6, 7])
def test_sinusoidal(D):
    want = np.zeros((9, D))
    for p, d in np.ndindex(9, D):
        angle = p / 500.0 ** ((d - d % 2) / D)
        want[p, d] = math.cos(angle) if d % 2 else math.sin(angle)
    np.testing.assert_allclose(positions.sinusoidal(9, D, 500.0), want, atol=1e-6)
    with jax.enable_x64(True):
        got = positions.sinusoidal(9, D, 500.0, jnp.float64)
        np.testing.assert_allclose(got, want, atol=1e-14)


def test_sinusoidal_far_away_and_empty():
    got = positions.sinusoidal(50_001, 4)[-1]
    want = [math.sin(5e4), math.cos(5e4), math.sin(500), math.cos(500)]
    np.testing.assert_allclose(got, want, atol=3e-6)
    assert positions.sinusoidal(0, 4).shape == (0, 4) and positions.sinusoidal(3, 0).shape == (3, 0)
    assert positions.sinusoidal(3, 4, dtype=jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.alibi_slopes(0), "num_heads must be an integer >= 1: got 0"),
        (lambda p: p.alibi(2, -1, 3), "T must be an integer >= 0: got -1"),
        (lambda p: p.alibi(2, 3, 2.5), "S must be an integer >= 0: got 2.5"),
        (lambda p: p.alibi(2, 3, 3, 1.0), "offset must be integers: got float64"),
        (lambda p: p.alibi(2, 3, 3, jnp.ones(2)), "offset must be integers: got float32"),
        (lambda p: p.alibi(2, 3, 3, True), "offset must be integers: got bool"),
        (lambda p: p.alibi(2, 3, 3, 2**40), "offset must fit into int32: got 1099511627776"),
        (
            lambda p: p.t5_buckets(3, 3, offset=np.array([0, 3_000_000_000])),
            "offset must fit into int32: got 3000000000",
        ),
        (lambda p: p.alibi(2, 3, 3, 0, jnp.int32), "dtype must be floating: got int32"),
        (lambda p: p.t5_buckets(3, 3, 2), "num_buckets must be an integer >= 4: got 2"),
        (lambda p: p.t5_buckets(3, 3, 7), "num_buckets must be even if bidirectional: got 7"),
        (lambda p: p.t5_buckets(3, 3, 32, 8), "max_distance must be an integer >= 9: got 8"),
        (lambda p: p.t5_bias(jnp.zeros(8), 3, 3), r"table must be floating \[num_buckets, heads\]"),
        (lambda p: p.sinusoidal(3, 4, dtype=jnp.int32), "dtype must be floating: got int32"),
    ],
)
def test_wrong_arguments_are_errors(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(positions)
