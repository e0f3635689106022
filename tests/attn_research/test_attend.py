"""attend, attention_weights and attend_with_lse against the float64 oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import reference
from tests.attn_research.oracles import formula


# Tolerances: logits are rounded to about 1e-7 of their size, which is in the hundreds for some
# parameters that are drawn (the width of a gaussian), and weights follow.
def oracle(query, key, value, params=None, **options):
    if isinstance(params, ar.PerHead):
        options |= {"score_params": params.params, "per_head": True}
    else:
        options |= {"score_params": params}
    if "score" in options:
        options["score"] = formula(options["score"])
    return reference.attention(query, key, value, **options)


def everything(query, key, value, **options):
    """(context, lse, weights), jitted."""

    @jax.jit
    def run(q, k, v):
        return *ar.attend_with_lse(q, k, v, **options), ar.attention_weights(q, k, **options)

    return run(query, key, value)


def single(params):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)


@pytest.mark.parametrize("num_heads", [None, 4])
@pytest.mark.parametrize("score", ar.SCORES)
def test_every_score_with_mask_bias_scale_and_grouped_heads(
    score, num_heads, draw, draw_params, key_dim, rng
):
    Dk = key_dim(score, 4)
    drawn = draw(N=4, K=2, Dk=Dk)
    params = draw_params(score, 4, Dk, num_heads)
    mask, bias = rng.random((2, 1, 3, 5)) < 0.6, rng.normal(size=(4, 1, 5))
    query, key, value = drawn.cast(jnp.float32)
    for options in ({}, {"scale": 0.7, "bias": bias, "mask": mask, "softcap": 2.0}):
        context, weights, lse = oracle(*drawn, params, score=score, **options)
        options |= {"score": score, "score_params": single(params)}
        got, got_lse, got_weights = everything(query, key, value, **options)
        np.testing.assert_allclose(got, context, atol=1e-5)
        np.testing.assert_allclose(got_lse, lse, atol=5e-6, rtol=1e-6)
        np.testing.assert_allclose(got_weights, weights, atol=5e-6)


@pytest.mark.parametrize("score", ar.SCORES)
def test_float64_agrees_to_rounding(score, draw, draw_params, key_dim):  # case 13
    Dk = key_dim(score, 4)
    drawn, params = draw(Dk=Dk), draw_params(score, 4, Dk)
    context, _, lse = oracle(*drawn, params, score=score)
    with jax.enable_x64(True):
        got, got_lse, _ = everything(*drawn, score=score, score_params=params)
        assert got.dtype == got_lse.dtype == jnp.float64
        np.testing.assert_allclose(got, context, atol=1e-12)
        np.testing.assert_allclose(got_lse, lse, atol=1e-12)


def test_options_of_additive(draw, draw_params):
    drawn = draw(Dk=6)
    params = draw_params("additive", 4, 6, use_bias=True, dim=7)
    assert {k: v.shape for k, v in params.items()} == {
        "query": (4, 7),
        "key": (6, 7),
        "v": (7,),
        "bias": (7,),
    }
    want = oracle(*drawn, params, score="additive")[0]
    got = everything(*drawn.cast(jnp.float32), score="additive", score_params=single(params))[0]
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize(
    "shape",
    [  # case 12
        dict(batch=(), T=1, S=1, N=1),
        dict(batch=(2,), T=1, S=7, N=3),
        dict(batch=(2, 3), T=11, S=2, N=4, K=1, Dv=6),
        dict(batch=(1,), T=2, S=0),
        dict(batch=(0,), T=2, S=3),
    ],
    ids=str,
)
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_shapes(shape, score, draw, draw_params):
    drawn, params = draw(**shape), draw_params(score, 4, 4)
    context, weights, lse = oracle(*drawn, params, score=score)
    options = dict(score=score, score_params=single(params))
    query, key, value = drawn.cast(jnp.float32)
    got, got_lse, got_weights = everything(query, key, value, **options)
    assert got.shape == context.shape and got_lse.shape == lse.shape
    assert got_weights.shape == weights.shape
    np.testing.assert_allclose(got, context, atol=2e-6)
    np.testing.assert_allclose(got_lse, lse, atol=5e-6)
    np.testing.assert_allclose(got_weights, weights, atol=2e-6)
    grads = jax.jit(jax.grad(lambda *x: ar.attend(*x, **options).sum(), argnums=(0, 1, 2)))(
        query, key, value
    )
    assert all(np.isfinite(g).all() for g in grads)


def test_rank_two_is_one_head_and_batch_axes_broadcast(rng):
    q, k, v = (rng.normal(size=s) for s in ((3, 4), (5, 4), (5, 2)))
    mask, bias = rng.random((3, 5)) < 0.7, rng.normal(size=(5,))
    context, weights, lse = reference.attention(q, k, v, mask=mask, bias=bias)
    got, got_lse, got_weights = everything(q, k, v, mask=mask, bias=bias)
    assert got.shape == (3, 2) and got_lse.shape == (3,)
    np.testing.assert_allclose(got, context, atol=2e-6)
    np.testing.assert_allclose(got_lse, lse, atol=5e-6)
    np.testing.assert_allclose(got_weights, weights, atol=2e-6)
    many = np.stack([q, 2 * q])[:, :, None]
    got = jax.jit(ar.attend)(many, k[None, :, None], v[None, :, None])
    assert got.shape == (2, 3, 1, 2)
    np.testing.assert_allclose(got[1, :, 0], reference.attention(2 * q, k, v)[0], atol=2e-6)


@pytest.mark.parametrize("score", ar.SCORES)
def test_scale(score, draw, draw_params, key_dim):  # case 8
    Dk = key_dim(score, 4)
    drawn, params = draw(batch=(), T=2, S=3, N=1, Dk=Dk), draw_params(score, 4, Dk)
    scales = [None, "none", "rsqrt_dim", "inverse_dim", -0.3, 2, 0.37]
    want = [oracle(*drawn, params, score=score, scale=scale)[2] for scale in scales]

    @jax.jit
    def lses(traced):
        options = dict(score=score, score_params=single(params))
        given = [*scales[:-1], traced]
        return [ar.attend_with_lse(*drawn.cast(jnp.float32), scale=s, **options)[1] for s in given]

    np.testing.assert_allclose(lses(jnp.float32(0.37)), want, atol=5e-6, rtol=1e-6)


def test_default_scales_are_those_of_the_papers(draw, draw_params):
    drawn = draw(batch=(), T=1, S=2, N=1)
    for score in ("dot", "general", "projected_dot", "additive"):
        options = dict(score=score, score_params=single(draw_params(score, 4, 4)))
        explicit = "rsqrt_dim" if score == "dot" else "none"
        both = jax.jit(
            lambda q, k, v, o=options, e=explicit: (
                ar.attention_weights(q, k, **o),
                ar.attention_weights(q, k, scale=e, **o),
            )
        )(*drawn.cast(jnp.float32))
        np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("per_head", [False, True])
def test_a_function_is_a_score(per_head, draw, rng):
    drawn = draw(batch=(2, 1), N=4, K=2)
    width = rng.uniform(0.5, 2.0, size=(4,) if per_head else ())

    def gaussian(params, q, k):  # [T, D], [S, D] -> [T, S]
        assert q.ndim == k.ndim == 2 and q.shape[1] == k.shape[1] == 4
        return -params["width"] * jnp.square(q[:, None] - k[None]).sum(-1)

    want = reference.attention(
        *drawn,
        score=lambda params, q, k: -params["width"] * ((q - k) ** 2).sum(),
        score_params={"width": width},
        per_head=per_head,
    )[0]
    params = single({"width": width})
    got = everything(
        *drawn.cast(jnp.float32),
        score=gaussian,
        score_params=ar.PerHead(params) if per_head else params,
    )[0]
    np.testing.assert_allclose(got, want, atol=3e-5)  # eps of float32 times logits of up to 100


def test_a_function_may_say_minus_infinity():
    def causal_dot(params, q, k):
        return jnp.where(q[:, :1] > k[:, 0], q @ k.T, -jnp.inf)  # the first feature grows

    x = jnp.arange(6.0).reshape(3, 2)
    got = jax.jit(lambda x: ar.attend(x, x, x, score=causal_dot))(x)
    np.testing.assert_array_equal(got[:2], [[0, 0], [0, 1]])
    grad = jax.jit(jax.grad(lambda x: ar.attend(x, x, x, score=causal_dot).sum()))(x)
    assert np.isfinite(grad).all()


@pytest.mark.parametrize("score", ar.SCORES)
def test_vmap_equals_batch_axes_equals_one_by_one(score, draw, draw_params, key_dim):
    Dk = key_dim(score, 4)
    query, key, value = draw(batch=(3,), Dk=Dk).cast(jnp.float32)
    options = dict(score=score, score_params=single(draw_params(score, 4, Dk, 2)))
    lengths = jnp.array([5, 2, 0])

    @jax.jit
    def one(q, k, v, n):
        return ar.attend(q, k, v, mask=ar.masks.lengths(n) & ar.masks.causal(1), **options)

    batched = one(query, key, value, lengths)
    np.testing.assert_allclose(jax.vmap(one)(query, key, value, lengths), batched, atol=1e-5)
    alone = [one(query[i], key[i], value[i], lengths[i]) for i in range(3)]
    np.testing.assert_allclose(batched, jnp.stack(alone), atol=1e-5)


@pytest.mark.parametrize("score", ar.SCORES)
def test_padding_changes_nothing(score, draw, draw_params, key_dim):
    Dk = key_dim(score, 4)
    query, key, value = draw(batch=(2,), Dk=Dk).cast(jnp.float32)
    options = dict(score=score, score_params=single(draw_params(score, 4, Dk)))
    want = everything(query, key, value, **options)[0]
    key, value = (
        jnp.pad(x, ((0, 0), (0, 3), (0, 0), (0, 0)), constant_values=9.0) for x in (key, value)
    )
    mask = ar.masks.lengths(jnp.array([5, 5]))
    got = everything(query, key, value, mask=mask, **options)[0]
    np.testing.assert_allclose(got, want, atol=1e-5)
