"""SelfAttention and CrossAttention against Flax's own attention, whose parameters they share."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar

pytestmark = pytest.mark.usefixtures("quick_compile")

SIZES = dict(num_heads=4, qkv_features=24, out_features=10)


def randomized(variables, rng):
    """The same tree with every leaf drawn anew (biases are initialized to 0)."""
    return jax.tree.map(lambda x: jnp.asarray(0.4 * rng.normal(size=x.shape), x.dtype), variables)


@pytest.mark.parametrize("use_bias", [True, False])
def test_flax_checkpoints_load_and_give_the_same_outputs(use_bias, rng):
    theirs = nn.MultiHeadDotProductAttention(**SIZES, use_bias=use_bias)
    x, memory = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 5, 8), (2, 7, 8)))
    variables = randomized(theirs.init(jax.random.key(0), x), rng)
    causal = nn.make_causal_mask(x[..., 0])  # float32, as Flax makes it
    padding = nn.make_attention_mask(jnp.ones((2, 5)), jnp.arange(7) < jnp.array([[7], [3]]))
    ours = ar.SelfAttention(**SIZES, use_bias=use_bias)
    for theirs_mask, mask in ((None, None), (causal, causal), (causal, ar.masks.causal())):
        want = jax.jit(lambda p, x, m=theirs_mask: theirs.apply(p, x, mask=m))(variables, x)
        got = jax.jit(lambda p, x, m=mask: ours.apply(p, x, mask=m))(variables, x)
        np.testing.assert_allclose(got, want, atol=1e-5)
    ours = ar.CrossAttention(**SIZES, use_bias=use_bias)
    for mask in (padding, ar.masks.lengths(jnp.array([7, 3]))):
        want = jax.jit(lambda p: theirs.apply(p, x, memory, mask=padding))(variables)
        got = jax.jit(lambda p, m=mask: ours.apply(p, x, memory, mask=m))(variables)
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_initial_parameters_are_those_of_flax():
    x = jnp.ones((1, 3, 8))
    theirs = nn.MultiHeadDotProductAttention(**SIZES).init(jax.random.key(3), x)
    ours = ar.SelfAttention(**SIZES).init(jax.random.key(3), x)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("score", ar.SCORES)
def test_every_score(score, rng):
    layer = ar.CrossAttention(num_heads=2, score=score)
    x, memory = jnp.asarray(rng.normal(size=(2, 3, 8))), jnp.asarray(rng.normal(size=(2, 5, 6)))
    variables = jax.jit(layer.init)(jax.random.key(0), x, memory)
    params = variables["params"]
    wanted = ar.init_score(score, jax.random.key(0), 4, 4, num_heads=2).params
    assert set(params) == {"query", "key", "value", "out"} | ({"score"} if wanted else set())
    assert jax.tree.map(jnp.shape, params.get("score", {})) == jax.tree.map(jnp.shape, wanted)
    variables = randomized(variables, rng)
    params = variables["params"]

    def by_hand(p):
        q, k, v = (
            jnp.einsum("blf,fnd->blnd", inputs, p[name]["kernel"]) + p[name]["bias"]
            for name, inputs in (("query", x), ("key", memory), ("value", memory))
        )
        own = ar.PerHead(p["score"]) if "score" in p else None
        out = ar.attend(q, k, v, score=score, score_params=own)
        return jnp.einsum("blnd,ndf->blf", out, p["out"]["kernel"]) + p["out"]["bias"]

    got = jax.jit(layer.apply)(variables, x, memory)
    np.testing.assert_allclose(got, jax.jit(by_hand)(params), atol=1e-5)
    grads = jax.jit(jax.grad(lambda p: layer.apply({"params": p}, x, memory).sum()))(params)
    if wanted:
        assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(grads["score"]))


def test_options_of_the_score_and_dtypes():
    layer = ar.SelfAttention(
        num_heads=2,
        score="additive",
        score_options={"dim": 3, "use_bias": True},
        dtype=jnp.bfloat16,
    )
    x = jnp.ones((1, 3, 8))
    out, variables = jax.eval_shape(layer.init_with_output, jax.random.key(0), x)
    assert out.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
    assert variables["params"]["score"]["bias"].shape == (2, 3)


def test_wrong_sizes_are_errors():
    x = jnp.ones((1, 3, 8))
    with pytest.raises(ValueError, match="multiple of num_heads: 10 features, 4 heads; .*=8 would"):
        ar.SelfAttention(num_heads=4, qkv_features=10).init(jax.random.key(0), x)
    with pytest.raises(ValueError, match="those of x_q.*: 8 features, 3 heads"):
        ar.SelfAttention(num_heads=3).init(jax.random.key(0), x)
    with pytest.raises(ValueError, match="did you mean 'additive'"):
        ar.SelfAttention(num_heads=2, score="aditive").init(jax.random.key(0), x)
