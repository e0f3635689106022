"""The numerics policy: what is not seen has no influence, and finite inputs never give NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import reference


def gradients(query, key, value, rows=None, **options):
    """(context, lse, gradients by query, key, value) of a loss on the given query rows."""

    def loss(q, k, v):
        context, lse = ar.attend_with_lse(q, k, v, **options)
        kept = context if rows is None else context[:, rows]
        return jnp.sin(kept.astype(jnp.float32)).sum(), (context, lse)

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
    (_, (context, lse)), grads = run(query, key, value)
    return context, lse, grads


@pytest.mark.parametrize("how", ["mask", "bias"])
@pytest.mark.parametrize("score", ar.SCORES)
def test_a_row_that_sees_nothing(how, score, draw, draw_params):  # cases 1, 2
    query, key, value = draw(batch=(1,), T=4, S=6, Dq=8, Dk=8, Dv=8).cast(jnp.float32)
    visible = np.ones((4, 6), bool)
    visible[1] = False
    option = {"mask": visible} if how == "mask" else {"bias": np.where(visible, 0.0, -np.inf)}
    option |= {"score": score, "score_params": draw_params(score, 8, 8)}
    context, lse, grads = gradients(query, key, value, **option)
    assert not context[:, 1].any() and (lse[..., 1] == -jnp.inf).all()
    assert not grads[0][:, 1].any()
    assert all(np.isfinite(g).all() for g in grads)
    others = np.array([0, 2, 3])
    want, want_lse, want_grads = gradients(  # row 1 is there, so that positions are the same
        query, key, value, others, score=score, score_params=option["score_params"]
    )
    np.testing.assert_allclose(context[:, others], want[:, others], atol=1e-6)
    np.testing.assert_allclose(lse[..., others], want_lse[..., others], atol=1e-5)
    np.testing.assert_allclose(grads[0], want_grads[0], atol=1e-5)
    np.testing.assert_allclose(grads[1], want_grads[1], atol=1e-5)
    np.testing.assert_allclose(grads[2], want_grads[2], atol=1e-5)


def test_no_gradient_passes_a_row_that_sees_nothing_even_a_bad_one(draw):
    query, key, value = draw(batch=(1,)).cast(jnp.float32)
    mask = jnp.ones((3, 5), bool).at[1].set(False)

    def loss(q, k, v):
        context, lse = ar.attend_with_lse(q, k, v, mask=mask)
        return jnp.sqrt(jnp.square(context).sum(-1)).sum() + jnp.exp(lse).sum()

    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(query.at[:, 1].set(jnp.nan), key, value)
    assert not grads[0][:, 1].any()
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("prepared", [False, True], ids=["keys", "transformed"])
@pytest.mark.parametrize("score", ar.SCORES)
def test_a_key_that_some_queries_do_not_see(score, prepared, draw, draw_params):  # case 3
    query, key, value = draw(batch=(1,), K=1).cast(jnp.float32)
    params = draw_params(score, 4, 4)
    options = dict(score=score, score_params=params, mask=ar.masks.causal(1))
    rows = np.array([0, 1])  # they see the keys 0..2; row 2 sees key 3 too; nobody sees key 4

    def keys(k):
        return ar.transform_keys(k, score=score, score_params=params) if prepared else k

    @jax.jit
    def run(q, k, v, params):
        def loss(q, k, v, params):
            given = options | {"score_params": params}
            context = ar.attend(q, keys(k), v, **given)
            return jnp.sin(context[:, rows]).sum(), context

        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, params)

    (_, want), want_grads = run(query, key, value, params)
    for bad in (np.nan, np.inf, -np.inf):
        (_, context), grads = run(
            query, key.at[:, 3:, :, 1].set(bad), value.at[:, 3:, :, 0].set(bad), params
        )
        np.testing.assert_array_equal(context[:, rows], want[:, rows])
        assert np.isnan(context[:, 2]).all(), "what is seen must not be hidden"
        np.testing.assert_array_equal(grads[0][:, rows], want_grads[0][:, rows])
        (_, context), grads = run(query, key.at[:, 4:].set(bad), value.at[:, 4:].set(bad), params)
        np.testing.assert_array_equal(context, want)
        for got, wanted in zip(*map(jax.tree.leaves, (grads, want_grads)), strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("prepared", [False, True], ids=["keys", "transformed"])
@pytest.mark.parametrize("score", ar.SCORES)
def test_key_lengths_hide_all_that_is_behind_them(score, prepared, draw, draw_params):  # cases 3, 4
    query, key, value = draw(batch=(3,)).cast(jnp.float32)
    lengths = jnp.array([5, 2, 0])
    params = draw_params(score, 4, 4, 2)

    @jax.jit
    def run(q, k, v, leaves):
        def loss(q, k, v, leaves):
            params = ar.PerHead(leaves)
            options = dict(score=score, score_params=params)
            keys = ar.transform_keys(k, **options) if prepared else k
            context = ar.attend(q, keys, v, mask=ar.masks.lengths(lengths), **options)
            return jnp.sin(context).sum(), context

        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, leaves)

    (_, want), want_grads = run(query, key, value, params.params)
    hidden = (jnp.arange(5) >= lengths[:, None])[..., None, None]
    spoiled = [jnp.where(hidden, bad, x) for bad, x in ((jnp.nan, key), (jnp.inf, value))]
    (_, context), grads = run(query.at[2].set(jnp.inf), *spoiled, params.params)
    assert not context[2].any()
    np.testing.assert_array_equal(context, want)
    for got, wanted in zip(*map(jax.tree.leaves, (grads, want_grads)), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)
        assert np.isfinite(got).all()


def test_nan_in_a_value_reaches_exactly_the_queries_that_see_it(draw):
    query, key, value = draw(batch=(1,), K=1).cast(jnp.float32)
    want = ar.attend(query, key, value, mask=ar.masks.causal(1))
    for bad in (np.nan, np.inf):
        spoiled = value.at[:, 3, :, 0].set(bad)  # seen by row 2 alone
        got = ar.attend(query, key, spoiled, mask=ar.masks.causal(1))
        np.testing.assert_array_equal(got[:, :2], want[:, :2])
        assert np.isnan(got[:, 2]).all()


def test_left_padded_causal_batch(draw):  # case 9
    query, key, value = draw(batch=(2,), T=5, S=5).cast(jnp.float32)
    real = jnp.arange(5) >= jnp.array([[2], [0]])
    mask = ar.masks.causal() & real[:, None, None, :]
    spoil = ~real[..., None, None]
    spoiled = [jnp.where(spoil, jnp.nan, x) for x in (query, key, value)]
    context, lse, grads = gradients(*spoiled, mask=mask)
    assert not context[0, :2].any() and (lse[0, :, :2] == -jnp.inf).all()
    alone = gradients(*(x[:1, 2:] for x in (query, key, value)), mask=ar.masks.causal())
    np.testing.assert_allclose(context[:1, 2:], alone[0], atol=1e-6)
    for got, want in zip(grads, alone[2], strict=True):
        assert not got[0, :2].any() and np.isfinite(got).all()
        np.testing.assert_allclose(got[:1, 2:], want, atol=1e-5)


def test_a_mask_of_its_own_for_each_grouped_head(draw):
    query, key, value = draw(batch=(1,), N=2, K=1).cast(jnp.float32)
    mask = jnp.ones((2, 1, 5), bool).at[0, 0, 4].set(False)  # head 0 does not see key 4
    spoiled = [x.at[:, 4].set(jnp.nan) for x in (key, value)]
    want = gradients(query, key, value, mask=mask)
    context, _, _ = gradients(query, *spoiled, mask=mask)
    np.testing.assert_array_equal(context[:, :, 0], want[0][:, :, 0])
    assert np.isnan(context[:, :, 1]).all()

    def head_0(q):
        return ar.attend(q, *spoiled, mask=mask)[:, :, 0].sum()

    assert np.isfinite(jax.jit(jax.grad(head_0))(query)[:, :, 0]).all()


@pytest.mark.parametrize(
    ("score", "dtype"), [*((score, "float16") for score in ar.SCORES), ("dot", "bfloat16")]
)
def test_sixteen_bits(score, dtype, draw, draw_params):  # case 5
    drawn = draw(Dq=16, Dk=16)
    query, key, value = drawn.cast(dtype)
    options = dict(score=score, score_params=draw_params(score, 16, 16))
    exact = [x.astype(jnp.float32) for x in (query, key, value)]
    context, lse, grads = gradients(query, key, value, **options)
    dtype = jnp.dtype(dtype)
    assert context.dtype == dtype and lse.dtype == jnp.float32
    assert [g.dtype for g in grads] == [dtype] * 3
    want, want_lse, want_grads = gradients(*exact, **options)
    np.testing.assert_array_equal(context, want.astype(dtype))
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5)
    for got, wanted in zip(grads, want_grads, strict=True):
        np.testing.assert_allclose(got.astype(jnp.float32), wanted, rtol=0.02, atol=0.02)
    context, lse, grads = gradients(400 * query, 400 * key, value, **options)
    assert np.isfinite(context.astype(jnp.float32)).all() and np.isfinite(lse).all()
    assert not any(np.isnan(g.astype(jnp.float32)).any() for g in grads)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("score", ar.SCORES)
def test_finite_inputs_of_any_size(score, masked, draw, draw_params):
    signs = [jnp.sign(x) for x in draw(batch=(20,), Dq=8, Dk=8).cast(jnp.float32)]
    visible = jnp.ones((3, 5), bool).at[1].set(False).at[2, 3:].set(False)
    options = dict(score=score, score_params=draw_params(score, 8, 8))
    options |= dict(mask=visible if masked else None)

    @jax.jit
    def run(q, k, v):
        return ar.attend(q, k, v, **options), ar.attention_weights(q, k, **options)

    for size in (1e-38, 1e4, 1e15, 1e19, 1e30, 3.4e38):
        context, weights = run(*(x * size for x in signs))
        assert not np.isnan(context).any(), size
        sums = np.array([1.0, 1.0 - masked, 1.0])
        np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(sums, (20, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize("normalizer", ar.NORMALIZERS)
def test_weights_that_are_not_bounded_times_values_of_any_size(normalizer, draw):
    signs = [jnp.sign(x) for x in draw(N=4, K=2).cast(jnp.float32)]
    query, key, value = (x * size for x, size in zip(signs, (1e16, 1e16, 1e30), strict=True))
    context = ar.attend(query, key, value, normalizer=normalizer)
    assert np.isfinite(context).all()


def test_a_finite_logit_never_loses_to_a_masked_one():
    query = jnp.array([[1.0]])
    value = jnp.array([[1.0], [2.0]])
    mask = jnp.array([True, False])
    for logit in (-1e30, -3.4e38, 1e30, 0.0):
        key = jnp.array([[logit], [5.0]])
        assert ar.attend(query, key, value, mask=mask) == 1
        assert ar.attend(query, key, value, mask=mask, scale=100.0) == 1
        bias = jnp.array([logit, -jnp.inf])
        assert ar.attend(query, jnp.array([[logit], [5.0]]), value, bias=bias) == 1


def test_saturated_logits_keep_their_order_of_magnitude():
    query = jnp.full((1, 2), 1e20)
    key = jnp.array([[1e20, 1e20], [1e17, 1e17], [-1e20, 1e20]])
    np.testing.assert_array_equal(ar.attention_weights(query, key), [[1, 0, 0]])


@pytest.mark.parametrize("score", ["general", "projected_dot", "additive"])
def test_float16_inputs_with_float32_parameters_keep_their_precision(rng, score):
    """Case 5: large 16-bit inputs times parameters of 32 bits, as modules with dtype have them."""
    query, key = (rng.normal(size=(n, 64)) * 300 for n in (3, 4))
    query, key = query.astype(np.float16), key.astype(np.float16)
    params = ar.init_score(score, jax.random.key(0), 64, 64)
    scale = 1.0 if score == "additive" else 1e-5
    ours = ar.attention_weights(query, key, score=score, score_params=params, scale=scale)
    wide = [np.asarray(x, np.float64)[:, None] for x in (query, key)]
    exact = {name: np.asarray(x, np.float64) for name, x in params.items()}
    _, want, _ = reference.attention(*wide, wide[1], score=score, score_params=exact, scale=scale)
    np.testing.assert_allclose(ours, want[0], atol=2e-5)


def test_tiny_times_huge_is_not_flushed_to_zero():
    query, key = np.full((1, 64), 1e-36, np.float32), np.float32([[1e36] * 64, [0] * 64])
    weights = ar.attention_weights(query, key, scale=1 / 64)
    np.testing.assert_allclose(weights, [[1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]], rtol=1e-5)


@pytest.mark.parametrize("hidden", [np.nan, 7.0])
def test_masked_keys_reach_no_user_function_that_has_no_derivative_at_zero(rng, hidden):
    """Cosine, as everybody writes it: what stands in for a masked key is no zero vector."""

    def cosine(_, q, k):
        return (q / jnp.linalg.norm(q, axis=-1, keepdims=True)) @ (
            k / jnp.linalg.norm(k, axis=-1, keepdims=True)
        ).T

    query, key, value = (jnp.asarray(rng.normal(size=(2, 5, 1, 4)), jnp.float32) for _ in range(3))
    key = key.at[1, 3:].set(hidden)
    for mask in (ar.masks.lengths(jnp.array([5, 3])), ar.masks.causal() & ar.masks.lengths(
        jnp.array([5, 3])
    )):  # fmt: skip

        def loss(query, key, mask=mask):
            return (ar.attend(query, key, value, score=cosine, mask=mask) ** 2).sum()

        dq, dk = jax.grad(loss, (0, 1))(query, key)
        assert np.isfinite(dq).all() and np.isfinite(dk).all() and not dk[1, 3:].any()
        deleted = jax.grad(loss)(query.at[0].set(0.5), key.at[1, 3:].set(1.0))
        np.testing.assert_allclose(dq[1], deleted[1], atol=1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("heads", [1, 2])
def test_means_of_the_largest_values_saturate(heads, rate, draw, rng):
    query, key, _ = draw(N=heads, S=37).cast(jnp.float32)
    top = float(jnp.finfo(jnp.float32).max)
    value = jnp.full((2, 37, heads, 3), top) * jnp.array([1, -1, 1])
    got = ar.attend(query, key, value, dropout_rate=rate, dropout_key=jax.random.key(0))
    assert np.isfinite(got).all()
    if not rate:
        np.testing.assert_allclose(np.asarray(got) / top, np.asarray(value[:, :3]) / top, rtol=1e-5)


MASKS = {
    "none": None,
    "rows": np.ones((1, 5), bool),
    "pairs": np.ones((3, 5), bool),
    "bias": np.zeros((3, 5)),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax"])
def test_nan_in_a_visible_value_shows_at_weight_zero_too(normalizer, kind, draw):
    query, key, value = draw(batch=()).cast(jnp.float32)
    query, key = jnp.abs(query) + 1, key.at[0].set(100.0)  # which takes all the weight
    given = {"bias" if kind == "bias" else "mask": MASKS[kind]}
    got = ar.attend(
        query, key, value.at[4, 0].set(jnp.nan), normalizer=normalizer, scale=10.0, **given
    )
    np.testing.assert_array_equal(np.isnan(got).any(-1), [[True, False]] * 3)
