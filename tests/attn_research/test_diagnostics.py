"""Diagnostics against NumPy on each row, exact fractions and finite differences."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import diagnostics

pytestmark = pytest.mark.usefixtures("quick_compile")


def plain(row, i, T):
    """Every diagnostic of one row, in float64 with loops and matrices."""
    row = np.abs(np.asarray(row, np.float64))
    p = row / row.sum()
    expected = 0 if T == 1 else i * (len(p) - 1) / (T - 1)
    entropy = -sum(x * np.log(x) for x in p if x > 0)
    return {
        "entropy": entropy,
        "effective_keys": np.exp(entropy),
        "participation": 1 / sum(x * x for x in p),
        "max_weight": max(row),
        "distance_to_diagonal": sum(x * abs(j - expected) for j, x in enumerate(p)),
        "jacobian_norm": np.linalg.norm(np.diag(p) - np.outer(p, p)),
    }


NAMES = tuple(plain([1.0], 0, 1))


def draw_weights(rng, shape=(2, 3, 4, 5)):
    """Softmax rows, sparse ones, some that do not sum to 1, some dead: not sorted by kind."""
    weights = rng.exponential(size=shape) ** rng.integers(1, 6, shape[:-1])[..., None]
    weights *= rng.random(shape) < 0.7
    kinds = rng.random(shape[:-1])
    total = weights.sum(-1, keepdims=True)
    weights = np.where(kinds[..., None] < 0.5, weights / np.where(total == 0, 1, total), weights)
    weights[kinds > 0.85] = 0
    weights[0, 0, 0], weights[0, 0, 1] = 0, np.eye(shape[-1])[-1]
    return weights.astype(np.float32)


@jax.jit
def all_of(weights):
    return {name: getattr(diagnostics, name)(weights) for name in NAMES}


@pytest.mark.parametrize(("T", "S"), [(4, 5), (1, 3), (3, 1)])
def test_each_row_is_numpys(T, S, rng):
    weights = draw_weights(rng, (2, 3, max(T, 2), S))[..., :T, :]
    got = all_of(weights)
    with jax.enable_x64(True):
        precise = all_of(weights.astype(np.float64))
    np.testing.assert_array_equal(diagnostics.dead_rows(weights), ~weights.any(-1))
    for name in NAMES:
        want = np.zeros((2, 3, T))
        for where in np.ndindex(*want.shape):
            if weights[where].any():
                want[where] = plain(weights[where], where[-1], T)[name]
        assert got[name].dtype == jnp.float32 and precise[name].dtype == jnp.float64
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=2e-6, err_msg=name)
        np.testing.assert_allclose(precise[name], want, rtol=1e-12, atol=1e-14, err_msg=name)


def test_gradients_are_finite_differences(rng):
    row, step = rng.exponential(size=(2, 1, 6))
    with jax.enable_x64(True):
        grads = jax.jit(jax.jacrev(all_of))(row)
        along = jax.jit(lambda w: jax.jvp(all_of, (w,), (step,))[1])(row)
    ends = [plain((row + h * step)[0], 0, 1) for h in (1e-6, -1e-6)]
    for name in NAMES:
        want = pytest.approx((ends[0][name] - ends[1][name]) / 2e-6, rel=1e-5, abs=1e-8)
        assert (np.asarray(grads[name]) * step).sum() == want, name
        assert float(along[name][0]) == want, name


def test_values_and_gradients_of_any_finite_row_are_finite():
    hard = np.zeros((9, 6), np.float32)
    hard[1, 2] = 1
    hard[2, :2] = 1, np.finfo(np.float32).tiny
    hard[3, :3] = 1, 1e-20, 1e-25
    hard[4] = 1e-30
    hard[5] = 3e38
    hard[6, :2] = 1e-40
    hard[7, :2] = 0.5, -0.5
    hard[8] = 1e38, 1e-38, 0, 1, 1e-45, -1

    @jax.jit
    def run(weights):
        out = {}
        for name in NAMES:
            values, pull = jax.vjp(getattr(diagnostics, name), weights)
            along = jax.jvp(getattr(diagnostics, name), (weights,), (jnp.ones((9, 6)),))[1]
            out[name] = values, pull(jnp.ones(9))[0], along
        return out

    for name, results in run(hard).items():
        assert all(np.isfinite(x).all() for x in results), name
        assert not any(x[0].any() for x in results), name  # a dead row


def test_entropy_of_exact_zeros_and_of_rows_that_do_not_sum_to_1():
    rows = jnp.array([[0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.1, 0.1, 0.1, 0.1]])
    got = all_of(rows)
    np.testing.assert_allclose(got["entropy"], np.log([1, 2, 4]), rtol=1e-6)
    np.testing.assert_allclose(got["participation"], [1, 2, 4], rtol=1e-6)
    np.testing.assert_allclose(got["effective_keys"], [1, 2, 4], rtol=1e-6)
    np.testing.assert_allclose(got["max_weight"], [1, 0.5, 0.1])
    third = jnp.full((1, 3), 1 / 3, jnp.bfloat16)  # their sum is 1.002
    assert float(diagnostics.entropy(third)[0]) == pytest.approx(np.log(3), rel=1e-6)


def test_jacobian_norm_of_saturated_rows_is_exact(rng):
    """The power sums, in fractions: in float32 they cancel to nothing or to less."""
    rows = np.stack(
        [np.r_[1.0, rng.random(4) * 10.0**-n] for n in range(0, 29, 2)]
        + [np.full(5, 0.2), [1.0, 1.0, 1e-9, 0, 0], [1.0, 0, 0, 0, 0]]
    ).astype(np.float32)
    rows = rng.permuted(rows, axis=1)
    got = jax.jit(diagnostics.jacobian_norm)(rows)
    for norm, row in zip(got.tolist(), rows, strict=True):
        total = sum(Fraction(float(w)) for w in row)
        p = [Fraction(float(w)) / total for w in row]
        squares = sum(x**2 for x in p)
        square = squares - 2 * sum(x**3 for x in p) + squares**2
        shift = 10**80  # of the fraction, so that its root fits a float
        assert norm == pytest.approx(float(square * shift) ** 0.5 / 1e40, rel=2e-6)
    # |J|^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2 <= 1/4, for (sum p^2)^2 <= sum p^3
    assert got.max() <= 0.5


def test_distance_to_a_diagonal_of_ones_own(rng):
    weights = draw_weights(rng)
    lengths = np.array([3, 5])
    expected = np.arange(4) * (lengths[:, None, None] - 1) / 3
    distance = jax.jit(diagnostics.distance_to_diagonal)
    got = distance(weights, expected)
    for b, length in enumerate(lengths):
        row = weights[b, 2, 3]
        if row.any():
            want = sum(row[j] * abs(j - (length - 1)) for j in range(5)) / row.sum()
            assert float(got[b, 2, 3]) == pytest.approx(want, rel=1e-5, abs=1e-6)
    np.testing.assert_array_equal(distance(np.eye(7, dtype=np.float32)), 0)
    wide = np.zeros((3, 5), np.float32)
    wide[[0, 1, 2], [0, 2, 4]] = 1
    np.testing.assert_array_equal(distance(wide), 0)


QUANTILES = (0.0, 0.05, 0.5, 0.9, 1.0)


@pytest.mark.parametrize("per_head", [False, True])
def test_summary_is_numpys_over_the_rows_that_count(per_head, rng):
    weights = draw_weights(rng, (3, 2, 6, 5))
    where = rng.random((3, 1, 6)) < 0.8
    where[0, 0, :2] = True, False
    weights[0, :, 1] = np.nan  # left out
    run = jax.jit(lambda w, m: diagnostics.summary(w, QUANTILES, m, per_head=per_head))
    got = run(weights, where)
    groups = [weights[:, n : n + 1] for n in range(2)] if per_head else [weights]
    for n, group in enumerate(groups):
        kept = np.broadcast_to(where, group.shape[:-1])
        rows = [
            plain(group[at], at[-1], 6)
            for at in np.ndindex(*kept.shape)
            if kept[at] and group[at].any()
        ]
        result = {name: x[n] if per_head else x for name, x in got.items()}
        assert all(x.shape == () for x in result.values())
        assert result["rows/alive"] == len(rows) and result["rows/alive"].dtype == jnp.int32
        assert result["rows/dead"] == kept.sum() - len(rows)
        for name in NAMES:
            values = [row[name] for row in rows]
            close = dict(rtol=1e-5, atol=2e-6, err_msg=name)
            np.testing.assert_allclose(result[f"{name}/mean"], np.mean(values), **close)
            for q in QUANTILES:
                want = np.quantile(values, q)
                np.testing.assert_allclose(result[f"{name}/q{q:g}"], want, **close)
    assert len(got) == 2 + len(NAMES) * 6
    grads = jax.jit(jax.grad(lambda w: run(w, where)["entropy/q0.5"].sum()))(weights)
    assert np.isfinite(grads).all() and not grads[0, :, 1].any()


def test_summary_tells_nan_from_nothing():
    alive = jnp.array([[0.5, 0.5], [1.0, 0.0]])
    for weights, where, counts in [
        (jnp.zeros((3, 2)), None, (0, 3)),
        (alive, jnp.array([False]), (0, 0)),
        (alive.at[0, 0].set(jnp.nan), None, (2, 0)),
        (jnp.zeros((0, 2)), None, (0, 0)),
        (jnp.zeros((2, 0)), None, (0, 2)),
    ]:
        got = jax.jit(lambda w, m: diagnostics.summary(w, (0.5,), m))(weights, where)
        assert (int(got.pop("rows/alive")), int(got.pop("rows/dead"))) == counts
        assert all(np.isnan(x) for x in got.values())
    got = diagnostics.summary(alive[0:0].reshape(0, 3, 4, 2), (0.5,), per_head=True)
    assert got["entropy/q0.5"].shape == (3,)


def test_quantiles_of_inf_and_quantiles_that_are_close():
    weights = jnp.array([[0.25], [0.5], [jnp.inf], [jnp.inf]])
    quantiles = (0, 1 / 3, 0.5, 0.9, 1.0)
    got = jax.jit(lambda w: diagnostics.summary(w, quantiles))(weights)
    got = [got[f"max_weight/q{q}"] for q in ("0", "0.3333333333333333", "0.5", "0.9", "1")]
    np.testing.assert_allclose(got, [0.25, 0.5, np.inf, np.inf, np.inf])
    close = diagnostics.summary(jnp.ones((2, 2)), (0.5, 0.5000001))
    assert "entropy/q0.5" in close and "entropy/q0.5000001" in close


def test_saturation_shows_in_the_median_and_not_in_the_mean(draw):
    query, key, _ = draw(T=40, S=16, N=1).cast(jnp.float32)
    query = query.at[:, ::4].multiply(1e-3).at[:, 1::4].multiply(1e3)
    query = query.at[:, 2::4].multiply(1e3).at[:, 3::4].multiply(1e3)
    weights = jax.jit(lambda q, k: ar.attention_weights(q, k, scale=1.0))(query, key)
    stats = jax.jit(lambda w: diagnostics.summary(w, (0.25, 0.5, 0.9)))(weights)
    assert stats["entropy/mean"] > 0.6 and stats["jacobian_norm/mean"] > 0.05
    assert stats["entropy/q0.5"] < 1e-2 and stats["jacobian_norm/q0.5"] < 1e-2
    assert stats["entropy/q0.9"] == pytest.approx(np.log(16), rel=1e-3)


@pytest.mark.parametrize("per_head", [False, True])
def test_logit_statistics(per_head, rng):
    logits = rng.normal(size=(2, 3, 4, 5)) + 7 * rng.normal(size=(2, 3, 4, 1))
    visible = rng.random((2, 1, 4, 5)) < 0.7
    visible[0, 0, 1] = False
    given = np.where(visible, logits, np.nan).astype(np.float32)
    given[0, 0, 0, 0] = -np.inf
    run = jax.jit(lambda x, m: diagnostics.logit_statistics(x, m, per_head=per_head))
    got = run(given, visible)
    for n in range(3) if per_head else [slice(None)]:
        kept = logits[:, n].reshape(-1, 5)
        seen = (np.broadcast_to(visible, logits.shape) & (given != -np.inf))[:, n].reshape(-1, 5)
        rows = [row[s] for row, s in zip(kept, seen, strict=True) if s.any()]
        pairs, inside = np.concatenate(rows), np.concatenate([r - r.mean() for r in rows])
        want = pairs.mean(), pairs.std(), np.sqrt((inside**2).mean()), pairs.max()
        for name, x in zip(("mean", "std", "row_std", "max"), want, strict=True):
            result = got[name][n] if per_head else got[name]
            np.testing.assert_allclose(result, x, rtol=1e-5, atol=1e-5, err_msg=name)


def test_logit_statistics_of_nothing_of_equals_and_of_large_numbers():
    statistics = jax.jit(diagnostics.logit_statistics)
    nothing = statistics(jnp.full((2, 3), -jnp.inf))
    assert all(np.isnan(x) for x in nothing.values())

    @jax.jit
    @jax.grad
    def gradient(x):
        return sum(statistics(x).values())

    equal = jnp.full((2, 3), 4.0)
    assert statistics(equal)["std"] == 0 and np.isfinite(gradient(equal)).all()
    large = jnp.array([[3e38, -3e38], [3e38, 3e38]])
    got = statistics(large)
    want = np.array([1.5e38, 3e38 * 0.75**0.5, 3e38 * 0.5**0.5, 3e38])
    np.testing.assert_allclose([got[x] for x in ("mean", "std", "row_std", "max")], want, rtol=1e-6)
    assert np.isfinite(gradient(large)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.entropy(jnp.ones(3)), r"weights must be \[..., T, S\]: got shape \(3,\)"),
        (lambda d: d.entropy(jnp.ones((2, 3), int)), "weights must be floating: got int32"),
        (lambda d: d.summary(jnp.ones((2, 3)), per_head=True), r"must be \[..., N, T, S\]"),
        (lambda d: d.summary(jnp.ones((2, 3)), (50,)), "quantiles must be in 0 .. 1: got .50,"),
        (lambda d: d.summary(jnp.ones((2, 3)), (), jnp.ones(2)), "where must be boolean: got fl"),
        (lambda d: d.summary(jnp.ones((2, 3)), (), jnp.ones(3, bool)), r"to \[2\]: got \[3\]"),
        (lambda d: d.distance_to_diagonal(jnp.ones((2, 3)), jnp.ones(3)), "expected must broad"),
        (lambda d: d.logit_statistics(jnp.ones((2, 3)), jnp.ones(2, bool)), "visible must broad"),
    ],
)
def test_wrong_arguments_are_errors(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(diagnostics)
