"""Linear attention and the numerics policy: what is not seen has no influence, forward or backward,
and finite inputs never give NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_research import masks
from attn_research.feature_maps import Performer
from attn_research.linear import init_linear_state, linear_attention, linear_attention_step

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(params=["elu_plus_one", "performer", "function"])
def feature_map(request, rng):
    if request.param == "performer":
        return Performer(rng.normal(size=(6, 4)).astype(np.float32))
    if request.param == "function":
        return lambda x: jnp.concatenate([jax.nn.relu(x), jnp.ones_like(x) / 8], -1)
    return request.param


def gradients(feature_map, mask, rows=slice(None)):
    """(query, key, value) -> (context, their gradients) of a loss on the given rows."""

    @jax.jit
    def run(*inputs):
        def loss(*inputs):
            context = linear_attention(*inputs, feature_map=feature_map, mask=mask)
            return jnp.sin(context[:, rows].astype(jnp.float32)).sum(), context

        (_, context), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*inputs)
        return context, grads

    return run


@pytest.mark.parametrize("causal", [False, True])
def test_lengths_hide_all_that_is_behind_them(causal, feature_map, draw):
    query, key, value = draw(batch=(3,), T=4, S=4).cast(jnp.float32)
    lengths = jnp.array([4, 2, 0])
    mask = masks.lengths(lengths) & masks.causal() if causal else masks.lengths(lengths)
    run = gradients(feature_map, mask)
    context, grads = run(query, key, value)
    hidden = (jnp.arange(4) >= lengths[:, None])[..., None, None]
    for bad in (jnp.nan, jnp.inf, -3e38):
        spoiled = [jnp.where(hidden, bad, x) for x in (key, value)]
        got, got_grads = run(query.at[2].set(bad), *spoiled)
        np.testing.assert_array_equal(got, context)
        for one, other in zip(got_grads, grads, strict=True):
            np.testing.assert_array_equal(one, other)
    assert not context[2].any() and not any(g[2].any() for g in grads)
    assert context[:2].all() and all(np.isfinite(g).all() for g in grads)


def test_what_comes_later_has_no_influence(feature_map, draw):
    query, key, value = draw(batch=(1,), T=4, S=5, N=4, K=2).cast(jnp.float32)
    run = gradients(feature_map, masks.causal(1), slice(3))  # these rows see the keys 0 .. 3
    context, grads = run(query, key, value)
    for bad in (np.nan, np.inf, 3e38):
        got, got_grads = run(query, key.at[:, 4, 0, 1].set(bad), value.at[:, 4:, 1, 0].set(bad))
        np.testing.assert_array_equal(got[:, :3], context[:, :3])
        for one, other in zip(got_grads, grads, strict=True):
            np.testing.assert_array_equal(one, other)
        if bad != 3e38:
            assert np.isnan(got[:, 3:]).all(), "what is seen must not be hidden"


def test_later_keys_of_any_size_leave_earlier_rows_their_precision(feature_map, draw, rng):
    query, key, value = draw(batch=(), T=8, S=8, N=1).cast(jnp.float32)
    run = jax.jit(lambda *x: linear_attention(*x, feature_map=feature_map, mask=masks.causal()))
    for cut in rng.integers(1, 8, size=3):
        want = run(query, key, value)[:cut]
        for size in (1e2, 1e8, 1e30):
            got = run(query, key.at[cut:].multiply(size), value.at[cut:].multiply(size))
            np.testing.assert_array_equal(got[:cut], want)


def test_left_padded_causal_batch(draw):
    query, key, value = draw(T=4, S=4).cast(jnp.float32)
    real = jnp.arange(4) >= jnp.array([[2], [0]])
    run = gradients("elu_plus_one", masks.causal() & real[:, None, None, :])
    spoil = ~real[..., None, None]
    context, grads = run(*(jnp.where(spoil, jnp.nan, x) for x in (query, key, value)))
    assert not context[0, :2].any()
    alone = gradients("elu_plus_one", masks.causal())(*(x[:1, 2:] for x in (query, key, value)))
    np.testing.assert_allclose(context[:1, 2:], alone[0], atol=1e-6)
    for got, want in zip(grads, alone[1], strict=True):
        assert not got[0, :2].any() and np.isfinite(got).all()
        np.testing.assert_allclose(got[:1, 2:], want, atol=1e-5)


@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["all", "causal"])
def test_finite_inputs_of_any_size(mask, feature_map, draw):
    signs = [jnp.sign(x) for x in draw(batch=(20,), T=4, S=4, K=1).cast(jnp.float32)]
    signs[0], signs[1] = (x.at[0].set(-1) for x in signs[:2])  # exp of a sum that is below float32
    signs[2] = signs[2].at[..., 0].set(1)
    run = gradients(feature_map, mask)
    exact = not callable(feature_map) or isinstance(feature_map, Performer)
    for size in (1e-38, 1e4, 1e15, 1e19, 1e30, 3.4e38)[: 6 if exact else 3]:
        for sizes in ((size, size, 1), (size, 1, 1), (1, size, 1), (size, size, size)):
            context, grads = run(*(x * s for x, s in zip(signs, sizes, strict=True)))
            assert (np.abs(context) <= 1.0001 * max(sizes[2], 1e-37)).all(), "a mean of values"
            if 1e-37 < sizes[2] < 1e38:  # else subnormal, or sums that saturate
                np.testing.assert_allclose(context[..., 0], sizes[2], rtol=1e-5)
            if sizes[2] < (1e30 if exact else 1e5):  # else they do not fit into float32
                assert all(np.isfinite(g).all() for g in grads), sizes


@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["all", "causal"])
def test_features_below_and_above_float32(mask, draw, rng):
    """What cancels in the ratio may be as small or as large as it likes."""
    query, key, value = draw(batch=(), T=6, S=6, N=1)
    visible = np.tri(6, k=6 if mask is None else 0, dtype=bool)
    w = rng.normal(size=(5, 4))
    for phi, q, k, logs in (
        ("elu_plus_one", query - 200, key - 300, (query - 200, key - 300)),
        (
            Performer(w.astype(np.float32), 1.0),
            9 * query,
            70 * key,
            (9 * query @ w.T, 70 * key @ w.T - np.square(70 * key).sum(-1, keepdims=True) / 2),
        ),
    ):
        pairs = logs[0][:, None, 0] + logs[1][None, :, 0]  # [T, S, F]
        pairs = np.where(visible[..., None], pairs, -np.inf)
        weights = np.exp(pairs - pairs.max((1, 2), keepdims=True)).sum(-1)
        want = weights @ value[:, 0] / weights.sum(-1, keepdims=True)
        run = jax.jit(lambda *x, phi=phi: linear_attention(*x, feature_map=phi, mask=mask))
        got = run(*(jnp.asarray(x, jnp.float32) for x in (q, k, value)))[:, 0]
        np.testing.assert_allclose(got, want, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_sixteen_bits(dtype, draw):
    inputs = draw(T=4, S=4).cast(dtype)
    run = gradients("elu_plus_one", masks.causal())
    context, grads = run(*inputs)
    want, want_grads = run(*(x.astype(jnp.float32) for x in inputs))
    assert context.dtype == dtype and {g.dtype for g in grads} == {jnp.dtype(dtype)}
    np.testing.assert_array_equal(context, want.astype(dtype))
    for got, wanted in zip(grads, want_grads, strict=True):
        np.testing.assert_allclose(got.astype(jnp.float32), wanted, rtol=0.02, atol=0.02)


def test_decoding_hides_what_is_masked_and_shows_what_is_not(feature_map, draw):
    query, key, value = draw(T=3, S=5).cast(jnp.float32)

    @jax.jit
    def decode(query, key, value):
        options = {"feature_map": feature_map}
        lengths = masks.lengths(jnp.array([3, 0]))
        state = init_linear_state(key[:, :3], value[:, :3], mask=lengths, **options)
        rows = []
        for i in range(2):
            now = query[:, i], key[:, 3 + i], value[:, 3 + i]
            row, state = linear_attention_step(state, *now, **options)
            rows.append(row)
        return jnp.stack(rows)

    want = decode(query, key, value)
    for bad in (jnp.nan, jnp.inf):
        hidden = decode(query, key.at[1, :3].set(bad), value.at[1, :3].set(bad))
        np.testing.assert_array_equal(hidden, want)
        for spoiled in (
            (query, key.at[0, 0, 0, 0].set(bad), value),
            (query, key, value.at[0, 0, 0, 0].set(bad)),
            (query.at[0, :, 0, 0].set(bad), key, value),
        ):
            got = decode(*spoiled)
            assert np.isnan(got[:, 0, 0]).all()
            np.testing.assert_array_equal(got[:, :, 1], want[:, :, 1])
            np.testing.assert_array_equal(got[:, 1], want[:, 1])
        later = decode(query, key.at[0, 4, 0, 0].set(bad), value)
        np.testing.assert_array_equal(later[0], want[0])
        assert np.isnan(later[1, 0, 0]).all()


def unit(x):
    """Has no value and no derivative at 0."""
    return jax.nn.elu(x / jnp.linalg.norm(x, axis=-1, keepdims=True)) + 1


def pole(x):
    """inf at what stands in for masked keys."""
    return 1 / (1 - x) ** 2


@pytest.mark.parametrize("known", [True, False], ids=["known", "traced"])
@pytest.mark.parametrize("case", [(3, 3, 0), (4, 4, -1), (2, 5, 5), (5, 2, 1), (5, 3, -5)], ids=str)
def test_a_feature_map_is_asked_for_real_positions_alone(case, known, draw):
    T, S, offset = case
    inputs = draw(batch=(), T=T, S=S, N=1).cast(jnp.float32)

    @jax.jit
    def run(inputs, at):
        def loss(inputs):
            mask = masks.causal(offset if known else at)
            out = linear_attention(*inputs, feature_map=unit, mask=mask, chunk_size=2)
            return jnp.sin(out).sum(), out

        return jax.value_and_grad(loss, has_aux=True)(inputs)

    (_, got), grads = run(inputs, offset)
    q, k, v = (np.asarray(x)[:, 0] for x in inputs)
    weights = np.asarray(unit(q)) @ np.asarray(unit(k)).T * np.tri(T, S, offset)
    want = weights @ v / np.maximum(weights.sum(-1, keepdims=True), 1e-9)
    np.testing.assert_allclose(got[:, 0], want, atol=1e-5)
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("mask", [masks.lengths(4), masks.causal()], ids=["all", "causal"])
def test_features_of_masked_keys_may_be_anything(mask, draw):
    query, key, value = draw(batch=(), T=4, S=4).cast(jnp.float32)
    mask = mask & masks.lengths(3)
    got = jax.jit(lambda *x: linear_attention(*x, feature_map=pole, mask=mask))(query, key, value)
    want = linear_attention(query[:3], key[:3], value[:3], feature_map=pole, mask=masks.causal())
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[2], want[2], rtol=1e-5)


@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["all", "causal"])
def test_features_of_too_wide_a_range_are_lost_to_values_and_weights_alike(mask):
    def hedgehog(x):
        return jnp.concatenate([jnp.exp(x), jnp.exp(-x)], -1)

    @jax.jit
    @jax.vmap
    def run(a):
        q, k, v = (jnp.full((3, 1), x) for x in (-a, a, 7.0))
        return linear_attention(q, k, v, feature_map=hedgehog, mask=mask)

    a = jnp.linspace(38, 50, 97)
    got = np.asarray(run(a))[..., 0]
    assert (np.isclose(got, 7, rtol=1e-6) | (got == 0)).all(), "a mean of values, or nothing"
    assert (got[a < 42] != 0).all()
