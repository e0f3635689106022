"""SelfAttention and CrossAttention against Flax's own attention, whose parameters they share."""

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import positions, reference
from attn_research.scores import projected_dot

pytestmark = pytest.mark.usefixtures("quick_compile")

SIZES = dict(num_heads=4, qkv_features=24, out_features=10)

# what these parameters act on, the weights of the steps before, is 0
IDLE_IN_A_FIRST_STEP = {"coverage": {"coverage"}, "location_aware": {"filters", "location"}}


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
    x, memory = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 3, 8), (2, 5, 6)))
    variables = jax.eval_shape(layer.init, jax.random.key(0), x, memory)
    params = variables["params"]
    wanted = ar.init_score(score, jax.random.key(0), 4, 4, num_heads=2).params
    assert set(params) == {"query", "key", "value", "out"} | ({"score"} if wanted else set())
    assert jax.tree.map(jnp.shape, params.get("score", {})) == jax.tree.map(jnp.shape, wanted)

    def by_hand(p):
        q, k, v = (
            jnp.einsum("blf,fnd->blnd", inputs, p[name]["kernel"]) + p[name]["bias"]
            for name, inputs in (("query", x), ("key", memory), ("value", memory))
        )
        own = ar.PerHead(p["score"]) if "score" in p else None
        out = ar.attend(q, k, v, score=score, score_params=own)
        return jnp.einsum("blnd,ndf->blf", out, p["out"]["kernel"]) + p["out"]["bias"]

    @jax.jit
    def both(p):
        out, pull = jax.vjp(lambda p: layer.apply({"params": p}, x, memory), p)
        return out, by_hand(p), pull(jnp.ones_like(out))[0]

    got, want, grads = both(randomized(params, rng))
    np.testing.assert_allclose(got, want, atol=5e-5)
    if wanted:
        idle = IDLE_IN_A_FIRST_STEP.get(score, set())
        moved = {name for name, g in grads["score"].items() if np.abs(g).max() > 0}
        assert moved == set(wanted) - idle


def test_options_of_the_score_and_dtypes():
    layer = ar.SelfAttention(
        num_heads=2,
        score="additive",
        score_options={"dim": 3, "use_bias": True},
        dtype=jnp.bfloat16,
    )
    x = jnp.ones((1, 3, 8))
    result, variables = jax.jit(layer.init_with_output)(jax.random.key(0), x)
    assert result.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
    assert variables["params"]["score"]["bias"].shape == (2, 3)


def projected(params, x):
    """Query, key and value in float64 NumPy."""
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
    kernels = (params[name] for name in ("query", "key", "value"))
    return [np.einsum("blf,fnd->blnd", x, p["kernel"]) + p["bias"] for p in kernels]


def out(params, context):
    kernel, bias = (np.asarray(params["out"][name], np.float64) for name in ("kernel", "bias"))
    return np.einsum("blnd,ndf->blf", context, kernel) + bias


def drawn(layer, rng, T=5):
    """Inputs, and parameters of other values than the initial ones."""
    x = jnp.asarray(rng.normal(size=(2, T, 8)), jnp.float32)
    return x, randomized(jax.eval_shape(layer.init, jax.random.key(0), x)["params"], rng)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_query_heads(kv_heads, rng):
    layer = ar.SelfAttention(**SIZES, num_kv_heads=kv_heads)
    x, params = drawn(layer, rng)
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes["query"] == {"kernel": (8, 4, 6), "bias": (4, 6)}
    assert shapes["key"] == shapes["value"] == {"kernel": (8, kv_heads, 6), "bias": (kv_heads, 6)}
    want = out(params, reference.attention(*projected(params, x))[0])
    np.testing.assert_allclose(jax.jit(layer.apply)({"params": params}, x), want, atol=1e-5)


def weighted_l1(params, query, key):
    return -(params["w"] * jnp.abs(query[..., None, :] - key)).sum(-1)


def draw_w(key, query_dim, key_dim):
    assert query_dim == key_dim
    return {"w": jax.random.uniform(key, (key_dim,), minval=0.5)}


def test_a_function_with_parameters_and_a_learned_scale(rng):
    layer = ar.SelfAttention(**SIZES, score=weighted_l1, score_init=draw_w, scale="learned")
    x, params = drawn(layer, rng)
    first = jax.jit(layer.init)(jax.random.key(0), x)["params"]
    assert first["score"]["w"].shape == (4, 6) and len(np.unique(first["score"]["w"])) == 24
    np.testing.assert_array_equal(first["scale"], np.ones(4))

    def one(params, q, k):
        return -np.sum(params["w"] * np.abs(q - k))

    options = dict(score=one, score_params=params["score"], per_head=True, scale=params["scale"])
    want = out(params, reference.attention(*projected(params, x), **options)[0])

    @jax.jit
    def run(params):
        result, pull = jax.vjp(lambda p: layer.apply({"params": p}, x), params)
        return result, pull(jnp.ones_like(result))[0]

    got, grads = run(params)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert (np.abs(grads["score"]["w"]) > 0).all() and (np.abs(grads["scale"]) > 0).all()


@pytest.mark.parametrize("score", ["dot", "additive", "projected_dot"])
def test_a_learned_scale_starts_at_the_convention_of_the_score(score, rng):
    options = dict(num_heads=2, score=score, score_options=None if score == "dot" else {"dim": 3})
    plain, learned = (ar.SelfAttention(**options, scale=scale) for scale in (None, "learned"))
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    variables = jax.jit(learned.init)(jax.random.key(0), x)
    first = 0.5 if score == "dot" else 1.0  # 1/sqrt(4)
    np.testing.assert_array_equal(variables["params"]["scale"], np.full(2, first))
    rest = {"params": {k: p for k, p in variables["params"].items() if k != "scale"}}
    got, want = jax.jit(lambda: (learned.apply(variables, x), plain.apply(rest, x)))()
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_learned_scale_counts_the_terms_of_the_pairwise_sum(monkeypatch):
    monkeypatch.setattr(projected_dot, "DEFAULT_SCALE", "rsqrt_dim")
    options = dict(score="projected_dot", score_options={"dim": 16}, scale="learned")
    layer = ar.SelfAttention(num_heads=2, **options)
    variables = jax.jit(layer.init)(jax.random.key(0), jnp.ones((1, 3, 8)))
    np.testing.assert_array_equal(variables["params"]["scale"], [0.25, 0.25])


@pytest.mark.parametrize("name, given", [("softmax_one", {}), ("top_k", {"k": 2})])
def test_normalizer_and_softcap(name, given, rng):
    chosen = ar.normalizer(name, **given) if given else name
    layer = ar.CrossAttention(**SIZES, normalizer=chosen, softcap=1.5)
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    variables = jax.eval_shape(layer.init, jax.random.key(0), x, x)
    params = randomized(variables["params"], rng)
    options = dict(normalizer=name, normalizer_options=given, softcap=1.5)
    want = out(params, reference.attention(*projected(params, x), **options)[0])
    np.testing.assert_allclose(jax.jit(layer.apply)({"params": params}, x, x), want, atol=1e-5)


def test_a_parameter_of_the_module_around_as_scale(rng):
    class ScalableSoftmax(nn.Module):
        @nn.compact
        def __call__(self, x):
            s = self.param("s", nn.initializers.constant(0.4), (2,))
            return ar.SelfAttention(2, scale=ar.log_n(s), name="inner")(x, mask=ar.masks.causal())

    x, params = drawn(ScalableSoftmax(), rng)
    inner = params["inner"]
    options = dict(scale=("log_n", np.float64(params["s"])), mask=np.tri(5, dtype=bool))
    want = out(inner, reference.attention(*projected(inner, x), **options)[0])
    got = jax.jit(ScalableSoftmax().apply)({"params": params}, x)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_talking_heads(rng):
    layer = ar.SelfAttention(**SIZES, talking_heads=True)
    x, params = drawn(layer, rng)
    first = jax.jit(layer.init)(jax.random.key(0), x)["params"]
    np.testing.assert_array_equal([first["before"], first["after"]], [np.eye(4)] * 2)
    q, k, v = projected(params, x)
    logits = np.einsum("btnd,bsnd->bnts", q, k) / np.sqrt(6)
    logits = np.einsum("mn,bmts->bnts", np.float64(params["before"]), logits)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    weights = np.einsum("mn,bmts->bnts", np.float64(params["after"]), weights)
    want = out(params, np.einsum("bnts,bsnd->btnd", weights, v))
    np.testing.assert_allclose(jax.jit(layer.apply)({"params": params}, x), want, atol=1e-5)


def test_rotary_positions(rng):
    layer = ar.SelfAttention(**SIZES, position_transform=positions.rope)
    x, params = drawn(layer, rng)
    q, k, v = projected(params, x)
    turns = np.exp(1j * np.arange(5)[:, None] * 10000.0 ** (-np.arange(3) / 3))[:, None]
    q, k = ((y[..., :3] + 1j * y[..., 3:]) * turns for y in (q, k))
    q, k = (np.concatenate([y.real, y.imag], -1) for y in (q, k))
    want = out(params, reference.attention(q, k, v)[0])
    np.testing.assert_allclose(jax.jit(layer.apply)({"params": params}, x), want, atol=1e-5)


def test_dropout(rng):
    layer = ar.SelfAttention(**SIZES, dropout_rate=0.3)
    x, params = drawn(layer.copy(deterministic=False), rng)
    params = {"params": params}
    want = ar.SelfAttention(**SIZES).apply(params, x)
    np.testing.assert_array_equal(layer.apply(params, x, deterministic=True), want)
    np.testing.assert_array_equal(layer.copy(deterministic=True).apply(params, x), want)
    none = ar.SelfAttention(**SIZES, dropout_rate=0.0, deterministic=False)
    np.testing.assert_array_equal(none.apply(params, x), want)

    @jax.jit
    @jax.vmap
    def dropped(key):
        return layer.apply(params, x, deterministic=False, rngs={"dropout": key})

    keys = jax.random.split(jax.random.key(rng.integers(2**31)), 4000)
    outs = np.asarray(dropped(keys), np.float64)
    z = (outs.mean(0) - want) / (outs.std(0) / np.sqrt(len(outs)))
    assert np.abs(z).max() < 6
    np.testing.assert_array_equal(dropped(keys), outs)
    assert np.abs(outs[0] - outs[1]).max() > 1e-3
    with pytest.raises(flax.errors.InvalidRngError, match="dropout"):
        layer.apply(params, x, deterministic=False)
    with pytest.raises(ValueError, match="deterministic"):
        layer.apply(params, x)


def test_how_many_weights_are_dropped(rng):
    layer = ar.SelfAttention(num_heads=1, dropout_rate=0.3, deterministic=False)
    x, params = drawn(layer, rng, T=1)  # one weight, of 1
    keys = jax.random.split(jax.random.key(rng.integers(2**31)), 2000)
    apply = jax.vmap(lambda key: layer.apply({"params": params}, x, rngs={"dropout": key}))
    gone = np.isclose(jax.jit(apply)(keys), params["out"]["bias"]).all(-1)
    assert abs(gone.mean() - 0.3) < 6 * np.sqrt(0.3 * 0.7 / gone.size)


def test_wrong_sizes_are_errors():
    x = jnp.ones((1, 3, 8))
    with pytest.raises(ValueError, match="multiple of num_heads: 10 features, 4 heads; .*=8 would"):
        ar.SelfAttention(num_heads=4, qkv_features=10).init(jax.random.key(0), x)
    with pytest.raises(ValueError, match=r"those of x\) .*: 8 features, 3 heads"):
        ar.SelfAttention(num_heads=3).init(jax.random.key(0), x)
    with pytest.raises(ValueError, match="did you mean 'additive'"):
        ar.SelfAttention(num_heads=2, score="aditive").init(jax.random.key(0), x)
    for wrong, error in (
        (dict(num_kv_heads=3), "multiple of num_kv_heads: 4 heads, num_kv_heads=3; 1, 2, 4 would"),
        (dict(num_kv_heads=0), "num_kv_heads=0"),
        (dict(dropout_rate=1.0), r"dropout_rate must be in \[0, 1\): got 1.0"),
        (dict(score_init=draw_w), "score_init is for .* a function: score is 'dot'"),
        (dict(score=weighted_l1, score_options={"dim": 3}), "score_options are for named scores"),
    ):
        with pytest.raises(ValueError, match=error):
            jax.eval_shape(ar.SelfAttention(num_heads=4, **wrong).init, jax.random.key(0), x)
    layer = ar.SelfAttention(num_heads=2, score=weighted_l1)
    with pytest.raises(TypeError) as caught:
        jax.eval_shape(layer.init, jax.random.key(0), x)
    assert "score_init" in caught.value.__notes__[0]
    layer = ar.SelfAttention(num_heads=2)
    with pytest.raises(ValueError, match="score_state is not for score 'dot'"):
        layer.init(jax.random.key(0), x, score_state=jnp.ones((1, 2, 3)))
    with pytest.raises(TypeError, match="mask must be a boolean array or made by ar.masks"):
        layer.init(jax.random.key(0), x, mask="causal")
