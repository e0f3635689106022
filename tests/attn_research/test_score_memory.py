"""Scores that read the weights of earlier decoder steps: location_aware and coverage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research.scores.coverage import coverage_loss
from tests.attn_research.oracles import both, oracle, single, weights_of

pytestmark = pytest.mark.usefixtures("quick_compile")

WITH_MEMORY = ("coverage", "location_aware")


def test_location_aware_by_hand():
    # a = (1, 0, 2), F = (10, 1, 100) in width 3: f_0 = 1 a_0 + 100 a_1 = 1,
    # f_1 = 10 a_0 + 1 a_1 + 100 a_2 = 210, f_2 = 10 a_1 + 1 a_2 = 2; logits 1e4 tanh(1e-4 f) ~ f
    params = {"query": jnp.zeros((1, 1)), "key": jnp.zeros((1, 1)), "bias": jnp.zeros(1)}
    params |= {"filters": jnp.array([[10.0], [1.0], [100.0]]), "v": jnp.array([1e4])}
    params |= {"location": jnp.array([[1e-4]])}
    state = jnp.array([[1.0, 0.0, 2.0]])
    options = dict(score="location_aware", score_state=state, scale=0.01)
    weights = weights_of(jnp.ones((1, 1)), jnp.ones((3, 1)), params, **options)
    want = np.exp([0.01, 2.1, 0.02])
    np.testing.assert_allclose(weights[0], want / want.sum(), rtol=1e-3)


def test_coverage_loss_by_hand():
    weights = jnp.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])
    state = jnp.array([[0.0, 0.25, 3.0], [1.0, 0.05, 0.6]])
    np.testing.assert_allclose(coverage_loss(weights, state), [0.25, 0.1 + 0.05 + 0.6], rtol=1e-6)


@pytest.mark.parametrize("num_heads", [None, 4])
@pytest.mark.parametrize("score", WITH_MEMORY)
def test_state_mask_grouped_heads(score, num_heads, draw, draw_params, rng):
    drawn, params = draw(N=4, K=2, Dk=6), draw_params(score, 4, 6, num_heads)
    state, mask = rng.random((2, 4, 5)), rng.random((2, 4, 3, 5)) < 0.6
    options = dict(score=score, scale=0.8, mask=mask)
    want = oracle(drawn, params, score_state=state, **options)
    assert np.abs(want[1] - oracle(drawn, params, **options)[1]).max() > 1e-3
    got = both(drawn.cast(jnp.float32), single(params), score_state=single(state), **options)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    with jax.enable_x64(True):
        got = both(drawn, params, score_state=state, **options)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == jnp.float64
            np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("score", WITH_MEMORY)
def test_a_batch_padded_to_one_length_equals_each_alone(score, draw, draw_params, rng):
    """The filters meet zeros at both ends, padded or not."""
    drawn, params = draw(batch=(2,), S=6).cast(jnp.float32), single(draw_params(score, 4, 4))
    lengths = [4, 6]
    seen = np.arange(6) < np.array(lengths)[:, None]
    state = single(rng.random((2, 2, 6)) * seen[:, None])
    mask = ar.masks.lengths(jnp.array(lengths))
    got = both(drawn, params, score=score, score_state=state, mask=mask)[0]
    for b, n in enumerate(lengths):
        query, key, value = (x[b : b + 1] for x in drawn)
        own = state[b : b + 1, :, :n]
        want = both((query, key[:, :n], value[:, :n]), params, score=score, score_state=own)[0]
        np.testing.assert_allclose(got[b : b + 1], want, atol=1e-6)


@pytest.mark.parametrize("score", WITH_MEMORY)
def test_no_state_is_a_state_of_zeros(score, draw, draw_params):
    drawn, params = draw().cast(jnp.float32), single(draw_params(score, 4, 4))
    none, zeros = (
        both(drawn, params, score=score, score_state=s) for s in (None, jnp.zeros((2, 2, 5)))
    )
    np.testing.assert_allclose(none[0], zeros[0], atol=1e-6)


@pytest.mark.parametrize("score", WITH_MEMORY)
def test_no_finite_state_gives_nan(score, draw, draw_params, rng):
    drawn, params = draw().cast(jnp.float32), single(draw_params(score, 4, 4, 2))
    params = jax.tree.map(lambda x: 1e3 * x, params)  # so that products overflow
    signs = jnp.sign(jnp.asarray(rng.normal(size=(2, 2, 5)), jnp.float32))

    @jax.jit
    @jax.value_and_grad
    def loss(inputs):
        params, state = inputs
        options = dict(score=score, score_params=params, score_state=state)
        return jnp.sin(ar.attend(*drawn, **options)).sum()

    for size in (1e-38, 1e15, 3.4e38):
        value, grads = loss((params, signs * size))
        assert np.isfinite(value) and not any(np.isnan(g).any() for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("score", WITH_MEMORY)
def test_a_decoder_feeds_its_weights_back(score, draw, draw_params, rng):
    """By lax.scan: the sum over *steps* for each key (case 24), gradients through the state too."""
    query, key, value = draw(batch=(2,), T=4, N=2)
    extra = {"width": 3, "filters": 2} if score == "location_aware" else {}
    params = draw_params(score, 4, 4, 2, **extra)
    visible = np.array([[True] * 5, [True] * 3 + [False] * 2])[:, None, None]
    pull = rng.normal(size=(2, 4, 2, 3))

    def decode(params):
        options = dict(score=score, score_params=ar.PerHead(params), mask=visible)

        def step(state, q):
            given = dict(score_state=state, **options)
            weights = ar.attention_weights(q[:, None], key, **given)[..., 0, :]
            context = ar.attend(q[:, None], key, value, **given)[:, 0]
            return (state + weights if score == "coverage" else weights), (context, weights)

        start = jnp.zeros((2, 2, 5))
        state, (contexts, weights) = jax.lax.scan(step, start, jnp.moveaxis(query, 1, 0))
        return jnp.moveaxis(contexts, 0, 1), state, weights

    def plain(params):
        state, contexts = np.zeros((2, 2, 5)), []
        for t in range(4):
            now = [query[:, t : t + 1], key, value]
            context, weights = oracle(
                now, ar.PerHead(params), score=score, score_state=state, mask=visible
            )
            state = state + weights[..., 0, :] if score == "coverage" else weights[..., 0, :]
            contexts.append(context[:, 0])
        return np.stack(contexts, 1), state

    want, want_state = plain(params.params)
    step = jax.tree.map(lambda x: rng.normal(size=x.shape), params.params)
    ends = [
        (plain(jax.tree.map(lambda x, d, h=h: x + h * d, params.params, step))[0] * pull).sum()
        for h in (1e-5, -1e-5)
    ]
    with jax.enable_x64(True):
        got, state, weights = jax.device_get(jax.jit(decode)(params.params))
        gradient = jax.jit(jax.grad(lambda p: (decode(p)[0] * pull).sum()))
        grads = jax.device_get(gradient(params.params))
    np.testing.assert_allclose(got, want, atol=1e-12)
    np.testing.assert_allclose(state, want_state, atol=1e-12)
    if score == "coverage":
        np.testing.assert_allclose(state, weights.sum(0), atol=1e-12)
        np.testing.assert_allclose(state.sum(-1), 4, atol=1e-12)  # one for each step
        assert not state[1, :, 3:].any()
    along = sum((g * d).sum() for g, d in zip(*map(jax.tree.leaves, (grads, step)), strict=True))
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-9)
    assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(grads)), "through the state alone"


@pytest.mark.parametrize("score", WITH_MEMORY)
def test_prepared_keys_with_a_state(score, draw, draw_params, rng):
    query, key, value = draw(N=4, K=2).cast(jnp.float32)
    options = dict(score=score, score_params=single(draw_params(score, 4, 4, 4)))
    state = single(rng.random((2, 4, 5)))

    @jax.jit
    def run(q, k, v, state):
        keys = ar.transform_keys(k, **options)
        return [ar.attend(q, x, v, score_state=state, **options) for x in (k, keys)]

    np.testing.assert_allclose(*run(query, key, value, state), atol=1e-6)


def test_one_head_takes_its_state_from_its_weights(draw, draw_params):
    query, key, _ = (x[:, 0] for x in draw(batch=(), T=1, N=1).cast(jnp.float32))
    params = single(draw_params("coverage", 4, 4))
    state = weights_of(query, key, params, score="coverage")
    assert state.shape == (1, 5)
    one = weights_of(query, key, params, score="coverage", score_state=state)
    many = weights_of(query[:, None], key[:, None], params, score="coverage", score_state=state)
    np.testing.assert_allclose(one, many[0], atol=1e-6)


def test_states_of_the_wrong_kind(draw_params):
    x = jnp.ones((2, 5, 3, 4))
    wrong = [
        ("dot", jnp.ones(()), ValueError, "score_state is not for score 'dot', which has no state"),
        ("local", 0.5, TypeError, "score_state of score 'local' must be integer: got float32"),
        ("local", jnp.ones(3, int), ValueError, r"must be \[\.\.\.\] = \[2\]: got \[3\]"),
        ("coverage", jnp.ones((2, 3, 5), int), TypeError, "must be floating: got int32"),
        ("coverage", jnp.ones((2, 3, 1)), ValueError, r"\[\.\.\., N, S\] = \[2, 3, 5\]: got"),
        ("location_aware", jnp.ones((2, 5)), ValueError, r"= \[2, 3, 5\]: got \[2, 5\]"),
    ]
    for score, state, error, message in wrong:
        options = dict(score=score, score_params=draw_params(score, 4, 4), score_state=state)
        with pytest.raises(error, match=message) as caught:
            ar.attend(x, x, x, **options)
        assert "\n" not in str(caught.value)


def test_what_a_weight_of_1_adds_has_variance_1_at_first(rng):
    keys = jax.random.split(jax.random.key(int(rng.integers(1 << 30))), 1000)
    draws = jax.vmap(lambda key: ar.init_score("coverage", key, 16, 16))(keys)
    assert np.var(draws["coverage"]) == pytest.approx(1, rel=0.1)
    draws = jax.vmap(lambda key: ar.init_score("location_aware", key, 16, 16))(keys)
    assert draws["filters"].shape == (1000, 31, 10)
    added = np.einsum("bmr,bre->bme", draws["filters"], draws["location"])  # for a one-hot state
    assert np.var(added) == pytest.approx(1, rel=0.1)
