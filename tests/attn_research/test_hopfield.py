"""Hopfield retrieval against loops of the oracle and the claims of the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import reference
from attn_research.hopfield import energy, hopfield

pytestmark = pytest.mark.usefixtures("quick_compile")


def oracle(query, key, value, steps, **options):
    for _ in range(steps - 1):
        query = reference.attention(query, key, key, **options)[0]
    return reference.attention(query, key, value, **options)[0]


def test_one_step_is_attention(draw):
    drawn = draw(N=4, K=2).cast(jnp.float16)
    want = jax.jit(lambda *x: ar.attend(*x, scale=0.7))(*drawn)
    np.testing.assert_array_equal(jax.jit(lambda *x: hopfield(*x, beta=0.7))(*drawn), want)


@pytest.mark.parametrize("steps", [2, 4])
def test_steps_with_mask_bias_and_a_beta_for_each_grouped_head(steps, draw, rng):
    drawn = draw(N=4, K=2)
    mask, bias = rng.random((2, 1, 3, 5)) < 0.7, rng.normal(size=(4, 1, 5))
    beta = rng.uniform(0.5, 2.0, size=4)
    want = oracle(*drawn, steps, scale=beta, mask=mask, bias=bias)

    @jax.jit
    def run(q, k, v, beta, bias):
        return hopfield(q, k, v, beta=beta, steps=steps, mask=mask, bias=bias)

    got = run(*drawn.cast(jnp.float32), *(jnp.asarray(x, jnp.float32) for x in (beta, bias)))
    np.testing.assert_allclose(got, want, atol=1e-5)
    with jax.enable_x64(True):
        got = run(*drawn, beta, bias)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_one_head_and_broadcast_batches(draw):
    query, key, value = draw(batch=(3,), N=1).cast(jnp.float32)

    @jax.jit
    def run(q, k, v):
        return hopfield(q, k, v, beta=1.0, steps=3)

    many = run(query[:1], key, value)
    assert many.shape == (3, 3, 1, 3)
    for b in range(3):
        alone = run(query[0, :, 0], key[b, :, 0], value[b, :, 0])
        np.testing.assert_allclose(many[b, :, 0], alone, atol=1e-6)


def test_sixteen_bits_keep_the_state_in_float32(draw):
    drawn = draw(Dq=8, Dk=8).cast(jnp.bfloat16)
    run = jax.jit(lambda *x: hopfield(*x, beta=2.0, steps=3))
    got, want = run(*drawn), run(*(x.astype(jnp.float32) for x in drawn))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))


@pytest.mark.usefixtures("forward_mode")
def test_gradients_through_the_steps(draw, rng):
    inputs = dict(zip("qkv", draw(batch=(), T=2, N=1), strict=True)) | {"beta": np.array(0.8)}
    pull = rng.normal(size=(2, 1, 3))
    step = jax.tree.map(lambda x: rng.normal(size=x.shape), inputs)
    ends = []
    for h in (1e-5, -1e-5):
        moved = jax.tree.map(lambda x, d, h=h: x + h * d, inputs, step)
        out = oracle(moved["q"], moved["k"], moved["v"], 3, scale=float(moved["beta"]))
        ends.append((out * pull).sum())
    with jax.enable_x64(True):

        def loss(x):
            return (hopfield(x["q"], x["k"], x["v"], beta=x["beta"], steps=3) * pull).sum()

        grads = jax.device_get(jax.jit(jax.grad(loss))(inputs))
        _, forward = jax.jit(lambda x, d: jax.jvp(loss, (x,), (d,)))(inputs, step)
    along = sum((g * d).sum() for g, d in zip(*map(jax.tree.leaves, (grads, step)), strict=True))
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-9)
    assert float(forward) == pytest.approx(float(along), rel=1e-10)


def test_what_is_hidden_has_no_influence_and_empty_rows_give_0(draw):
    query, key, value = draw(batch=(3,)).cast(jnp.float32)
    mask = ar.masks.lengths(jnp.array([5, 2, 0]))
    hidden = (jnp.arange(5) >= jnp.array([5, 2, 0])[:, None])[..., None, None]

    @jax.jit
    def run(q, k, v):
        def loss(q, k, v):
            out = hopfield(q, k, v, beta=1.5, steps=3, mask=mask)
            total = energy(q, k, beta=1.5, mask=mask)
            return jnp.sin(out).sum() + total.sum(), (out, total)

        return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)

    (_, want), want_grads = run(query, key, value)
    bad = [jnp.where(hidden, jnp.nan, x) for x in (key, value)]
    (_, got), grads = run(query.at[2].set(jnp.nan), *bad)
    assert not got[0][2].any() and not got[1][2].any()
    for a, b in zip((*got, *grads), (*want, *want_grads), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert not any(g[2].any() for g in grads)


def test_energy_is_that_of_the_paper_and_never_rises(draw, rng):
    query, key, _ = draw(T=4, S=6, N=2)
    beta = np.array([0.7, 4.0])
    mask, bias = rng.random((2, 1, 4, 6)) < 0.7, rng.normal(size=(4, 6))
    mask[..., 0] = True
    z = beta[:, None, None] * np.einsum("btnd,bsnd->bnts", query, key)
    squares = np.moveaxis((query**2).sum(-1), 1, 2)
    largest = (key**2).sum(-1).max(1)[:, :, None]
    with jax.enable_x64(True):
        got = energy(query, key, beta=beta)
        want = squares / 2 - np.log(np.exp(z).sum(-1)) / beta[:, None]
        np.testing.assert_allclose(got, want, atol=1e-12)
        whole = got + np.log(6) / beta[:, None] + largest / 2
        assert (whole >= -1e-12).all(), "with the paper's constants it is at least 0"
        for options in ({}, {"mask": mask, "bias": bias}):
            now = jax.jit(lambda x, o=options: energy(x, key, beta=beta, **o))
            update = jax.jit(lambda x, o=options: hopfield(x, key, key, beta=beta, **o))
            xi, before = query, now(query)
            for _ in range(8):
                xi = update(xi)
                after = now(xi)
                assert (after <= before + 1e-12).all()
                before = after


def test_energy_of_one_head_and_of_huge_states(draw):
    query, key, _ = draw(batch=(), N=1).cast(jnp.float32)
    run = jax.jit(lambda q, k: energy(q, k, beta=0.1))
    one = run(query[:, 0], key[:, 0])
    assert one.shape == (3,)
    np.testing.assert_allclose(one, run(query, key)[0], rtol=1e-6)
    of_array = ar.hopfield_energy(query[:, 0], key[:, 0], beta=jnp.array([0.1]))
    assert of_array.shape == (3,)
    np.testing.assert_allclose(of_array, one, rtol=1e-6)
    huge = jax.jit(lambda q, k: energy(q, k, beta=0.1, bias=jnp.full((3, 5), 3e38)))
    query, key = (jnp.clip(x, -3, 3) * 1e38 for x in (query, key))  # finite
    assert not np.isnan(huge(query, key)).any()


def test_separated_patterns_are_retrieved_in_one_step(rng):
    """The paper's theorems 3 to 5: exponentially small error after one update."""
    patterns = np.sign(rng.normal(size=(20, 128)))  # |k_i - k_j|^2 ~ 256
    noisy = patterns + 0.3 * rng.normal(size=patterns.shape)
    found = hopfield(noisy, patterns, patterns, beta=1.0)
    np.testing.assert_allclose(found, patterns, atol=1e-4)


def test_small_beta_ends_in_the_mean_of_all_patterns(rng):
    patterns = rng.normal(size=(20, 16))
    found = hopfield(rng.normal(size=(3, 16)), patterns, patterns, beta=1e-4, steps=5)
    np.testing.assert_allclose(found, np.tile(patterns.mean(0), (3, 1)), atol=1e-2)


def test_metastable_mean_of_near_patterns_and_no_other(rng):
    """Patterns near each other and far from the rest: a fixed point near their own mean."""
    centres = np.eye(2, 32) * 6
    patterns = np.concatenate([c + 0.01 * rng.normal(size=(4, 32)) for c in centres])
    found = hopfield(patterns[:1], patterns, patterns, beta=1.0, steps=4)
    np.testing.assert_allclose(found[0], patterns[:4].mean(0), atol=5e-3)


def test_wrong_arguments():
    x = jnp.ones((3, 4))
    with pytest.raises(ValueError, match="steps must be a positive integer: got 0"):
        hopfield(x, x, x, beta=1.0, steps=0)
    with pytest.raises(ValueError, match="beta must be positive: got -1"):
        hopfield(x, x, x, beta=-1)
    for beta in (jnp.array(-1.0), np.float32(-1), jnp.array([1.0, -1.0]), np.array(np.nan)):
        with pytest.raises(ValueError, match="beta must be positive: got .*(-1|nan)"):
            energy(x, x, beta=beta)
    assert hopfield(x, x, x, beta=1.0, steps=np.int64(2)).shape == (3, 4)
    with pytest.raises(TypeError, match="beta must be a positive number: got 'rsqrt_dim'"):
        energy(x, x, beta="rsqrt_dim")
    for steps in (1, 2):
        with pytest.raises(ValueError, match="query has 4, key has 5"):
            hopfield(x, jnp.ones((3, 5)), x, beta=1.0, steps=steps)
