"""In the place of jax.nn's and Flax's attention."""

import functools
import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attn_research as ar
from attn_research import compat, reference

pytestmark = pytest.mark.usefixtures("quick_compile")

# What jax's own tests of the function vary (jax-ml/jax, tests/nn_test.py,
# testDotProductAttention*): dtypes, groups, vmap; masks alone and together; gradients, those of a
# bias too.
MODES = [
    ["none"],
    ["bias"],
    ["causal"],
    ["padding"],
    ["custom"],
    ["causal", "padding"],
    ["custom", "padding"],
    ["bias", "causal"],
    ["causal", "window"],
    ["window"],
    ["one-number window"],
    ["bias", "custom", "causal", "padding", "window"],
]


def arguments(modes, rng, dtype, T=9, S=9):
    given = {}
    if "bias" in modes:
        given["bias"] = jnp.asarray(rng.normal(size=(1, 4, T, S)), dtype)
    if "custom" in modes:
        given["mask"] = jnp.asarray(np.tril(np.ones((T, S), bool)))[None, None]
    if "causal" in modes:
        given["is_causal"] = True
    if "padding" in modes:
        given["query_seq_lengths"] = jnp.array([T // 2, T // 4], jnp.int32)
        given["key_value_seq_lengths"] = jnp.array([S // 4, S // 2], jnp.int32)
    if "window" in modes:
        given["local_window_size"] = (3, 2)
    if "one-number window" in modes:
        given["local_window_size"] = 2
    return given


def both(f, arrays, bias, pull):
    """(context, lse, gradients by arrays and bias)."""

    def loss(arrays, bias):
        context, lse = f(*arrays, bias)
        return (context.astype(jnp.float32) * pull).sum(), (context, lse)

    (_, out), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(arrays, bias)
    return *out, jax.tree.leaves(grads)


@pytest.mark.parametrize("modes", MODES, ids="+".join)
@pytest.mark.parametrize(("dtype", "atol"), [("float32", 2e-5), ("bfloat16", 0.03)])
def test_agrees_with_jax_where_jax_is_right(modes, dtype, atol, draw, rng):
    arrays = draw(T=9, S=9, N=4, K=2, Dq=8, Dk=8, Dv=8).cast(dtype)
    given = arguments(modes, rng, dtype)
    bias = given.pop("bias", None)
    pull = rng.normal(size=(2, 9, 4, 8))
    results = []
    for f in (compat.dot_product_attention, jax.nn.dot_product_attention):

        def call(q, k, v, bias, f=f):
            return f(q, k, v, bias, return_residual=True, **given)

        results.append(both(call, arrays, bias, pull))
    # The lse of rows that see nothing differs; queries beyond their length give 0 in both.
    sees = np.ones((2, 9), bool)
    if "padding" in modes:
        sees = np.arange(9) < np.array([[9 // 2], [9 // 4]])
    (ours, our_lse, our_grads), (theirs, their_lse, their_grads) = results
    assert ours.dtype == dtype and our_lse.dtype == jnp.float32
    wide = [np.asarray(x, np.float32) for x in (ours, theirs, our_lse, their_lse)]
    np.testing.assert_allclose(wide[0], wide[1], atol=atol)
    np.testing.assert_allclose(wide[2][sees], wide[3][sees], atol=5 * atol, rtol=0.01)
    for got, want in zip(our_grads, their_grads, strict=True):
        assert got.dtype == want.dtype
        got, want = (np.asarray(x, np.float32) for x in (got, want))
        np.testing.assert_allclose(got, want, atol=3 * atol, rtol=3 * atol)


def test_agrees_with_the_oracle_where_jax_is_not(draw, rng):  # cases 1, 2, 10
    drawn = draw(T=4, S=6, Dq=8, Dk=8)
    q, k, v = drawn.cast(jnp.float32)
    mask = rng.random((2, 1, 4, 6)) < 0.5
    mask[0, 0, 1] = False
    visible = mask & (np.arange(6) < np.array([3, 0])[:, None, None, None])
    window = np.abs(np.arange(4)[:, None] - np.arange(6)) <= 2
    want, _, lse = reference.attention(*drawn, mask=visible & window, scale=0.3)
    options = dict(mask=jnp.asarray(mask), scale=0.3, local_window_size=2, return_residual=True)
    got, got_lse = compat.dot_product_attention(
        q, k, v, key_value_seq_lengths=jnp.array([3, 0]), **options
    )
    np.testing.assert_allclose(got, want, atol=2e-6)
    np.testing.assert_allclose(got_lse, lse.swapaxes(-1, -2), atol=1e-5)


def test_its_arguments_are_those_of_jax():
    ours = inspect.signature(compat.dot_product_attention).parameters
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_without_batch_axis_under_vmap_and_by_implementation(draw):
    q, k, v = draw(batch=(3,)).cast(jnp.float32)
    want = ar.attend(q, k, v)
    mapped = jax.vmap(compat.dot_product_attention)(q, k, v)
    np.testing.assert_allclose(mapped, want, atol=1e-6)
    named = compat.dot_product_attention(q, k, v, implementation="xla")
    np.testing.assert_allclose(named, want, atol=1e-6)
    with pytest.raises(ValueError, match="'cudnn' cannot do without an NVIDIA GPU"):
        compat.dot_product_attention(q, k, v, implementation="cudnn")


def without_batch(rng, axes):
    """Arguments that ``jax.nn.dot_product_attention`` takes without a batch axis."""
    T, N = (5, 4) if axes > 2 else (1, 5)
    shapes = {4: (1, 5, 4, 8), 3: (5, 4, 8), 2: (5, 8)}
    arrays = {n: jnp.asarray(rng.normal(size=shapes[axes]), jnp.float32) for n in ("q", "k", "v")}
    see = rng.random((N, T, T)) < 0.7
    see |= np.eye(T, dtype=bool)
    lengths = dict(
        query_seq_lengths=jnp.array([T - 1]), key_value_seq_lengths=jnp.array([T - T // 3])
    )
    bias = jnp.asarray(rng.normal(size=(1, N, T, T)), jnp.float32)
    yield arrays, dict(lengths, is_causal=True, local_window_size=2)
    yield arrays, dict(mask=see[None], bias=bias, return_residual=True)
    yield arrays, dict(mask=see, bias=bias[0], **lengths)
    yield arrays, dict(mask=see[None, :1], bias=bias[:, :, :1], scale=0.3)
    yield arrays, dict(mask=see[0], bias=jnp.arange(T))  # [T, S] and integers [S]


@pytest.mark.parametrize("axes", [4, 3, 2])
def test_without_batch_axis_all_that_jax_accepts(axes, rng):
    for arrays, given in without_batch(rng, axes):
        results = []
        for f in (compat.dot_product_attention, jax.nn.dot_product_attention):
            run = jax.jit(functools.partial(f, **given))
            results.append(run(*arrays.values()))
        for got, want in zip(*map(jax.tree.leaves, results), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, atol=2e-6)


def test_query_without_batch_axis_and_others_with(rng):
    q = jnp.asarray(rng.normal(size=(3, 2, 4)), jnp.float32)
    for k in (q[None], jnp.stack([q, q])):
        if len(k) == 1:
            want = jax.nn.dot_product_attention(q, k, k)
            got = compat.dot_product_attention(q, k, k)
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, atol=1e-6)
        else:
            with pytest.raises(ValueError, match=r"query is \[3, 2, 4\], key \[2, 3, 2, 4\]"):
                compat.dot_product_attention(q, k, k)


@pytest.mark.parametrize("causal", [False, True])
def test_in_linen(causal, rng):
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    mask = nn.make_causal_mask(x[..., 0]) if causal else None
    plain = nn.MultiHeadDotProductAttention(num_heads=2)
    ours = plain.clone(attention_fn=compat.flax_attention_fn())
    variables = plain.init(jax.random.key(0), x)

    def run(layer):
        def loss(variables):
            y, sown = layer.apply(
                variables, x, mask=mask, sow_weights=True, mutable="intermediates"
            )
            return jnp.sin(y).sum(), (y, sown["intermediates"]["attention_weights"][0])

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)

    for got, want in zip(*(jax.tree.leaves(run(layer)) for layer in (ours, plain)), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_in_nnx(causal, rng):
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    layers = [
        nnx.MultiHeadAttention(2, 8, rngs=nnx.Rngs(0), decode=False, attention_fn=f)
        for f in (compat.flax_attention_fn(), nnx.dot_product_attention)
    ]
    mask = nn.make_causal_mask(x[..., 0]) if causal else None

    def loss(layer):
        return jnp.sin(layer(x, mask=mask)).sum()

    grads = [nnx.jit(nnx.grad(loss))(layer) for layer in layers]
    (ours, our_weights), (theirs, their_weights) = (
        nnx.capture(layer, nnx.Intermediate)(x, mask=mask, sow_weights=True) for layer in layers
    )
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    for left, right in ((grads[0], grads[1]), (our_weights, their_weights)):
        for got, want in zip(*map(jax.tree.leaves, (left, right)), strict=True):
            np.testing.assert_allclose(got, want, atol=3e-6)


def test_options_reach_the_layer(rng):
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    params = ar.init_score("additive", jax.random.key(1), 4, 4)
    options = dict(score="additive", score_params=params, mask=ar.masks.causal())
    layer = nn.MultiHeadDotProductAttention(
        num_heads=2, attention_fn=compat.flax_attention_fn(**options)
    )
    variables = layer.init(jax.random.key(0), x)
    lengths = jnp.array([5, 3])
    mask = nn.make_attention_mask(jnp.ones((2, 5)), jnp.arange(5) < lengths[:, None])
    got = layer.apply(variables, x, mask=mask)
    q, k, v = (
        jnp.einsum("bti,ind->btnd", x, p["kernel"]) + p["bias"]
        for p in (variables["params"][name] for name in ("query", "key", "value"))
    )
    options["mask"] &= ar.masks.lengths(lengths)
    out = variables["params"]["out"]
    want = jnp.einsum("btnd,ndo->bto", ar.attend(q, k, v, **options), out["kernel"]) + out["bias"]
    np.testing.assert_allclose(got, want, atol=3e-6)


def test_dropout_and_precision_of_the_layer(rng):
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    layer = nn.MultiHeadDotProductAttention(
        num_heads=2,
        dropout_rate=0.5,
        precision=jax.lax.Precision.HIGHEST,
        dtype=jnp.bfloat16,
        attention_fn=compat.flax_attention_fn(),
    )
    variables = layer.init(jax.random.key(0), x, deterministic=True)
    quiet = layer.apply(variables, x, deterministic=True)
    one, two = (
        layer.apply(variables, x, deterministic=False, rngs={"dropout": jax.random.key(i)})
        for i in range(2)
    )
    assert quiet.dtype == jnp.bfloat16
    assert not np.array_equal(one, quiet) and not np.array_equal(one, two)
    with pytest.raises(TypeError, match="precision must be a name"):
        compat.flax_attention_fn()(*[x[:, :, None]] * 3, precision=("highest", "default"))
