"""Scores that depend on positions: what is theirs alone. What they share with all scores is in
test_attend, test_numerics, test_gradients, test_transformed and test_modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from tests.attn_research.oracles import both, oracle, single, weights_of

pytestmark = pytest.mark.usefixtures("quick_compile")

WITH_START = (("local", {"predict": False}), ("synthesizer_random", {"max_length": 9}))


def narrow(params):
    """With windows that end within a few keys, where there are windows: D is about 1.5."""
    leaves = params.params if isinstance(params, ar.PerHead) else params
    if "width" in leaves:
        leaves["width"] = leaves["width"] - 8.5
    return params


def test_location_by_hand():
    # W = [[1, 0, 9], [0, 2, 9]]: logits of q = (1, 1) are (1, 2), the third column is not needed
    params = {"kernel": jnp.array([[1.0, 0.0, 9.0], [0.0, 2.0, 9.0]])}
    weights = weights_of(jnp.ones((1, 2)), jnp.full((2, 5), 7.0), params, score="location")
    np.testing.assert_allclose(weights, [[1 / (1 + np.e), np.e / (1 + np.e)]], rtol=1e-6)


def test_synthesizer_dense_by_hand():
    # relu(q W_1 + b_1) = relu(2 - 1, -2 + 1) = (1, 0); times W_2 = (1, 3), plus b_2 = (1, 0)
    params = {"in_kernel": jnp.array([[1.0, -1.0]]), "in_bias": jnp.array([-1.0, 1.0])}
    params |= {"out_kernel": jnp.array([[1.0, 3.0], [50.0, 50.0]]), "out_bias": jnp.eye(2)[0]}
    weights = weights_of(jnp.array([[2.0]]), jnp.ones((2, 3)), params, score="synthesizer_dense")
    np.testing.assert_allclose(weights, [[1 / (1 + np.e), np.e / (1 + np.e)]], rtol=1e-6)


def test_synthesizer_dense_with_huge_parameters():
    params = {"in_kernel": jnp.array([[2.0]]), "in_bias": jnp.array([3e38])}
    params |= {"out_kernel": jnp.array([[1.0, -1.0]]), "out_bias": jnp.array([3e38, -3e38])}
    weights = weights_of(jnp.array([[3e38]]), jnp.ones((2, 3)), params, score="synthesizer_dense")
    np.testing.assert_array_equal(weights, [[1, 0]])


def test_local_m_sees_its_window_and_nothing_far_behind_the_keys():
    params = {"kernel": jnp.zeros((1, 1)), "width": jnp.array(-10.0)}  # D = 1 + |9 - 10| = 2
    weights = weights_of(jnp.ones((9, 1)), jnp.ones((6, 1)), params, score="local")
    want = np.zeros((9, 6))
    want[0, :3], want[1, :4], want[2, :5], want[3, 1:] = 1 / 3, 1 / 4, 1 / 5, 1 / 5
    want[4, 2:], want[5, 3:], want[6, 4:], want[7, 5:] = 1 / 4, 1 / 3, 1 / 2, 1  # p = 8: none
    np.testing.assert_allclose(weights, want, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_edge_of_the_window_belongs_to_it(dtype):
    """|j - p| <= D, exactly, where 16 bits hold no odd positions."""
    params = ar.init_score("local", jax.random.key(0), 4, 4, window=10, predict=False)
    query, key = jnp.ones((1, 4), dtype), jnp.ones((400, 4), dtype)
    weights = weights_of(query, key, params, score="local", score_state=jnp.int32(301))
    np.testing.assert_array_equal(np.flatnonzero(weights[0]), np.arange(291, 312))


def test_local_p_is_the_paper_divided_by_its_sum(draw, draw_params):
    drawn = draw(batch=(), T=4, S=7, N=1)
    params = draw_params("local", 4, 4) | {"width": np.array(2.3 - 10)}
    query, key = drawn.query[:, 0], drawn.key[:, 0]
    p = 7 / (1 + np.exp(-np.tanh(query @ params["predict"]) @ params["v"]))  # S sigmoid(...)
    away, window = np.arange(7) - p[:, None], 2.3
    align = np.where(abs(away) <= window, np.exp(query @ params["kernel"] @ key.T), 0)
    align /= align.sum(-1, keepdims=True)  # the softmax over the window: equation 7
    paper = align * np.exp(-(away**2) / (2 * (window / 2) ** 2))  # equation 10
    got = both(drawn.cast(jnp.float32), single(params), score="local")[1][0]
    np.testing.assert_allclose(got, paper / paper.sum(-1, keepdims=True), atol=2e-6)
    assert (paper.sum(-1) < 0.999).all(), "the paper's rows do not sum to 1"


@pytest.mark.parametrize("sign", [-1, 1])
def test_local_p_sees_a_key_even_from_the_ends(sign):
    """p = 0 or n, with the narrowest window that there is; a window of any width is legal."""
    params = {"kernel": jnp.zeros((1, 1)), "width": jnp.array(-9.0)}  # D = 1
    params |= {"predict": jnp.full((1, 1), sign * 9.0), "v": jnp.full(1, 1e3)}
    x = jnp.ones((1, 1)), jnp.ones((5, 1))
    weights = weights_of(*x, params, score="local")
    at = {-1: [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2)), 0, 0, 0], 1: [0, 0, 0, 0, 1]}
    np.testing.assert_allclose(weights, [at[sign]], rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda p: weights_of(*x, p, score="local")[0, 0]))
    for width in (-3e38, 3e38):
        grads = gradient(params | {"width": jnp.array(width)})
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("num_heads", [None, 2])
@pytest.mark.parametrize(("score", "extra"), WITH_START)
def test_a_start_for_each_batch_element(score, extra, num_heads, draw, draw_params):
    drawn, params = draw(), narrow(draw_params(score, 4, 4, num_heads, **extra))
    starts = np.array([0, 4])
    got = both(drawn.cast(jnp.float32), single(params), score=score, score_state=starts)
    for b in range(2):
        alone = [x[b : b + 1] for x in drawn]
        want = oracle(alone, params, score=score, score_state=int(starts[b]))
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x[b : b + 1], y, atol=2e-6)


@pytest.mark.parametrize(("score", "extra"), WITH_START)
def test_step_by_step_equals_at_once(score, extra, draw, draw_params):
    drawn = draw(T=6).cast(jnp.float32)
    options = dict(score=score, score_params=single(narrow(draw_params(score, 4, 4, **extra))))

    @jax.jit
    def steps(q, k, v):
        keys = ar.transform_keys(k, **options)

        def step(start, q):
            return start + 1, ar.attend(q[:, None], keys, v, score_state=start, **options)[:, 0]

        return jnp.moveaxis(jax.lax.scan(step, 0, jnp.moveaxis(q, 1, 0))[1], 0, 1)

    at_once = jax.jit(lambda q, k, v: ar.attend(q, k, v, **options))(*drawn)
    np.testing.assert_allclose(steps(*drawn), at_once, atol=1e-6)


def test_what_is_outside_of_all_windows_has_no_influence(draw, draw_params):
    query, key, value = draw(batch=(1,), T=2, S=6).cast(jnp.float32)
    params = single(draw_params("local", 4, 4, 2, predict=False))
    params.params["width"] = jnp.array([-9.0, -8.5])  # D = 1 and 1.5: nobody sees key 3 and beyond
    options = dict(score="local", score_params=params)

    @jax.jit
    def run(q, k, v):
        def loss(q, k, v):
            context = ar.attend(q, k, v, **options)
            return jnp.sin(context).sum(), context

        return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)

    (_, want), want_grads = run(query, key, value)
    (_, got), grads = run(query, key.at[:, 3:].set(jnp.nan), value.at[:, 4:].set(jnp.inf))
    np.testing.assert_array_equal(got, want)
    for a, b in zip(grads, want_grads, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    (_, got), _ = run(query, key.at[:, 2].set(jnp.nan), value)  # position 1 sees it, 0 does not
    np.testing.assert_array_equal(got[:, 0], want[:, 0])
    assert np.isnan(got[:, 1]).all()


def test_gradient_through_the_predicted_position(draw, draw_params, rng):
    """Against finite differences, no key being within 0.001 of the edge of a window: a jump."""
    window = 2.6
    while True:
        drawn, params = draw(T=2, S=6, N=1), draw_params("local", 4, 4)
        params["width"] = np.array(window - 10)
        p = 6 / (1 + np.exp(-np.tanh(drawn.query @ params["predict"]) @ params["v"]))
        away = abs(np.arange(6) - p[..., None])
        if (abs(away - window) > 1e-3).all() and (away > window).any():
            break
    pull, step = (
        rng.normal(size=(2, 2, 1, 3)),
        jax.tree.map(lambda x: rng.normal(size=x.shape), params),
    )
    ends = []
    for h in (1e-5, -1e-5):
        moved = jax.tree.map(lambda x, d, h=h: x + h * d, params, step)
        ends.append((oracle(drawn, moved, score="local")[0] * pull).sum())

    @jax.jit
    @jax.grad
    def gradient(p):
        return (ar.attend(*drawn, score="local", score_params=p) * pull).sum()

    with jax.enable_x64(True):
        grads = jax.device_get(gradient(params))
    along = sum((g * d).sum() for g, d in zip(*map(jax.tree.leaves, (grads, step)), strict=True))
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-9)
    assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(grads))


def test_batch_axes_of_the_keys_alone(draw, draw_params):
    """Scores that do not read the keys still answer for each of their batch elements."""
    drawn = draw(batch=(2, 3)).cast(jnp.float32)
    query = drawn[0][:1, :1]
    for score in ("location", "synthesizer_dense", "synthesizer_random"):
        params = single(draw_params(score, 4, 4, max_length=5))
        weights = weights_of(query, drawn[1], params, score=score)
        assert weights.shape == (2, 3, 2, 3, 5)
        np.testing.assert_array_equal(weights, jnp.broadcast_to(weights[:1, :1], weights.shape))


@pytest.mark.parametrize("score", ["location", "synthesizer_dense", "synthesizer_random"])
def test_longer_than_the_parameters(score):
    params = ar.init_score(score, jax.random.key(0), 4, 4, max_length=5)
    x = jnp.ones((6, 4))
    match = (
        rf"'{score}' are for 5 positions, (key|query) needs 6: .*'{score}', \.\.\., max_length=6"
    )
    with pytest.raises(ValueError, match=match):
        jax.eval_shape(lambda: ar.attend(x, x, x, score=score, score_params=params))
    by_default = jax.eval_shape(lambda: ar.init_score(score, jax.random.key(0), 4, 4))
    assert max(max(leaf.shape) for leaf in by_default.values()) == 512


def test_positions_without_parameters():
    params = ar.init_score("synthesizer_random", jax.random.key(0), 4, 4, max_length=5)
    options = dict(score="synthesizer_random", score_params=params)
    x = jnp.ones((2, 4))
    with pytest.raises(ValueError, match="5 positions, query needs 6"):
        ar.attend(x, x, x, score_state=4, **options)
    with pytest.raises(ValueError, match="a position, at least 0: got -1"):
        ar.attend(x, x, x, score_state=-1, **options)
    traced = jax.jit(lambda start: ar.attend(x, x, x, score_state=start, **options))
    np.testing.assert_array_equal(np.isnan(traced(4)).all(-1), [False, True])
    np.testing.assert_array_equal(np.isnan(traced(-1)).all(-1), [True, False])


@pytest.mark.parametrize("score", ["local", "location", "synthesizer_dense"])
def test_a_batch_padded_to_one_length_equals_each_alone(score, draw, draw_params):
    """p of local-p counts the keys that are there."""
    drawn, params = draw(batch=(2,), S=6).cast(jnp.float32), single(draw_params(score, 4, 4))
    if score == "local":
        params["width"] = jnp.float32(-7.5)  # D = 2.5
    lengths = [4, 6]
    got = both(drawn, params, score=score, mask=ar.masks.lengths(jnp.array(lengths)))[0]
    for b, n in enumerate(lengths):
        query, key, value = (x[b : b + 1] for x in drawn)
        want = both((query, key[:, :n], value[:, :n]), params, score=score)[0]
        np.testing.assert_allclose(got[b : b + 1], want, atol=1e-6)


def test_a_window_below_1():
    with pytest.raises(ValueError, match="window must be at least 1: got 0.5"):
        ar.init_score("local", jax.random.key(0), 4, 4, window=0.5)


@pytest.mark.parametrize("score", ["location", "synthesizer_dense"])
def test_initial_logits_of_unit_queries_have_variance_1(score, rng):
    keys = jax.random.split(jax.random.key(int(rng.integers(1 << 30))), 2000)
    draws = jax.vmap(lambda key: ar.init_score(score, key, 16, 16, max_length=20))(keys)
    hidden, name = rng.normal(size=(2000, 16)), "kernel"
    if score == "synthesizer_dense":
        hidden = np.maximum(np.einsum("bq,bqh->bh", hidden, draws["in_kernel"]), 0)
        name = "out_kernel"
    logits = np.einsum("bh,bhl->bl", hidden, draws[name])
    assert np.var(logits) == pytest.approx(1, rel=0.1)


def test_local_p_starts_near_the_middle(rng):
    keys = jax.random.split(jax.random.key(int(rng.integers(1 << 30))), 2000)
    draws = jax.vmap(lambda key: ar.init_score("local", key, 16, 16))(keys)
    hidden = np.tanh(np.einsum("bq,bqp->bp", rng.normal(size=(2000, 16)), draws["predict"]))
    assert np.std(np.einsum("bp,bp->b", hidden, draws["v"])) < 0.75  # p / n: 0.32 to 0.68
    np.testing.assert_array_equal(draws["width"], 0)
