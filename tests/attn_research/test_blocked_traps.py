"""Inputs on which the blocked implementation was once wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import numerics
from attn_research.kernels import layout
from attn_research.kernels.blocks import Sizes

BLOCKED = ("blocked", "blocked_any_mode")


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(layout, "block_sizes", lambda *shape: Sizes(1, 4, 3, 2))


@pytest.fixture
def arrays(rng):
    return lambda *lengths: [jnp.asarray(rng.normal(size=(n, 2)), jnp.float32) for n in lengths]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_no_size_of_array_hides_what_is_not_finite(bad, dtype):
    """On a CPU XLA's maximum loses NaN in large arrays."""
    x = jnp.ones((1024, 8, 64), dtype).at[1023, 7, 63].set(bad)
    for clean in (numerics.clean, jax.jit(numerics.clean)):
        cleaned, flags = clean(x)
        assert flags[1023, 7] and flags.sum() == 1
        assert np.isfinite(np.asarray(cleaned, np.float32)).all()


@pytest.mark.parametrize("implementation", BLOCKED)
def test_a_hidden_nan_among_values_whose_sum_overflows(implementation, small_blocks):
    query, key = jnp.zeros((2, 1)), jnp.zeros((8, 1))
    value = jnp.full((8, 1), 3e38).at[7].set(jnp.nan)
    mask = ar.masks.lengths(7)
    got = ar.attend(query, key, value, mask=mask, implementation=implementation)
    np.testing.assert_allclose(got, 3e38, rtol=1e-6)


@pytest.mark.parametrize("implementation", BLOCKED)
def test_nan_spoils_what_sees_it_and_nothing_else(implementation, small_blocks, arrays):
    q, k, v = arrays(5, 7, 7)
    given = dict(mask=ar.masks.causal(), implementation=implementation)
    want, lse = ar.attend_with_lse(q, k, v, **given)
    for spoiled in ((q, k.at[3].set(jnp.nan), v), (q, k, v.at[3].set(jnp.inf))):
        got, got_lse = ar.attend_with_lse(*spoiled, **given)
        np.testing.assert_array_equal(np.isnan(got).all(-1), [False] * 3 + [True] * 2)
        np.testing.assert_array_equal(got[:3], want[:3])
        np.testing.assert_array_equal(got_lse[:3], lse[:3])
    got, got_lse = ar.attend_with_lse(q.at[2].set(jnp.nan), k, v, **given)
    np.testing.assert_array_equal(np.isnan(got_lse), np.arange(5) == 2)
    np.testing.assert_array_equal(np.delete(got, 2, 0), np.delete(want, 2, 0))


@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15", "entmax"])
def test_forward_over_reverse_of_rows_with_one_weight(normalizer, small_blocks, rng):
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(rng.normal(size=(n, 2)) * 2) for n in (5, 7, 7))
        along, pull = (jnp.asarray(rng.normal(size=q.shape)) for _ in range(2))

        def curve(implementation):
            def loss(q, v):
                options = dict(normalizer=normalizer, implementation=implementation)
                return (ar.attend(q, k, v, **options) * pull).sum()

            return jax.jvp(lambda q: jax.grad(loss, argnums=1)(q, v), (q,), (along,))[1]

        np.testing.assert_allclose(curve("blocked"), curve("dense"), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("score", ["squared_distance", "gaussian"])
def test_forward_over_reverse_of_squared_distances(score, small_blocks, rng):
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(rng.normal(size=(n, 2)) / 2) for n in (5, 6, 6))
        params = jax.tree.map(jnp.asarray, ar.init_score(score, jax.random.key(0), 2, 2))

        def curve(implementation):
            def loss(k):
                options = dict(score_params=params, implementation=implementation)
                return (ar.attend(q, k, v, score=score, **options) ** 2).sum()

            return jax.jvp(jax.grad(loss), (k,), (jnp.ones_like(k),))[1]

        np.testing.assert_allclose(curve("blocked"), curve("dense"), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("normalizer", ["relu", "sigmoid", "softmax"])
@pytest.mark.parametrize("implementation", ["dense", *BLOCKED])
def test_dropout_hides_no_nan(implementation, normalizer, small_blocks, arrays):
    q, k, v = arrays(5, 7, 7)
    options = dict(normalizer=normalizer, dropout_rate=0.5, dropout_key=jax.random.key(0))
    got = ar.attend(q, k.at[2].set(jnp.nan), v, implementation=implementation, **options)
    assert np.isnan(got).all()


def test_gradients_of_16_bit_parameters_are_summed_in_32(small_blocks, rng):
    q, k, v = (jnp.asarray(abs(rng.normal(size=(200, 1, 4))), jnp.bfloat16) for _ in range(3))

    def grads(implementation):
        def loss(bias, params):
            options = dict(score="additive", score_params=params, bias=bias)
            out = ar.attend(q, k, v, normalizer="relu", implementation=implementation, **options)
            return out.astype(jnp.float32).sum()

        params = ar.init_score("additive", jax.random.key(0), 4, 4, dtype=jnp.bfloat16)
        params = jax.tree.map(abs, params)
        return jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.zeros((1, 1, 1), jnp.bfloat16), params)

    for got, want in zip(*map(jax.tree.leaves, (grads("blocked"), grads("dense"))), strict=True):
        np.testing.assert_allclose(np.float32(got), np.float32(want), rtol=0.03)


@pytest.mark.parametrize("implementation", BLOCKED)
def test_what_fills_up_the_last_block_has_derivatives(implementation, small_blocks, arrays):
    """It is not vectors of ones: a real one may be just that, and here distance 0 has none."""
    q, k, v = arrays(5, 7, 7)
    k = k.at[1].set(1.0)

    def loss(q, k, implementation):
        def score(params, q, k):
            return -jnp.sqrt(jnp.square(q[:, None] - k[None]).sum(-1))

        return ar.attend(q, k, v, score=score, implementation=implementation).sum()

    got, want = (jax.grad(loss, argnums=(0, 1))(q, k, i) for i in (implementation, "dense"))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize("implementation", BLOCKED)
def test_the_last_key_is_repeated_without_its_nan(implementation, small_blocks, arrays):
    q, k, v = arrays(5, 8, 8)
    given = dict(mask=ar.masks.lengths(7) & ar.masks.causal(4), implementation=implementation)
    grads = jax.grad(lambda *x: jnp.sin(ar.attend(*x, **given)).sum(), argnums=(0, 1, 2))
    want = grads(q, k, v)
    for x, y in zip(grads(q, *(x.at[7].set(jnp.nan) for x in (k, v))), want, strict=True):
        np.testing.assert_array_equal(x, y)


def test_integers_among_parameters_have_no_gradient(small_blocks, arrays):
    q, k, v = arrays(5, 7, 7)

    def loss(k, implementation):
        def score(params, q, k):
            return params["w"] * (q @ k.T) ** params["n"]

        params = {"n": jnp.array(2), "w": jnp.array(0.5)}
        options = dict(score_params=params, implementation=implementation)
        return ar.attend(q, k, v, score=score, **options).sum()

    got, want = (jax.grad(loss)(k, i) for i in ("blocked", "dense"))
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("mask", [None, ar.masks.causal(1)], ids=["none", "causal"])
@pytest.mark.parametrize(
    "options",
    [
        *(dict(score=name) for name in ("dot", "additive", "squared_distance", "local")),
        *(dict(normalizer=name) for name in ("sigmoid", "sparsemax", "entmax", "sinks")),
        dict(scale=ar.log_n(0.5)),
    ],
    ids=lambda options: str(next(iter(options.values())))[:16],
)
def test_shard_map_may_check_what_varies(options, mask, small_blocks, rng):
    """Which it does by default; a mesh of one device shows what it refuses."""
    q, k, v = (jnp.asarray(rng.normal(size=(2, n, 1, 4)), jnp.float32) for n in (5, 7, 7))
    params = ar.init_score(options["score"], jax.random.key(0), 4, 4) if "score" in options else {}
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("batch",))
    split, whole = jax.sharding.PartitionSpec("batch"), jax.sharding.PartitionSpec()

    def attend(q, k, v, params):
        given = options | {"score_params": params} if params else options
        return ar.attend(q, k, v, mask=mask, implementation="blocked", **given)

    sharded = jax.shard_map(
        attend, mesh=mesh, in_specs=(split, split, split, whole), out_specs=split
    )
    got, want = (
        jax.jit(jax.grad(lambda *x, f=f: jnp.sin(f(*x)).sum(), argnums=(0, 1, 2, 3)))(
            q, k, v, params
        )
        for f in (sharded, attend)
    )
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
