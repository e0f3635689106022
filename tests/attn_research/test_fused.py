"""Fused kernels: what they refuse, and the calls: JAX's own for cuDNN's, splash interpreted."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import choose
from attn_research.kernels import cudnn, fused, splash

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(params=["cudnn", "splash"])
def kernel(request, monkeypatch):
    """The name of one that seems to be available, whose calls a CPU can do."""
    real = jax.nn.dot_product_attention

    def call(*arrays, implementation, **options):
        assert implementation == "cudnn"
        return real(*arrays, implementation="xla", **options)

    if request.param == "cudnn":
        monkeypatch.setattr(jax.nn, "dot_product_attention", call)
    else:
        interpreted = functools.partial(splash._kernel, interpret=True)
        monkeypatch.setattr(splash, "_kernel", interpreted)
    monkeypatch.setattr(fused.KERNELS[request.param], "available", lambda: True)
    return request.param


@pytest.fixture
def arrays(draw):
    return lambda **sizes: draw(**(dict(T=5, S=5, N=4, K=2, Dq=8, Dk=8, Dv=8) | sizes)).cast(
        jnp.bfloat16
    )


def both(kernel, q, k, v, **options):
    """Context, and the gradients of a function of it, of dense and of ``kernel``."""

    def run(implementation):
        def f(*x):
            out = ar.attend(*x, implementation=implementation, **options)
            return jnp.sin(out.astype(jnp.float32)).sum(), out

        grads, out = jax.jit(jax.grad(f, (0, 1, 2), has_aux=True))(q, k, v)
        return [np.asarray(x, np.float32) for x in (out, *grads)]

    return run("dense"), run(kernel)


MASKS = {
    "none": None,
    "causal": ar.masks.causal(),
    "lengths": ar.masks.lengths(np.array([3, 5])),
    "empty": ar.masks.lengths(np.array([4, 0])),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_it_agrees_with_dense(mask, kernel, arrays):
    for want, got in zip(*both(kernel, *arrays(), mask=mask), strict=True):
        np.testing.assert_allclose(got, want, rtol=0.03, atol=0.03)


def test_transforms_scales_and_batches(kernel, arrays, draw_params):
    q, k, v = arrays(batch=(2, 3), Dk=6)
    params = jax.tree.map(jnp.asarray, draw_params("general", 8, 6, num_heads=4))
    lengths = ar.masks.lengths(np.array([2, 0, 5]))
    options = dict(score="general", score_params=params, scale=0.3, mask=lengths)
    for want, got in zip(*both(kernel, q, k[:1], v, **options), strict=True):
        np.testing.assert_allclose(got, want, rtol=0.03, atol=0.06)
    one_head = [x[0, 0, :, 0, :] for x in arrays(batch=(1, 1), N=1, K=1)]
    want, got = (x[0] for x in both(kernel, *one_head, scale="none"))
    assert got.shape == (5, 8)
    np.testing.assert_allclose(got, want, rtol=0.03, atol=0.03)


@pytest.mark.parametrize(("name", "at"), [("causal", 2), ("lengths", 4), ("empty", 4)])
def test_what_is_not_seen_does_not_leak_and_what_is_seen_does(name, at, kernel, arrays):
    q, k, v = arrays()
    k, v = (x.at[:, at, 1].set(jnp.nan) for x in (k, v))  # key head 1: query heads 2 and 3
    q = q.at[0, 1, 0].set(jnp.nan)
    wants, gots = both(kernel, q, k, v, mask=MASKS[name])
    np.testing.assert_array_equal(np.isnan(gots[0]), np.isnan(wants[0]))
    assert np.isnan(gots[0]).any()
    np.testing.assert_allclose(gots[0], wants[0], rtol=0.03, atol=0.03)
    assert np.isfinite(gots[3][1, :, 0]).all()


def test_what_sees_no_key_is_0(kernel, arrays):
    out = fused.context(kernel, *arrays(), 1.0, False, np.array([0, 2]))
    assert not out[0].any() and out[1].all()


def refused():
    x = jnp.ones((1, 4, 2, 8), jnp.bfloat16)
    wide, odd, large = (jnp.ones((1, 4, 2, d), jnp.bfloat16) for d in (16, 12, 136))
    single = x.astype(jnp.float32)
    half = x.astype(jnp.float16)
    masks = ar.masks
    key = jax.random.key(0)
    heads = ar.TalkingHeads(jnp.eye(2), jnp.eye(2))
    return (
        {
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
        },
        {
            "widths": ((x, x, wide), "features but .*: got 8 and 16"),
            "not eight": ((odd,) * 3, "features but .*: got 12 and 12"),
            "large": ((large,) * 3, "features but .*: got 136 and 136"),
        },
        {
            "half": ((half,) * 3, "dtypes but bfloat16: got float16, float16, float16"),
            "nothing": ((x, x, x[..., :0]), "keys or values without features: got 8 and 0"),
        },
    )


@pytest.mark.parametrize("name", refused()[0])
def test_what_they_cannot_do(name, kernel, draw_params, monkeypatch):
    arrays, options, words = refused()[0][name]
    if options.get("score") == "location":
        options["score_params"] = jax.tree.map(jnp.asarray, draw_params("location", 8, 8))
    with pytest.raises(ValueError, match=f"'{kernel}' cannot do {words}.*: use 'blocked'"):
        ar.attend(*arrays, implementation=kernel, **options)
    monkeypatch.setattr(fused.KERNELS[kernel], "call", None)
    jax.eval_shape(lambda: ar.attend(*arrays, **options))


def test_what_one_of_them_cannot_do(kernel):
    _, cudnns, splashes = refused()
    for arrays, words in (cudnns if kernel == "cudnn" else splashes).values():
        with pytest.raises(ValueError, match=f"'{kernel}' cannot do {words}.*: use 'blocked'"):
            ar.attend(*arrays, implementation=kernel)


def test_they_have_no_lse_and_no_cached_keys(kernel, arrays):
    q, k, v = arrays()
    with pytest.raises(ValueError, match="cannot do the log-sum-exp: use 'blocked'"):
        ar.attend_with_lse(q, k, v, implementation=kernel)
    with pytest.raises(ValueError, match="cannot do keys that transform_keys made"):
        ar.attend(q, ar.transform_keys(k), v, implementation=kernel)


def test_nothing_there(kernel):
    x = jnp.ones((2, 0, 1, 8), jnp.bfloat16)
    assert ar.attend(x[:, :0], x, x, implementation=kernel).shape == (2, 0, 1, 8)


def test_splash_takes_several_blocks_other_widths_and_any_scale(monkeypatch, draw):
    monkeypatch.setattr(splash, "_kernel", functools.partial(splash._kernel, interpret=True))
    monkeypatch.setattr(splash, "available", lambda: True)
    arrays = draw(batch=(1,), T=130, S=520, N=2, K=1, Dq=12, Dk=12, Dv=20).cast(jnp.bfloat16)
    lengths = ar.masks.lengths(np.array([300]))
    for want, got in zip(*both("splash", *arrays, scale=0.3, mask=lengths), strict=True):
        np.testing.assert_allclose(got, want, rtol=0.03, atol=0.03)


def test_they_work_within_shard_map(kernel, arrays):
    q, k, v = arrays()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("batch",))
    spec = jax.sharding.PartitionSpec("batch")
    attend = functools.partial(ar.attend, implementation=kernel, mask=ar.masks.causal())
    split = jax.jit(
        jax.shard_map(attend, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    )
    np.testing.assert_array_equal(split(q, k, v), attend(q, k, v))


@pytest.mark.parametrize("scale", [0.25, 7**-0.5, -3.7, 1e-3])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_scaling_the_queries_of_splash_rounds_nothing_that_matters(scale, dtype, arrays):
    q, k, _ = arrays(K=4)
    q = q.astype(dtype) * (1 if dtype == jnp.bfloat16 else 1.2345678)
    scaled, keys = splash._scaled(q, k, scale)
    assert scaled.dtype == keys.dtype == jnp.bfloat16
    want, got, size = (
        np.einsum("btnd,bsnd->bnts", *(np.asarray(x, np.float64) for x in pair))
        for pair in ((q, k), (scaled, keys), (np.abs(q), np.abs(k)))
    )
    assert (np.abs(got - scale * want) <= abs(scale) * size * 2.0**-15).all()
    if scale == 0.25 and dtype == jnp.bfloat16:
        assert scaled.shape == q.shape and (got == scale * want).all()


def test_one_is_chosen_where_nothing_is_rounded(
    kernel, draw_params, chosen_implementation, monkeypatch
):
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

    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert chosen(x) == chosen(x, mask=ar.masks.causal()) == kernel
    assert chosen(x[:, :64]) != kernel
    assert chosen(x.astype(jnp.float32)) != kernel
    assert chosen(x, with_lse=True) != kernel
    assert chosen(x, score="general", score_params=params) != kernel
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    assert (chosen(x) == kernel) is (kernel == "cudnn")


def test_where_it_is_available(monkeypatch):
    assert not cudnn.available() and not splash.available()

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
    assert splash.available()
    assert not machine("9.0", "cuda 13000") or not splash.available()


def test_the_call_is_to_cudnn(monkeypatch, arrays):
    seen = {}
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda *x, **o: seen.update(o, shape=x[0].shape) or x[0]
    )
    q, k, v = arrays(batch=(2, 3))
    out = fused.context("cudnn", q, k, v, 0.5, True, None)
    assert out.shape == q.shape
    want = dict(scale=0.5, is_causal=True, implementation="cudnn", shape=(6, 5, 4, 8))
    assert seen == want
