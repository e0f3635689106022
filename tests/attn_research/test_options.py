"""Scales a head and log-n, talking heads, dropout: against the oracle and plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import dropout, reference


def softmax(x):
    exps = np.exp(x - x.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


@pytest.mark.parametrize("score", ["dot", "general"])
def test_a_scale_for_each_head(score, draw, draw_params, rng):
    drawn, params, scale = draw(N=4, K=2), draw_params(score, 4, 4), rng.normal(size=4)
    options = dict(score=score, score_params=params)
    want = reference.attention(*drawn, scale=scale, **options)[0]
    got = jax.jit(lambda s: ar.attend(*drawn.cast(jnp.float32), scale=s, **options))(scale)
    np.testing.assert_allclose(got, want, atol=3e-6)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_log_n_counts_the_visible_keys_of_each_row(masked, per_head, draw, rng):
    drawn, s = draw(T=4), rng.uniform(0.2, 2.0, size=2 if per_head else ())
    mask = ar.masks.causal(1) & ar.masks.lengths(np.array([5, 3])) if masked else None
    array = None if mask is None else np.broadcast_to(mask.as_array(4, 5), (2, 2, 4, 5))
    context, weights, lse = reference.attention(*drawn, scale=("log_n", s), mask=array)

    @jax.jit
    def run(s):
        q, k, v = drawn.cast(jnp.float32)
        options = dict(scale=ar.log_n(s), mask=mask)
        return *ar.attend_with_lse(q, k, v, **options), ar.attention_weights(q, k, **options)

    got, got_lse, got_weights = run(s)
    np.testing.assert_allclose(got, context, atol=3e-6)
    np.testing.assert_allclose(got_lse, lse, atol=5e-6)
    np.testing.assert_allclose(got_weights, weights, atol=3e-6)


def test_log_n_by_hand_and_by_name(rng):
    # n = 4 keys, logits z / sqrt(d) = (ln 2, 0, 0, 0) with d = 1; ln 4 = 2 ln 2: 2^(2 ln 2) : 1
    query, key = jnp.ones((1, 1)), jnp.log(jnp.array([[2.0], [1], [1], [1]]))
    top = 2 ** (2 * np.log(2))
    want = np.array([[top, 1, 1, 1]]) / (top + 3)
    np.testing.assert_allclose(ar.attention_weights(query, key, scale="log_n"), want, rtol=1e-6)
    one = ar.attention_weights(query, key[:1], scale="log_n")
    np.testing.assert_array_equal(one, [[1.0]])


def test_the_gradient_of_a_learned_log_n(draw):
    with jax.enable_x64(True):
        q, k, v = draw()

        def loss(s):
            return jnp.sin(ar.attend(q, k, v, scale=ar.log_n(s), mask=ar.masks.causal(1))).sum()

        s = np.array([0.4, 1.3])
        grad = jax.grad(loss)(s)
        for n in range(2):
            step = 1e-6 * np.eye(2)[n]
            ends = loss(s + step), loss(s - step)
            assert float(grad[n]) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, abs=1e-7)


def test_talking_heads(draw, rng):
    drawn = draw(N=4, K=2)
    query, key, value = drawn
    before, after = rng.normal(size=(2, 4, 4))
    bias = rng.normal(size=(4, 3, 5))
    visible = rng.random((2, 1, 3, 5)) < 0.6
    visible[0, 0, 1] = False
    many = [np.repeat(x, 2, -2) for x in (key, value)]
    logits = np.einsum("btnd,bsnd->bnts", query, many[0]) / 2 + bias
    logits = np.where(visible, np.einsum("mn,bmts->bnts", before, logits), -1e300)
    weights = np.where(visible, softmax(logits), 0)
    weights = np.einsum("mn,bmts->bnts", after, weights)
    want = np.einsum("bnts,bsnd->btnd", weights, many[1])
    heads = ar.TalkingHeads(before=before, after=after)

    @jax.jit
    def run(q, k, v, heads):
        options = dict(bias=bias, mask=visible, talking_heads=heads)
        return ar.attend(q, k, v, **options), ar.attention_weights(q, k, **options)

    got, got_weights = run(*drawn.cast(jnp.float32), heads)
    np.testing.assert_allclose(got_weights, weights, atol=2e-5)
    np.testing.assert_allclose(got, want, atol=2e-5)
    assert not got[0, 1].any()
    only = ar.attention_weights(
        *drawn.cast(jnp.float32)[:2], talking_heads=ar.TalkingHeads(after=np.eye(4))
    )
    plain = ar.attention_weights(*drawn.cast(jnp.float32)[:2])
    np.testing.assert_allclose(only, plain, atol=1e-6)


def test_talking_heads_see_what_all_heads_see(draw, rng):
    query, key, value = draw(batch=(1,)).cast(jnp.float32)
    bias = jnp.zeros((2, 3, 5)).at[0, :, 4].set(-jnp.inf)
    heads = ar.TalkingHeads(before=rng.normal(size=(2, 2)), after=rng.normal(size=(2, 2)))

    def run(k, v, bias=None):
        return ar.attend(query, k, v, bias=bias, talking_heads=heads)

    spoiled = [x.at[:, 4].set(jnp.nan) for x in (key, value)]
    want = run(key[:, :4], value[:, :4])
    np.testing.assert_allclose(run(*spoiled, bias=bias), want, atol=2e-6)
    grads = jax.grad(lambda *x: run(*x, bias=bias).sum(), argnums=(0, 1))(*spoiled)
    assert all(np.isfinite(g).all() for g in grads)


def test_dropout_is_the_weights_times_zero_or_more(draw):
    drawn = draw(batch=(3,), T=7, S=11).cast(jnp.float32)
    key, rate = jax.random.key(3), 0.3
    options = dict(dropout_rate=rate, dropout_key=key, mask=ar.masks.causal(4))
    weights = np.asarray(ar.attention_weights(*drawn[:2], **options))
    plain = np.asarray(ar.attention_weights(*drawn[:2], mask=ar.masks.causal(4)))
    kept = weights != 0
    np.testing.assert_allclose(weights, np.where(kept, plain / 0.7, 0), rtol=1e-6)
    want = np.einsum("bnts,bsnd->btnd", weights, drawn[2])
    np.testing.assert_allclose(ar.attend(*drawn, **options), want, atol=2e-6)
    again = jax.jit(
        lambda rate: ar.attention_weights(*drawn[:2], **options | {"dropout_rate": rate})
    )
    np.testing.assert_allclose(again(rate), weights, rtol=1e-6)  # traced
    np.testing.assert_array_equal(again(0.0) != 0, plain != 0)
    none = ar.attend(*drawn, dropout_rate=0.0, dropout_key=key)
    np.testing.assert_array_equal(none, ar.attend(*drawn))
    legacy = ar.attend(*drawn, dropout_rate=0.5, dropout_key=jax.random.PRNGKey(0))
    assert np.isfinite(legacy).all()


def test_dropout_drops_at_its_rate_and_independently(seed):
    key = jax.random.key(seed)
    kept = np.asarray(dropout.drop(jnp.ones((4, 200, 250)), 0.2, key)) > 0
    n = kept.size
    assert abs(kept.mean() - 0.8) < 5 * (0.16 / n) ** 0.5
    centred = kept - 0.8
    pairs = [
        (centred[:, 1:], centred[:, :-1]),  # rows
        (centred[..., 1:], centred[..., :-1]),  # columns
        (centred[:2], centred[2:]),  # heads
        (centred[:, 1:, 1:], centred[:, :-1, :-1]),
    ]
    for left, right in pairs:
        assert abs((left * right).mean()) < 5 * 0.16 / left.size**0.5
    corners = centred[:, 1:, 1:] * centred[:, :-1, 1:] * centred[:, 1:, :-1] * centred[:, :-1, :-1]
    assert abs(corners.mean()) < 5 * 0.16**2 / corners.size**0.5
    other = np.asarray(dropout.drop(jnp.ones((4, 200, 250)), 0.2, jax.random.key(seed + 1))) > 0
    assert abs((centred * (other - 0.8)).mean()) < 5 * 0.16 / n**0.5


def test_dropped_weights_do_not_depend_on_the_block(seed):
    seeds = dropout.seeds(jax.random.key(seed), (2, 3))
    whole = dropout.keep(seeds, 0.4, jnp.arange(10), jnp.arange(12))
    block = dropout.keep(seeds, 0.4, jnp.arange(4, 9), jnp.arange(7, 12))
    np.testing.assert_array_equal(block, whole[..., 4:9, 7:12])


def test_gradient_through_dropout(draw):
    with jax.enable_x64(True):
        q, k, v = draw()

        def loss(q):
            return jnp.sin(
                ar.attend(q, k, v, dropout_rate=0.4, dropout_key=jax.random.key(1))
            ).sum()

        step = np.random.default_rng(0).normal(size=q.shape)
        along = (jax.grad(loss)(q) * step).sum()
        ends = loss(q + 1e-6 * step), loss(q - 1e-6 * step)
        assert float(along) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-8)


def test_log_n_counts_what_all_of_the_mixed_heads_see(draw, rng):
    query, key, value = draw(batch=()).cast(jnp.float32)
    visible = np.ones((2, 3, 5), bool)
    visible[0, :, 3:] = visible[1, 1, 0] = False
    options = dict(scale="log_n", talking_heads=ar.TalkingHeads(before=rng.normal(size=(2, 2))))
    for given in (dict(mask=visible), dict(bias=np.where(visible, 0, -np.inf))):
        got = ar.attend(query, key, value, **given, **options)
        want = ar.attend(query, key, value, mask=visible.all(0), **options)
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("side", ["before", "after"])
def test_mixed_heads_saturate(side, draw):
    query, key, value = (1e19 * x for x in draw().cast(jnp.float32))
    heads = ar.TalkingHeads(**{side: 1e30 * jnp.array([[1.0, -1.0], [2.0, -2.0]])})

    def run(*x):
        return ar.attend(*x, talking_heads=heads, mask=ar.masks.causal())

    assert np.isfinite(run(query, key, value)).all()
    grads = jax.grad(lambda *x: run(*x).sum(), argnums=(0, 1))(query, key, value)
    assert not any(np.isnan(g).any() for g in grads)
    lse = ar.attend_with_lse(query, key, value, talking_heads=heads)[1]
    assert np.isfinite(lse).all()  # a logit below all numbers is not masked
