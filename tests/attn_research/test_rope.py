"""Rotary position embedding against complex numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import positions, reference

pytestmark = pytest.mark.usefixtures("quick_compile")


def plain_rope(x, places, base=10000.0, rotary_dim=None, interleaved=False):
    """``x [..., L, H, D]``, ``places [..., L]``: each pair of features as one complex number."""
    x = np.asarray(x, np.float64).copy()
    R = x.shape[-1] if rotary_dim is None else rotary_dim
    places = np.broadcast_to(np.asarray(places, np.float64), x.shape[:-2])
    for where in np.ndindex(*x.shape[:-1]):
        for m in range(R // 2):
            a, b = (2 * m, 2 * m + 1) if interleaved else (m, m + R // 2)
            turn = np.exp(1j * places[where[:-1]] * base ** (-2 * m / R))
            z = (x[where][a] + 1j * x[where][b]) * turn
            x[where][a], x[where][b] = z.real, z.imag
    return x


@pytest.mark.parametrize("rotary_dim", [None, 4])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_complex_numbers(interleaved, rotary_dim, rng):
    x = rng.normal(size=(2, 3, 2, 6))
    options = dict(interleaved=interleaved, rotary_dim=rotary_dim, base=100.0)
    run = jax.jit(lambda x, p: positions.rope(x, p, **options))
    for places in [
        rng.integers(-500, 500, 3),
        rng.integers(0, 500, (2, 3)).astype(np.uint16),
        rng.normal(size=(2, 3)) * 30,
        rng.integers(0, 500, (1, 3)) / 4,
    ]:
        want = plain_rope(x, places, **options)
        got = run(jnp.asarray(x, jnp.float32), jnp.asarray(places))
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, atol=2e-5)  # float32 fractions of positions near 100
        with jax.enable_x64(True):
            got = run(x, places)
            assert got.dtype == jnp.float64
            np.testing.assert_allclose(got, want, atol=1e-12)


def test_rope_by_hand_and_by_default():
    x = jnp.array([[1.0, 2.0, 3.0, 4.0]] * 2)  # one head; the angles of row 1 are 1 and 0.01
    c, s, C, S = math.cos(1), math.sin(1), math.cos(0.01), math.sin(0.01)
    halves = [c - 3 * s, 2 * C - 4 * S, 3 * c + s, 4 * C + 2 * S]
    pairs = [c - 2 * s, 2 * c + s, 3 * C - 4 * S, 4 * C + 3 * S]
    rope = jax.jit(positions.rope, static_argnames="interleaved")
    np.testing.assert_allclose(rope(x), [x[0], halves], rtol=1e-6)
    np.testing.assert_allclose(rope(x, interleaved=True), [x[0], pairs], rtol=1e-6)
    np.testing.assert_array_equal(rope(x), rope(x[:, None], jnp.arange(2.0))[:, 0])


def test_rope_sees_distances_alone_and_keeps_norms(rng):
    q, k = rng.normal(size=(2, 5, 1, 8))
    near = rng.integers(0, 50, 5), rng.integers(0, 50, 5)
    with jax.enable_x64(True):
        rope = jax.jit(positions.rope)
        dots = [
            np.einsum("ihd,jhd->ij", rope(q, near[0] + shift), rope(k, near[1] + shift))
            for shift in (0, 1, 1000, -77)
        ]
        norms = np.linalg.norm(rope(q, near[0]), axis=-1)
    for other in dots[1:]:
        np.testing.assert_allclose(other, dots[0], atol=1e-11)
    np.testing.assert_allclose(norms, np.linalg.norm(q, axis=-1), rtol=1e-14)


@pytest.mark.parametrize("top", [10**5, 2**24, 2**31 - 1])
def test_rope_at_large_positions(top, rng):
    """In float32, yet right to the rounding of an angle in (-pi, pi), not of position * frequency;
    the oracle's float64 is good to 1e-6 up to the largest position."""
    places = np.concatenate([rng.integers(-top, top, 60), [top, -top, top - 1, 65536]])
    x = np.repeat([[1.0, 0.0]], 16, 0).T.reshape(1, 1, 32)  # (1, 0): the result is cos, sin
    x = np.repeat(x, len(places), 0)
    rope = jax.jit(positions.rope)
    got = rope(jnp.asarray(x, jnp.float32), jnp.asarray(places, jnp.int32))
    np.testing.assert_allclose(got, plain_rope(x, places), atol=3e-6)
    if top < 2**24:
        halves = jnp.asarray(places, jnp.float32) + 0.5 * (abs(places) < 2**23)
        got = rope(jnp.asarray(x, jnp.float32), halves)
        np.testing.assert_allclose(got, plain_rope(x, halves), atol=3e-6)


def test_rope_is_differentiable_by_x_and_by_positions(rng):
    x, pull = rng.normal(size=(2, 3, 1, 4)).astype(np.float32)
    places = rng.uniform(0.1, 0.9, 3) + rng.integers(-1000, 1000, 3)
    step, steps = rng.normal(size=x.shape), rng.normal(size=3)

    def loss(x, p):
        return (positions.rope(x, p, base=10.0) * pull).sum()

    def plain(x, p):
        return (plain_rope(x, p, base=10.0) * pull).sum()

    grads = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, jnp.asarray(places, jnp.float32))
    places = np.float32(places)
    want = (plain(x + 1e-5 * step, places) - plain(x - 1e-5 * step, places)) / 2e-5
    assert (np.asarray(grads[0]) * step).sum() == pytest.approx(want, rel=1e-3, abs=1e-4)
    ends = [plain(x, places.astype(np.float64) + h * steps) for h in (1e-5, -1e-5)]
    want = (ends[0] - ends[1]) / 2e-5
    assert (np.asarray(grads[1]) * steps).sum() == pytest.approx(want, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_rope_keeps_the_dtype_and_finite_numbers_finite(dtype):
    top = jnp.finfo(dtype).max
    x = jnp.full((3, 2, 4), top, dtype).at[1, 0, 0].set(jnp.nan)

    def total(x):
        return positions.rope(x).astype(jnp.float32)[jnp.array([0, 2])].sum() / 2.0**127

    rope = jax.jit(positions.rope)
    out, grad = rope(x), jax.jit(jax.grad(total))(x)
    assert out.dtype == dtype
    assert (jnp.isnan(out) == jnp.zeros(out.shape, bool).at[1, 0, ::2].set(True)).all()
    assert jnp.isfinite(out[jnp.array([0, 2])]).all()
    assert jnp.isfinite(grad).all() and not grad[1].any()
    assert not jnp.isfinite(rope(x.at[1, 0, 0].set(jnp.inf))[1, 0, ::2]).any()
    small = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 4)), dtype)
    want = plain_rope(np.asarray(small, np.float64), np.arange(3))
    np.testing.assert_allclose(
        np.asarray(rope(small), np.float64),
        want,
        rtol=float(jnp.finfo(dtype).eps),
        atol=1e-6,
    )


def test_rope_before_attend(draw, rng):
    drawn = draw(T=3, S=5, N=4, K=2)
    q_at, k_at = rng.integers(0, 90, 3), rng.integers(0, 90, 5)
    turned = plain_rope(drawn.query, q_at), plain_rope(drawn.key, k_at)
    want = reference.attention(*turned, drawn.value)[0]

    @jax.jit
    def run(q, k, v):
        return ar.attend(positions.rope(q, q_at), positions.rope(k, k_at), v)

    np.testing.assert_allclose(run(*drawn.cast(jnp.float32)), want, atol=5e-6)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((4,), {}, r"x must be \[..., length, heads, features\] or \[L, D\]: got shape \(4,\)"),
        ((2, 5), {}, r"rotary_dim .* even and in 2 .. 5: got 5"),
        ((2, 4), {"rotary_dim": 6}, "in 2 .. 4: got 6"),
        ((2, 4), {"rotary_dim": 3}, "must be even .*: got 3"),
        ((2, 4), {"rotary_dim": 0}, "in 2 .. 4: got 0"),
        ((2, 4), {"positions": 3}, r"broadcast to \[\.\.\., L\] = \[2\]: got \[\]"),
        ((7, 2, 1, 4), {"positions": jnp.arange(7)}, r"= \[7, 2\]: got \[7\]"),
        ((2, 4), {"positions": [True, False]}, "positions must be integers or floating: got bool"),
        ((2, 4), {"base": 0}, "base must be a positive number.*: got 0"),
    ],
)
def test_wrong_arguments_are_errors(shape, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        positions.rope(jnp.zeros(shape), **options)


def test_integers_are_not_turned():
    with pytest.raises(TypeError, match="x must be floating: got int32"):
        positions.rope(jnp.zeros((2, 4), jnp.int32))
