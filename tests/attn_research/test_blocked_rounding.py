"""By blocks the gradient computes logits again, in another order than they were computed in."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import reference
from attn_research.kernels import layout
from attn_research.kernels.blocks import Sizes


def test_logits_that_come_out_larger_than_their_largest_have_finite_gradients(rng):
    """A digit of 1e38 is 1e31: the exponential of it would be inf."""

    @jax.jit
    def grads(q, k, v):
        return jax.grad(
            lambda q, k, v: ar.attend(q, k, v, implementation="blocked").sum(), argnums=(0, 1, 2)
        )(q, k, v)

    for _ in range(20):
        q, k = (np.clip(rng.normal(size=(2, n, h, 6)), -1, 1) for n, h in ((21, 4), (19, 2)))
        v = jnp.asarray(rng.normal(size=(2, 19, 2, 3)), jnp.float32)
        for grad in grads(*(jnp.asarray(x * 1e19, jnp.float32) for x in (q, k)), v):
            assert np.isfinite(grad).all()


@pytest.mark.parametrize("away", [0.0, 20.0, 1e6])
def test_squared_distances_keep_their_digits(away, monkeypatch, rng):  # case 11
    monkeypatch.setattr(layout, "block_sizes", lambda *shape: Sizes(1, 4, 3, 2))
    q, k, v = (rng.normal(size=(n, 1, 3)) * 0.01 + away for n in (13, 11, 11))
    q, k, v = (np.asarray(x, np.float32) for x in (q, k, v))
    want = reference.attention(*map(np.float64, (q, k, v)), score="squared_distance", scale=1e4)[0]
    got = ar.attend(q, k, v, score="squared_distance", scale=1e4, implementation="blocked")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, "traced", "log_n"])
@pytest.mark.parametrize("dim", [8, 64])
def test_squared_distances_of_vectors_of_any_length(dim, scale, rng):
    """By one product or by differences: at most twice the error that dense has."""
    given = {"traced": jnp.array(3.0), "log_n": ar.log_n(0.5)}.get(scale, scale)
    run = jax.jit(
        functools.partial(ar.attend, score="squared_distance", scale=given),
        static_argnames=["implementation"],
    )
    for length in (0.01, 0.1, 0.3, 1.0):
        q, k, v = (rng.normal(size=(256, 2, dim)).astype(np.float32) for _ in range(3))
        q, k = q * np.float32(length), k * np.float32(length)
        number = {"traced": 3.0, "log_n": 0.5 * np.log(256)}.get(scale, scale)
        want = reference.attention(
            *map(np.float64, (q, k, v)), score="squared_distance", scale=number
        )[0]
        errors = [
            np.sqrt(np.square(run(q, k, v, implementation=i) - want).mean())
            for i in ("blocked", "dense")
        ]
        assert errors[0] <= 2 * errors[1], (length, errors)
