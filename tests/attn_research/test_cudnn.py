"""implementation="cudnn": what it refuses, and the call, with JAX's own in the place of cuDNN's."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import choose
from attn_research.kernels import cudnn

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture
def gpu(monkeypatch):
    """As if there were one; returns the options of the calls."""
    calls = []

    def call(*arrays, **options):
        calls.append(options)
        return jax.nn.dot_product_attention(*arrays, implementation="xla", **options)

    monkeypatch.setattr(cudnn, "available", lambda: True)
    monkeypatch.setattr(cudnn, "_call", call)
    return calls


@pytest.fixture
def arrays(draw):
    return lambda **sizes: draw(**(dict(T=5, S=5, N=4, K=2, Dq=8, Dk=8, Dv=8) | sizes)).cast(
        jnp.bfloat16
    )


def both(q, k, v, **options):
    """Context, and the gradients of a function of it, of dense and of cudnn."""

    def run(implementation):
        def f(*x):
            out = ar.attend(*x, implementation=implementation, **options)
            return jnp.sin(out.astype(jnp.float32)).sum(), out

        grads, out = jax.jit(jax.grad(f, (0, 1, 2), has_aux=True))(q, k, v)
        return [np.asarray(x, np.float32) for x in (out, *grads)]

    return run("dense"), run("cudnn")


MASKS = {
    "none": None,
    "causal": ar.masks.causal(),
    "lengths": ar.masks.lengths(np.array([3, 5])),
    "empty": ar.masks.lengths(np.array([4, 0])),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_it_agrees_with_dense(mask, gpu, arrays):
    for want, got in zip(*both(*arrays(), mask=mask), strict=True):
        np.testing.assert_allclose(got, want, rtol=0.03, atol=0.03)
    assert gpu and gpu[0]["is_causal"] == (mask is MASKS["causal"])


def test_transforms_scales_and_batches(gpu, arrays, draw_params):
    q, k, v = arrays(batch=(2, 3), Dk=6)
    params = jax.tree.map(jnp.asarray, draw_params("general", 8, 6, num_heads=4))
    lengths = ar.masks.lengths(np.array([2, 0, 5]))
    options = dict(score="general", score_params=params, scale=0.3, mask=lengths)
    for want, got in zip(*both(q, k[:1], v, **options), strict=True):
        np.testing.assert_allclose(got, want, rtol=0.03, atol=0.06)
    one_head = [x[0, 0, :, 0, :] for x in arrays(batch=(1, 1), N=1, K=1)]
    want, got = (x[0] for x in both(*one_head, scale="none"))
    assert got.shape == (5, 8)
    np.testing.assert_allclose(got, want, rtol=0.03, atol=0.03)


@pytest.mark.parametrize(("name", "at"), [("causal", 2), ("lengths", 4), ("empty", 4)])
def test_what_is_not_seen_does_not_leak_and_what_is_seen_does(name, at, gpu, arrays):
    q, k, v = arrays()
    k, v = (x.at[:, at, 1].set(jnp.nan) for x in (k, v))  # key head 1: query heads 2 and 3
    q = q.at[0, 1, 0].set(jnp.nan)
    wants, gots = both(q, k, v, mask=MASKS[name])
    np.testing.assert_array_equal(np.isnan(gots[0]), np.isnan(wants[0]))
    assert np.isnan(gots[0]).any()
    np.testing.assert_allclose(gots[0], wants[0], rtol=0.03, atol=0.03)
    assert np.isfinite(gots[3][1, :, 0]).all()


def test_what_sees_no_key_is_0(gpu, arrays):
    out = cudnn.context(*arrays(), 1.0, False, np.array([0, 2]))
    assert not out[0].any() and out[1].all()
    assert gpu[0]["key_value_seq_lengths"].tolist() == [1, 2]


def refused():
    x = jnp.ones((1, 4, 2, 8), jnp.bfloat16)
    wide, odd, large = (jnp.ones((1, 4, 2, d), jnp.bfloat16) for d in (16, 12, 136))
    single = x.astype(jnp.float32)
    half = x.astype(jnp.float16)
    masks = ar.masks
    key = jax.random.key(0)
    heads = ar.TalkingHeads(jnp.eye(2), jnp.eye(2))
    return {
        "function": ((x, x, x), dict(score=lambda p, q, k: q @ k.T), "the score <function"),
        "distance": ((x, x, x), dict(score="squared_distance"), "the score 'squared_distance'"),
        "place": ((x, x, x), dict(score="location"), "the score 'location', which reads"),
        "normalizer": ((x, x, x), dict(normalizer="softmax_one"), "the normalizer SoftmaxOne"),
        "log_n": ((x, x, x), dict(scale="log_n"), "a scale that"),
        "LogN": ((x, x, x), dict(scale=ar.log_n(0.5)), "a scale that"),
        "scales": ((x, x, x), dict(scale=jnp.ones(2)), "a scale that"),
        "bias": ((x, x, x), dict(bias=jnp.zeros((4, 4))), "bias"),
        "softcap": ((x, x, x), dict(softcap=5.0), "softcap"),
        "heads": ((x, x, x), dict(talking_heads=heads), "talking_heads"),
        "dropout": ((x, x, x), dict(dropout_rate=0.1, dropout_key=key), "dropout"),
        "offset": ((x, x, x), dict(mask=masks.causal(1)), "masks but"),
        "window": ((x, x, x), dict(mask=masks.window(2, 0)), "masks but"),
        "rectangle": ((x[:, :3], x, x), dict(mask=masks.causal()), "masks but"),
        "pair": ((x, x, x), dict(mask=masks.causal() & masks.lengths(3)), "masks but"),
        "array": ((x, x, x), dict(mask=jnp.ones((4, 4), bool)), "masks but"),
        "float32": ((single,) * 3, {}, "dtypes but .*: got float32, float32, float32"),
        "mixed": ((x, x, half), {}, "dtypes but"),
        "widths": ((x, x, wide), {}, "features but .*: got 8 and 16"),
        "not eight": ((odd,) * 3, {}, "features but .*: got 12 and 12"),
        "large": ((large,) * 3, {}, "features but .*: got 136 and 136"),
    }


@pytest.mark.parametrize("name", refused())
def test_what_it_cannot_do(name, gpu, draw_params):
    arrays, options, words = refused()[name]
    if options.get("score") == "location":
        options["score_params"] = jax.tree.map(jnp.asarray, draw_params("location", 8, 8))
    with pytest.raises(ValueError, match=f"'cudnn' cannot do {words}.*: use 'blocked'"):
        ar.attend(*arrays, implementation="cudnn", **options)
    jax.eval_shape(lambda: ar.attend(*arrays, **options))
    assert not gpu


def test_it_has_no_lse_and_no_cached_keys(gpu, arrays):
    q, k, v = arrays()
    with pytest.raises(ValueError, match="cannot do the log-sum-exp: use 'blocked'"):
        ar.attend_with_lse(q, k, v, implementation="cudnn")
    with pytest.raises(ValueError, match="cannot do keys that transform_keys made"):
        ar.attend(q, ar.transform_keys(k), v, implementation="cudnn")


def test_nothing_there(gpu):
    x = jnp.ones((2, 0, 1, 8), jnp.bfloat16)
    assert ar.attend(x[:, :0], x, x, implementation="cudnn").shape == (2, 0, 1, 8)


def test_it_is_chosen_where_nothing_is_rounded(gpu, draw_params, chosen_implementation):
    if chosen_implementation:
        pytest.skip("another one is chosen")
    x = jnp.ones((1, 256, 1, 8), jnp.bfloat16)
    params = jax.tree.map(jnp.asarray, draw_params("general", 8, 8))

    def chosen(x, with_lse=False, **options):
        picked = []

        def note(inputs, given, lse=False):
            picked.append(original(inputs, given, with_lse))
            return "dense"

        with pytest.MonkeyPatch.context() as patch:
            original = choose.implementation
            patch.setattr(choose, "implementation", note)
            jax.eval_shape(lambda x: ar.attend(x, x, x, **options), x)
        return picked[0]

    assert chosen(x) == chosen(x, mask=ar.masks.causal()) == "cudnn"
    assert chosen(x[:, :64]) != "cudnn"
    assert chosen(x.astype(jnp.float32)) != "cudnn"
    assert chosen(x, with_lse=True) != "cudnn"
    assert chosen(x, score="general", score_params=params) != "cudnn"


def test_where_it_is_available(monkeypatch):
    assert not cudnn.available()

    def machine(capability, version, backend="gpu"):
        client = types.SimpleNamespace(platform_version=version)
        device = types.SimpleNamespace(compute_capability=capability, client=client)
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        monkeypatch.setattr(jax, "devices", lambda: [device])
        return cudnn.available()

    assert machine("9.0", "cuda 13000") and machine("10.0", "cuda 13000")
    assert not machine("7.5", "cuda 12080")
    assert not machine("gfx90a", "rocm 6")
    assert not machine("9.0", "", "tpu")


def test_the_call_is_to_cudnn(monkeypatch, arrays):
    seen = {}
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda *x, **o: seen.update(o, shape=x[0].shape) or x[0]
    )
    q, k, v = arrays(batch=(2, 3))
    out = cudnn.context(q, k, v, 0.5, True, None)
    assert out.shape == q.shape
    want = dict(scale=0.5, is_causal=True, implementation="cudnn", shape=(6, 5, 4, 8))
    assert seen == want
