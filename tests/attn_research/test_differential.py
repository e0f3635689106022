"""Differential attention against two maps of the oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import differential, reference


@pytest.mark.parametrize("per_head", [False, True])
def test_the_difference_of_two_maps(per_head, draw, rng):
    query, key, value = draw(N=4, K=2, Dq=6, Dk=6)
    weight = rng.normal(size=4 if per_head else ())
    mask = rng.random((2, 1, 3, 5)) < 0.6
    mask[0, 0, 1] = False
    maps = [
        reference.attention(query[..., part], key[..., part], value, mask=mask)[0]
        for part in (slice(0, 3), slice(3, 6))
    ]
    want = maps[0] - (weight[:, None] if per_head else weight) * maps[1]
    arrays = [jnp.asarray(x, jnp.float32) for x in (query, key, value)]

    @jax.jit
    def run(q, k, v, weight):
        return differential.differential_attention(q, k, v, weight=weight, mask=mask)

    np.testing.assert_allclose(run(*arrays, weight), want, atol=2e-6)
    arrays[2] = arrays[2].astype(jnp.bfloat16)
    got = run(*arrays, weight)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.05, rtol=0.02)


def test_gradients(draw, rng):
    with jax.enable_x64(True):
        arrays = dict(zip("qkv", draw(), strict=True)) | {"weight": rng.normal(size=2)}

        def loss(arrays):
            q, k, v = (arrays[name] for name in "qkv")
            out = differential.differential_attention(q, k, v, weight=arrays["weight"])
            return jnp.sin(out).sum()

        run = jax.jit(loss)
        grads = jax.grad(run)(arrays)
        for name, x in arrays.items():
            step = rng.normal(size=x.shape)
            ends = [float(run(arrays | {name: x + h * step})) for h in (1e-6, -1e-6)]
            along = float((grads[name] * step).sum())
            assert along == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7), name


def test_equal_maps_cancel_and_its_weight(rng):
    half = rng.normal(size=(3, 2, 4))
    q = k = np.concatenate([half, half], -1)
    value = rng.normal(size=(3, 2, 5))
    np.testing.assert_allclose(
        differential.differential_attention(q, k, value, weight=1.0), 0, atol=1e-6
    )
    vectors = rng.normal(size=(4, 2, 3))
    want = np.exp((vectors[0] * vectors[1]).sum(-1)) - np.exp((vectors[2] * vectors[3]).sum(-1))
    got = differential.differential_weight(*vectors, initial=0.3)
    np.testing.assert_allclose(got, want + 0.3, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_weight_of_16_bit_vectors_is_wide(dtype, rng):
    vectors = [jnp.asarray(x, dtype) for x in rng.normal(size=(4, 2, 3))]
    q_1, k_1, q_2, k_2 = (np.asarray(x, np.float64) for x in vectors)
    want = np.exp((q_1 * k_1).sum(-1)) - np.exp((q_2 * k_2).sum(-1)) + 0.3
    got = jax.jit(differential.differential_weight)(*vectors, initial=0.3)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_weight_of_large_vectors_saturates(dtype):
    weight = functools.partial(differential.differential_weight, initial=0.3)
    with jax.enable_x64(dtype == "float64"):
        run = jax.jit(jax.value_and_grad(lambda *x: weight(*x).sum(), range(4)))
        limit = 709 if dtype == "float64" else 88
        signs = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [-1, -1, -1, -1]])
        for size in (5.0, 16.0, 2.0 ** (jnp.finfo(dtype).maxexp - 1)):  # the last one's overflow
            k = jnp.full((3, 4), size, dtype)
            q = k * jnp.asarray(signs, dtype)
            exponents = np.minimum(signs.sum(-1) * min(size, 1e9) ** 2, limit)
            for q_2, want in ((0 * q, np.exp(exponents) - 0.7), (q, np.full(3, 0.3))):
                np.testing.assert_allclose(weight(q, k, q_2, k), want, rtol=1e-5)
                total, grads = run(q, k, q_2, k)
                assert np.isfinite(total) and all(jnp.isfinite(x).all() for x in grads)
                cut = exponents == limit  # there the derivative is 0
                assert cut[0] == (size > 5 or limit == 88)
                assert not any(np.asarray(x, np.float64)[cut].any() for x in grads[:2])


def test_errors(draw):
    query, key, value = draw(Dq=5, Dk=5).cast(jnp.float32)
    with pytest.raises(ValueError, match="query must be .* an even number of features"):
        differential.differential_attention(query, key, value, weight=0.5)
    with pytest.raises(ValueError, match=r"each of the 2 heads: got shape \(3,\)"):
        differential.differential_attention(query[..., :4], key[..., :4], value, weight=jnp.ones(3))
    query, key, whole = query[..., :4], key[..., :4], (10 * value).astype(jnp.int32)
    for f in (ar.attend, functools.partial(differential.differential_attention, weight=0.5)):
        with pytest.raises(
            TypeError, match=r"value must be floating: got int32; use value.astype\(jnp.float32\)$"
        ):
            f(query, key, whole)
