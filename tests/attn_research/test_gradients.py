"""Gradients of attend in float64 against finite differences of the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import reference
from tests.attn_research.oracles import formula

pytestmark = pytest.mark.usefixtures("quick_compile")

BIAS_SHAPES = [(2, 2, 3, 5), (2, 1, 1, 5), (2, 3, 1), ()]


@pytest.mark.parametrize("num_heads", [None, 2])
@pytest.mark.parametrize("score", ar.SCORES)
def test_every_argument(score, num_heads, draw, draw_params, key_dim, rng):  # cases 6, 7
    Dk = key_dim(score, 4)
    mask = rng.random((2, 1, 3, 5)) < 0.6
    mask[1, 0, 1] = False
    inputs = dict(zip("qkv", draw(K=1, Dk=Dk), strict=True))
    inputs["bias"] = rng.normal(size=(2, 1, 5))
    inputs["scale"] = np.float64(0.6)
    params = draw_params(score, 4, Dk, num_heads)
    inputs["params"] = params.params if num_heads else params
    pull, pull_lse = rng.normal(size=(2, 3, 2, 3)), rng.normal(size=(2, 2, 3))

    def loss(inputs):
        params = ar.PerHead(inputs["params"]) if num_heads else inputs["params"]
        context, lse = ar.attend_with_lse(
            inputs["q"],
            inputs["k"],
            inputs["v"],
            score=score,
            score_params=params,
            scale=inputs["scale"],
            bias=inputs["bias"],
            mask=mask,
            softcap=3.0,
        )
        return (context * pull).sum() + jnp.where(lse == -jnp.inf, 0, lse * pull_lse).sum()

    def plain_loss(inputs):
        context, _, lse = reference.attention(
            inputs["q"],
            inputs["k"],
            inputs["v"],
            score=formula(score),
            score_params=inputs["params"],
            per_head=num_heads is not None,
            scale=inputs["scale"],
            bias=inputs["bias"],
            mask=mask,
            softcap=3.0,
        )
        return (context * pull).sum() + (np.where(lse == -np.inf, 0, lse) * pull_lse).sum()

    with jax.enable_x64(True):
        grads = jax.device_get(jax.jit(jax.grad(loss))(inputs))
    for name in inputs:
        if not jax.tree.leaves(inputs[name]):
            continue
        step = jax.tree.map(lambda x: rng.normal(size=np.shape(x)), inputs[name])
        ends = [
            plain_loss(
                inputs | {name: jax.tree.map(lambda x, d, h=h: x + h * d, inputs[name], step)}
            )
            for h in (1e-5, -1e-5)
        ]
        products = jax.tree.map(lambda g, d: (g * d).sum(), grads[name], step)
        along = sum(jax.tree.leaves(products))
        assert along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("shape", BIAS_SHAPES, ids=str)
def test_gradient_of_a_broadcast_bias_is_summed_over_its_axes(shape, draw, rng):  # case 7
    drawn = draw().cast(jnp.float32)
    bias = jnp.asarray(rng.normal(size=shape), jnp.float32)

    @jax.jit
    @jax.grad
    def gradient(bias):
        return jnp.square(ar.attend(*drawn, bias=bias)).sum()

    whole = np.asarray(gradient(jnp.broadcast_to(bias, (2, 2, 3, 5))))
    padded = (1,) * (4 - len(shape)) + shape
    axes = tuple(i for i in range(4) if padded[i] == 1)
    want = whole.sum(axes, keepdims=True).reshape(shape)
    np.testing.assert_allclose(gradient(bias), want, atol=2e-6)


@pytest.mark.parametrize("score", ar.SCORES)
def test_forward_mode_and_hessian(score, draw, draw_params, rng, chosen_implementation):
    drawn = draw(batch=(), T=2, S=3, N=1, Dq=2, Dk=2)
    with jax.enable_x64(True):
        params = draw_params(score, 2, 2)
        step = rng.normal(size=drawn.query.shape)

        def loss(q):
            out = ar.attend(q, drawn.key, drawn.value, score=score, score_params=params)
            return jnp.square(out).sum()

        grad = jax.jit(jax.grad(loss))
        if chosen_implementation == "blocked":  # it has forward over reverse alone
            with pytest.raises(TypeError, match="forward-mode"):
                jax.jvp(loss, (drawn.query,), (step,))
        else:
            along = jax.jit(lambda q: jax.jvp(loss, (q,), (step,))[1])(drawn.query)
            assert float(along) == pytest.approx(float((grad(drawn.query) * step).sum()), rel=1e-10)
        hessian_along = jax.jit(lambda q: jax.jvp(jax.grad(loss), (q,), (step,))[1])(drawn.query)
        ends = [grad(drawn.query + h * step) for h in (1e-6, -1e-6)]
        np.testing.assert_allclose(hessian_along, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-7)


def test_z_loss_trains(draw):  # case 6: d lse / dq = scale * sum_j p_j k_j
    query, key, value = draw().cast(jnp.bfloat16)
    _, lse = ar.attend_with_lse(query, key, value)
    assert lse.dtype == jnp.float32
    grad = jax.grad(lambda q: ar.attend_with_lse(q, key, value)[1].sum())(query)
    weights = np.asarray(ar.attention_weights(query, key), np.float64)
    want = 0.5 * np.einsum("bnts,bsnd->btnd", weights, np.asarray(key, np.float64))
    np.testing.assert_allclose(np.asarray(grad, np.float64), want, atol=1e-2)
