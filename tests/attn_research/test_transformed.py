"""transform_keys: the key side once, the result the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("num_heads", [None, 4])
@pytest.mark.parametrize("score", ar.SCORES)
def test_attend_gives_the_same(score, num_heads, draw, draw_params, key_dim):
    Dk = key_dim(score, 4)
    query, key, value = draw(N=4, K=2, Dk=Dk).cast(jnp.float32)
    params = draw_params(score, 4, Dk, num_heads)
    options = dict(score=score, score_params=params)

    @jax.jit
    def run(q, k, v, n):
        keys = ar.transform_keys(k, **options)
        masks = (None, ar.masks.lengths(n), ar.masks.lengths(n) & ar.masks.causal(1))
        return [
            (ar.attend(q, k, v, mask=m, **options), ar.attend(q, keys, v, mask=m, **options))
            for m in masks
        ]

    for want, got in run(query, key, value, jnp.array([5, 2])):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_in_a_scan_with_gradients(draw, draw_params):
    query, key, value = draw(T=6, N=1).cast(jnp.float32)
    params = draw_params("additive", 4, 4, use_bias=True)
    mask = ar.masks.lengths(jnp.array([5, 2]))

    def at_once(p, k):
        out = ar.attend(query, k, value, mask=mask, score="additive", score_params=p)
        return jnp.sin(out).sum()

    def step_by_step(p, k):
        options = dict(score="additive", score_params=p)
        keys = ar.transform_keys(k, **options)

        def step(carry, q):
            return carry, ar.attend(q[:, None], keys, value, mask=mask, **options)

        return jnp.sin(jax.lax.scan(step, 0, jnp.moveaxis(query, 1, 0))[1]).sum()

    want = jax.jit(jax.value_and_grad(at_once, argnums=(0, 1)))(params, key)
    got = jax.jit(jax.value_and_grad(step_by_step, argnums=(0, 1)))(params, key)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_one_head_and_functions(rng):
    q, k, v = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((3, 4), (5, 4), (5, 2)))
    keys = ar.transform_keys(k)
    assert keys.keys.shape == (5, 4)
    np.testing.assert_allclose(ar.attend(q, keys, v), ar.attend(q, k, v), atol=1e-6)

    def score(params, q, k):
        return jnp.cos(q @ k.T)

    got = ar.attend(q, ar.transform_keys(k, score=score), v, score=score)
    np.testing.assert_allclose(got, ar.attend(q, k, v, score=score), atol=1e-6)


def test_the_wrong_score_is_an_error(draw, draw_params):
    query, key, value = draw().cast(jnp.float32)
    keys = ar.transform_keys(key, score="general", score_params=draw_params("general", 4, 4))
    with pytest.raises(ValueError, match="transformed for score 'general', not for 'dot'"):
        ar.attend(query, keys, value)
    with pytest.raises(ValueError, match=r"score_params\['kernel'\].* must have shape \[4, 9\]"):
        bad = jnp.ones((*key.shape[:-1], 9))
        ar.transform_keys(bad, score="general", score_params=draw_params("general", 4, 4))
