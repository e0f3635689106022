"""The blocked implementation: against the dense one in float64, and against float64 oracles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import scores
from attn_research.kernels import additive, count, layout
from attn_research.kernels.blocks import Sizes
from tests.attn_research.oracles import draw_params

T, S, N, K = 13, 11, 4, 2


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(layout, "block_sizes", lambda *shape: Sizes(1, 4, 3, 2))


def inputs(rng, batch=(2,), D=4, dtype=np.float64):
    shapes = (*batch, T, N, D), (*batch, S, K, D), (*batch, S, K, 3)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def outcome(implementation, q, k, v, traced, **static):
    """Context, lse, and all gradients of a loss on both."""

    @jax.jit
    def run(q, k, v, traced):
        def loss(q, k, v, traced):
            options = static | traced | {"implementation": implementation}
            context, lse = ar.attend_with_lse(q, k, v, **options)
            seen = jnp.where(lse == -jnp.inf, 0, lse)
            return jnp.sin(context).sum() + jnp.cos(seen).sum(), (context, lse)

        grad = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True, allow_int=True)
        return grad(q, k, v, traced)

    return run(q, k, v, traced)


def assert_same(q, k, v, traced=None, **static):
    with jax.enable_x64(True):
        traced = jax.tree.map(jnp.asarray, traced or {})
        got, want = (outcome(i, q, k, v, traced, **static) for i in ("blocked", "dense"))
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            if x.dtype != jax.dtypes.float0:
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10)


MASKS = {
    "none": lambda rng: None,
    "causal": lambda rng: ar.masks.causal(S - T),
    "window": lambda rng: ar.masks.window(2, 1),
    "lengths": lambda rng: ar.masks.lengths(np.array([S, 0])) & ar.masks.causal(),
    "segments": lambda rng: ar.masks.segments(np.arange(T) // 5, np.arange(S) // 5),
    "not": lambda rng: ~ar.masks.dilated(2) | ar.masks.prefix(3),
    "dense": lambda rng: jnp.asarray(rng.random((2, N, T, S)) < 0.4),
}


@pytest.mark.parametrize("score", ar.SCORES)
def test_any_score_with_gradients(score, small_blocks, rng):
    with jax.enable_x64(True):
        name = list(MASKS)[rng.integers(len(MASKS))]
        params = draw_params(score, rng, 4, 4, num_heads=N if rng.random() < 0.5 else None)
        print(name)
        assert_same(*inputs(rng), {"score_params": params}, score=score, mask=MASKS[name](rng))


@pytest.mark.parametrize("mask", MASKS)
def test_any_mask(mask, small_blocks, rng):
    with jax.enable_x64(True):
        assert_same(*inputs(rng), mask=MASKS[mask](rng))


@pytest.mark.parametrize("shape", [(T, S), (N, 1, S), (2, 1, T, 1), (1, N, T, S), (2, N, 1, 1), ()])
def test_bias_of_any_shape_and_its_gradient(shape, small_blocks, rng):  # case 7
    with jax.enable_x64(True):
        bias = rng.normal(size=shape)
        if bias.size > 4:
            bias.flat[1] = -np.inf
        assert_same(*inputs(rng), {"bias": bias}, mask=ar.masks.causal(2), softcap=3.0)


NORMALIZERS = [n for n in ar.NORMALIZERS if ar.normalizer(n).STREAMS not in (None, "softmax")]


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_other_normalizers(normalizer, small_blocks, rng):  # case 14: sinks are counted once
    options = {"sinks": {"logit": rng.normal(size=N)}, "sigmoid": {"bias": rng.normal(size=N)}}
    options["entmax"] = {"alpha": np.array([1.0, 1.2, 1.9, 2.0])}
    with jax.enable_x64(True):
        q, k, v = inputs(rng)
        for given in ({}, options[normalizer]) if normalizer in options else ({},):
            traced = {"normalizer": ar.normalizer(normalizer, **given)}
            assert_same(q, k, v, traced, mask=MASKS["lengths"](rng))


def test_scales_and_dropout(small_blocks, rng):
    with jax.enable_x64(True):
        q, k, v = inputs(rng)
        assert_same(q, k, v, {"scale": jnp.array(rng.normal(size=N))})
        assert_same(q, k, v, {"scale": jnp.array(-0.7), "softcap": jnp.array(2.0)})
        assert_same(q, k, v, {"scale": ar.log_n(jnp.array(0.4))}, mask=MASKS["lengths"](rng))
        key, mask = jax.random.key(rng.integers(99)), ar.masks.window(5, 5)
        assert_same(q, k, v, {"dropout_rate": 0.3}, dropout_key=key, mask=mask)


def test_a_function_with_parameters_of_each_head(small_blocks, rng):
    def score(params, q, k):
        logits = jax.nn.softplus(q[:, None] * params["a"] + k[None]).sum(-1)
        return jnp.where(q[:, :1] > k[:, 0], logits, -jnp.inf)

    with jax.enable_x64(True):
        params = ar.PerHead({"a": jnp.asarray(rng.normal(size=(N, 4)))})
        assert_same(*inputs(rng), {"score_params": params}, score=score)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 7), (7, 1), (5, 3)])
def test_lengths_that_are_not_whole_blocks(sizes, small_blocks, rng):  # case 12
    with jax.enable_x64(True):
        rows, cols = sizes
        q, k, v = (jnp.asarray(rng.normal(size=(1, 2, n, 2, 3))) for n in (rows, cols, cols))
        assert_same(q, k, v, mask=ar.masks.causal(1))
        assert_same(q, k[:, :1], v[:, 1:])  # batch axes that are broadcast
        empty = ar.attend(q[:0], k[:0], v[:0], implementation="blocked")
        assert empty.shape == (0, 2, rows, 2, 3)
        none, lse = ar.attend_with_lse(q, k[:, :, :0], v[:, :, :0], implementation="blocked")
        assert not none.any() and (lse == -jnp.inf).all()


def test_blocks_in_which_nothing_is_visible_are_not_computed():
    seen = []

    def score(params, q, k):
        jax.debug.callback(lambda: seen.append(1))
        return q @ k.T

    x = jnp.ones((512, 1, 64))
    run = functools.partial(ar.attend, x, x, x, score=score, implementation="blocked")

    def blocks(**options):
        seen.clear()
        jax.block_until_ready(run(**options))
        jax.effects_barrier()
        return len(seen)

    assert blocks() == 64
    assert blocks(mask=ar.masks.causal()) == 36
    assert blocks(mask=ar.masks.window(10, 0)) == 15
    assert blocks(mask=ar.masks.lengths(65)) == 16


def test_memory_grows_with_the_length_and_not_with_its_square():
    def temporaries(score, params, T):
        x = jax.ShapeDtypeStruct((1, T, 2, 32), jnp.float32)

        def loss(q, k, v, params):
            return ar.attend(q, k, v, score=score, score_params=params).sum()

        grad = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
        return grad.lower(x, x, x, params).compile().memory_analysis().temp_size_in_bytes

    functions = {"v . relu(q + k)": lambda p, q, k: jax.nn.relu(q[:, None] + k[None]) @ p}
    for score in ("dot", "additive", "gaussian", *functions):
        named = score in ar.SCORES
        params = ar.init_score(score, jax.random.key(0), 32, 32) if named else jnp.ones(32)
        short, long = (temporaries(functions.get(score, score), params, T) for T in (2048, 4096))
        assert long <= 2 * short + 2**14 and long < 0.3 * 2 * 4096**2 * 4, score


def test_queries_and_keys_are_not_copied(small_blocks):
    x = jax.ShapeDtypeStruct((2, 516, 8, 64), jnp.float32)  # whole blocks of 4 and of 3
    run = jax.jit(functools.partial(ar.attend, implementation="blocked"))
    memory = run.lower(x, x, x).compile().memory_analysis()
    # There is the context with heads first, the values divided by a power of two, and one head.
    assert memory.temp_size_in_bytes < 2.5 * memory.output_size_in_bytes


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("case", ["usual", "large logits", "lse of -1000"])
def test_as_accurate_as_dense(case, dtype, monkeypatch, rng):
    monkeypatch.setattr(layout, "block_sizes", lambda *shape: Sizes(1, 128, 256, 64))
    scale, shift = {"usual": (1, 0), "large logits": (1000, 0), "lse of -1000": (1, -1000)}[case]
    # 384: in a product as small as 300 x 64 x 300 XLA sums 64 terms in pieces, which halves dense's
    # error, and at this scale a few rows of two nearly equal logits make up the whole mean.
    q, k, v = (rng.normal(size=(384, 1, 64)) for _ in range(3))
    q, k, v = (np.asarray(jnp.asarray(x, dtype), np.float64) for x in (q, k, v))

    def run(implementation, *x):
        options = dict(scale=float(scale), bias=jnp.full((1, 1), float(shift), x[0].dtype))

        @jax.jit
        def run(*x):
            def loss(*x):
                out, lse = ar.attend_with_lse(*x, implementation=implementation, **options)
                return jnp.sin(out.astype(lse.dtype)).sum(), (out, lse)

            grads, outs = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*x)
            return *outs, *grads

        return [np.asarray(a, np.float64) for a in run(*x)]

    with jax.enable_x64(True):
        exact = run("dense", *map(jnp.asarray, (q, k, v)))
    narrow = [jnp.asarray(x, dtype) for x in (q, k, v)]
    # In a row of one weight 1 the gradient of its logit is the difference of two equal numbers of
    # up to about 8, computed in two ways.
    rounding = float(jnp.finfo(jnp.float32).eps) * np.array([1, 1, 20 * scale, 20 * scale, 1])
    results = zip(run("blocked", *narrow), run("dense", *narrow), exact, rounding, strict=True)
    for a, b, want, least in results:
        errors = [np.sqrt(np.square(x - want).mean()) for x in (a, b)]
        size = float(jnp.finfo(dtype).eps) * np.abs(want).max()
        assert errors[0] <= 2 * errors[1] + max(least, size), errors


@pytest.mark.parametrize("largest", [500.0, 1e300])
def test_additive_is_exact_where_exponentials_overflow(largest, rng):
    with jax.enable_x64(True):
        q = rng.normal(size=(6, 5)) * np.array([1, 10, 100, 400, 450, largest])[:, None]
        q[-1] = np.sign(q[-1]) * largest
        k = np.concatenate([-q + rng.normal(size=(6, 5)), rng.normal(size=(2, 5))])
        v, g = rng.normal(size=5), rng.normal(size=(6, 8))
        got, back = jax.vjp(additive.sum_tanh, q, k, v)
        tanh = np.tanh(q[:, None] + k[None])
        np.testing.assert_allclose(got, tanh @ v, atol=1e-12)
        slopes = g[..., None] * (1 - tanh**2)
        for x, want in zip(back(g), (slopes.sum(1) * v, slopes.sum(0) * v, None), strict=True):
            if want is not None:
                np.testing.assert_allclose(x, want, atol=1e-11)
        np.testing.assert_allclose(back(g)[2], np.einsum("rc,rce->e", g, tanh), atol=1e-11)
        small = q[:1], k[-2:], v
        np.testing.assert_allclose(additive.sum_tanh(*small), np.tanh(q[:1, None] + k[-2:]) @ v)


@pytest.mark.parametrize("normalizer", ar.NORMALIZERS)
def test_a_row_that_sees_nothing_has_no_gradient(normalizer, small_blocks, rng):
    if normalizer in ("hard", "top_k"):
        pytest.skip("needs whole rows")
    q, k, v = (x[0] for x in inputs(rng, dtype=np.float32))
    options = dict(mask=ar.masks.causal(-3), normalizer=normalizer, implementation="blocked")
    grads = jax.jit(jax.grad(lambda *x: ar.attend(*x, **options).sum(), argnums=(0, 1, 2)))(q, k, v)
    assert all(np.isfinite(x).all() for x in grads) and not grads[0][:3].any()


@pytest.mark.parametrize("dtypes", [(jnp.float32, jnp.float32), (jnp.float64, jnp.float32)])
def test_means_of_values_whose_sum_overflows(dtypes, small_blocks):
    with jax.enable_x64(True):
        query, value = jnp.zeros((5, 1, 2), dtypes[0]), jnp.full((5, 1, 1), 2e38, dtypes[1])
        got = ar.attend(query, query, value, implementation="blocked")
        np.testing.assert_allclose(got, value, rtol=1e-6)


def test_all_modes_of_differentiation(small_blocks, rng):
    with jax.enable_x64(True):
        q, k, v = (x[0] for x in inputs(rng))
        params = draw_params("additive", rng, 4, 4)

        def loss(implementation, q):
            options = dict(score="additive", score_params=params, mask=ar.masks.causal())
            return jnp.sin(ar.attend(q, k, v, implementation=implementation, **options)).sum()

        step = rng.normal(size=q.shape)

        def along(implementation, f):
            return jax.jvp(functools.partial(f, implementation), (q,), (step,))[1]

        hessian = jax.jit(lambda: along("blocked", lambda i, q: jax.grad(loss, argnums=1)(i, q)))()
        grad = jax.grad(functools.partial(loss, "dense"))
        np.testing.assert_allclose(hessian, jax.jvp(grad, (q,), (step,))[1], atol=1e-9)
        forward = along("blocked_any_mode", loss)
        np.testing.assert_allclose(forward, (grad(q) * step).sum(), rtol=1e-9)
        reverse = jax.grad(functools.partial(loss, "blocked_any_mode"))(q)
        np.testing.assert_allclose(reverse, grad(q), atol=1e-10)
        twice = jax.grad(lambda q: (jax.grad(loss, argnums=1)("blocked", q) * step).sum())(q)
        np.testing.assert_allclose(twice, hessian, atol=1e-9)


def test_vmap_of_grad_and_traced_lengths(small_blocks, rng):
    with jax.enable_x64(True):
        q, k, v = inputs(rng, batch=(3,))

        def loss(q, k, v, length, implementation):
            mask = ar.masks.lengths(length)
            return ar.attend(q, k, v, mask=mask, implementation=implementation).sum()

        lengths = jnp.array([S, 4, 0])
        got, want = (
            jax.jit(jax.vmap(jax.grad(functools.partial(loss, implementation=i))))(q, k, v, lengths)
            for i in ("blocked", "dense")
        )
        np.testing.assert_allclose(got, want, atol=1e-10)
        traces = []
        counted = jax.jit(lambda n: traces.append(1) or loss(q, k, v, n, "blocked"))
        for n in ([1, 2, 3], [S, 0, 5]):
            counted(jnp.array(n))
        assert len(traces) == 1


def test_visible_keys_are_counted_by_blocks(monkeypatch, rng):
    monkeypatch.setattr(count, "_ROWS", 4)
    monkeypatch.setattr(count, "_COLS", 3)
    array = rng.random((2, N, T, S)) < 0.5
    bias = jnp.where(rng.random((N, 1, S)) < 0.5, -jnp.inf, 0.0)
    got = count.visible_keys(ar.masks.dense(array), bias, T, S)
    np.testing.assert_array_equal(got, (array & np.isfinite(bias)).sum(-1))
    assert count.visible_keys(None, None, T, S) == S


@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15", "entmax"])
def test_forward_over_reverse_of_what_is_searched(normalizer, small_blocks, rng):
    with jax.enable_x64(True):
        q, k, v = (x[0, :5, :1] for x in inputs(rng))
        step = rng.normal(size=q.shape)

        def second(implementation):
            options = dict(normalizer=normalizer, implementation=implementation)
            grad = jax.grad(lambda q: jnp.sin(ar.attend(q, k, v, **options)).sum())
            return jax.jit(lambda q: jax.jvp(grad, (q,), (step,))[1])(q)

        np.testing.assert_allclose(second("blocked"), second("dense"), atol=1e-8)


REFUSED = {
    "normalizer": dict(normalizer="top_k"),
    "talking": dict(talking_heads=ar.TalkingHeads(before=np.eye(2))),
    "count": dict(scale="log_n", score=lambda p, q, k: q @ k.T),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_refused_by_name_and_done_without(name):
    x = jnp.ones((3, 2, 4))
    with pytest.raises(ValueError, match="implementation='blocked' cannot do .*: use 'dense'"):
        ar.attend(x, x, x, implementation="blocked", **REFUSED[name])
    assert ar.attend(x, x, x, **REFUSED[name]).shape == x.shape


def test_large_inputs_get_it_by_themselves():
    def temporaries(implementation):
        x = jax.ShapeDtypeStruct((2048, 1, 8), jnp.float32)
        run = jax.jit(functools.partial(ar.attend, implementation=implementation))
        return run.lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(None) == temporaries("blocked") < temporaries("dense") / 3
    assert set(scores.SCORES) == set(ar.SCORES)
