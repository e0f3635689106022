"""Jacobians by their weights: against autodiff, finite differences, eigenvalues in NumPy."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attn_research import theory

NORMS = {
    "trace": theory.jacobian_trace,
    "frobenius": theory.jacobian_frobenius_norm,
    "spectral": theory.jacobian_spectral_norm,
}


@jax.jit
def all_norms(p):
    return {name: norm(p) for name, norm in NORMS.items()}


@jax.jit
def gradients_of_all_norms(p):
    return {name: jax.grad(norm)(p) for name, norm in NORMS.items()}


@jax.jit
def jacobian_and_bounds(p):
    return theory.softmax_jacobian(p), theory.jacobian_spectral_bounds(p)


def entmax(z, alpha):
    """Alpha-entmax of one row in float64, alpha > 1, and ``(alpha - 1) z - tau``: > 0 where p is.

    The threshold tau by bisection.
    """
    z = (alpha - 1) * np.asarray(z, np.float64)

    def weights(tau):
        return np.maximum(z - tau, 0) ** (1 / (alpha - 1))

    low, high = z.max() - 1, z.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if weights(middle).sum() > 1 else (low, middle)
    return weights(low) / weights(low).sum(), z - low


def finite_differences(f, z, h=1e-6):
    steps = np.eye(len(z)) * h
    return np.stack([(f(z + step) - f(z - step)) / (2 * h) for step in steps], -1)


def dense_norms(p):
    """The three norms of ``diag(p) - p p^T`` for rows of weights, by linear algebra in float64."""
    p = np.asarray(p, np.float64)
    jacobian = p[:, :, None] * np.eye(p.shape[-1]) - p[:, :, None] * p[:, None, :]
    return {
        "trace": np.trace(jacobian, axis1=1, axis2=2),
        "frobenius": np.linalg.norm(jacobian, axis=(1, 2)),
        "spectral": np.linalg.eigvalsh(jacobian)[:, -1],
    }


@pytest.fixture
def rows(rng):
    """Weights ``[rows, S]`` of every kind: flat, peaked, with zeros, with ties."""

    def rows(S, count=60):
        p = np.concatenate(
            [rng.dirichlet(np.full(S, c), size=count // 4) for c in (0.1, 1.0, 30.0)]
            + [rng.integers(0, 3, size=(count // 4, S)) + np.eye(S)[rng.integers(S, size=1)]]
        )
        return p / p.sum(-1, keepdims=True)

    return rows


def test_softmax_jacobian_is_that_of_autodiff(rng):
    z = rng.normal(size=(2, 3, 5)) * np.array([0.1, 1.0, 8.0])[:, None]
    got = jax.jit(lambda z: theory.softmax_jacobian(jax.nn.softmax(z)))(z)
    assert got.shape == (2, 3, 5, 5)
    autodiff = jax.jit(jax.jacobian(jax.nn.softmax))
    for index in itertools.product(range(2), range(3)):
        want = autodiff(z[index])
        np.testing.assert_allclose(got[index], want, atol=1e-6)


@pytest.mark.parametrize("S", [1, 2, 7])
def test_sparsemax_and_entmax_jacobians_are_finite_differences(S, rng):
    alphas = [2.0, 1.5, *rng.uniform(1.1, 1.9, size=2)]
    with jax.enable_x64(True):
        traced = jax.jit(theory.entmax_jacobian)
        for alpha, size in itertools.product(alphas, (0.3, 3.0)):
            above = np.zeros(S)
            while np.abs(above).min() < 0.01:  # at the edge of the support there is no derivative
                z = rng.normal(size=S) * size
                p, above = entmax(z, alpha)
            want = finite_differences(lambda z, alpha=alpha: entmax(z, alpha)[0], z)
            np.testing.assert_allclose(traced(p, alpha), want, atol=1e-6)
            if alpha == 2:
                got = jax.jit(theory.sparsemax_jacobian)(p)
                np.testing.assert_allclose(got, want, atol=1e-6)


def test_entmax_from_softmax_to_sparsemax(rows):
    p, entmax_jacobian = rows(6), jax.jit(theory.entmax_jacobian)
    softmax, sparsemax = map(jax.jit, (theory.softmax_jacobian, theory.sparsemax_jacobian))
    np.testing.assert_allclose(entmax_jacobian(p, 1), softmax(p), atol=1e-6)
    sparsemax = sparsemax(p)
    np.testing.assert_allclose(entmax_jacobian(p, 2.0), sparsemax, atol=1e-6)
    support = (p > 0).sum(-1)
    np.testing.assert_allclose(np.trace(sparsemax, axis1=1, axis2=2), support - 1, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(sparsemax, 2, axis=(1, 2)), support > 1, atol=1e-5)


@pytest.mark.parametrize("S", [1, 2, 3, 31])
def test_norms_are_those_of_the_matrix(S, rows):
    p = rows(S)
    want = dense_norms(p)
    with jax.enable_x64(True):
        for name, got in all_norms(p.reshape(4, -1, S)).items():
            assert got.dtype == jnp.float64 and got.shape == (4, len(p) // 4)
            np.testing.assert_allclose(got.reshape(-1), want[name], rtol=1e-14, atol=2e-15)
    for name, got in all_norms(np.float32(p)).items():
        np.testing.assert_allclose(got, want[name], rtol=2e-6, atol=1e-14)


@pytest.mark.parametrize("S", [2, 31])
def test_bounds_of_the_spectral_norm(S, rows):
    p = rows(S)
    with jax.enable_x64(True):
        lower, upper = map(np.asarray, jax.jit(theory.jacobian_spectral_bounds)(p))
    exact, top = dense_norms(p)["spectral"], p.max(-1)
    assert (lower <= exact + 1e-15).all() and (exact <= upper + 1e-15).all()
    assert (lower >= top * (1 - top) - 1e-15).all() and (upper <= 0.5).all()
    assert (upper <= 2 * lower + 1e-15).all()
    if S == 2:
        np.testing.assert_allclose(lower, exact, atol=1e-15)


def test_what_is_attained():
    half, uniform = jnp.array([0.5, 0.0, 0.5, 0.0]), jnp.full(4, 1 / 4)
    assert all_norms(half) == dict.fromkeys(NORMS, 0.5)
    assert jax.jit(theory.jacobian_spectral_bounds)(half) == (0.5, 0.5)
    norms = all_norms(uniform)
    assert norms["trace"] == 3 / 4 and norms["spectral"] == 1 / 4
    assert norms["frobenius"] == pytest.approx(math.sqrt(3) / 4)


@pytest.mark.parametrize("rest", [1e-3, 1e-7, 1e-12, 1e-25])
def test_almost_one_hot_rows_keep_their_relative_accuracy(rest, rng, quick_compile):
    others = rest * rng.dirichlet(np.ones(4))
    p = np.float32([1 - rest, *others])
    exact = [1 - others.sum(), *others]
    matrix = np.diag(exact) - np.outer(exact, exact)
    matrix[0, 0] = exact[0] * others.sum()
    want = {
        "trace": np.trace(matrix),
        "frobenius": np.linalg.norm(matrix / rest) * rest,
        "spectral": np.linalg.eigvalsh(matrix / rest)[-1] * rest,
    }
    for name, got in all_norms(p).items():
        np.testing.assert_allclose(got, want[name], rtol=2e-6)
    assert all(np.isfinite(g).all() for g in gradients_of_all_norms(p).values())
    jacobian, (lower, upper) = jacobian_and_bounds(p)
    np.testing.assert_allclose(jacobian, matrix, rtol=1e-6, atol=1e-40)
    assert lower * (1 - 1e-6) <= want["spectral"] <= upper * (1 + 1e-6)


@pytest.mark.parametrize("name", NORMS)
def test_derivatives_of_the_norms(name, rng, quick_compile):
    with jax.enable_x64(True):
        z = np.arange(5) + rng.uniform(-0.3, 0.3, size=(3, 5))  # no two nearly equal
        z = jnp.asarray(rng.permuted(z, axis=1) * np.array([[0.3], [1.0], [3.0]]))
        f = jax.jit(lambda z: NORMS[name](jax.nn.softmax(z)).sum())
        check_grads(f, (z,), order=2, atol=1e-6, rtol=1e-5)


def test_gradient_of_the_spectral_norm_where_two_weights_are_equal():
    """By the eigenvector v: v_i^2 - 2 v_i (v . p), here v = (1, -1, 0) / sqrt(2)."""
    gradient = gradients_of_all_norms(jnp.array([0.4, 0.0, 0.4, 0.15, 0.05]))["spectral"]
    np.testing.assert_allclose(gradient, [0.5, 0, 0.5, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        *NORMS.values(),
        lambda p: sum(theory.jacobian_spectral_bounds(p)),
        lambda p: theory.softmax_jacobian(p).sum((-1, -2)),
        lambda p: theory.sparsemax_jacobian(p)[..., 0, 0],
        lambda p: jnp.abs(theory.entmax_jacobian(p, 1.5)).sum((-1, -2)),
        lambda p: theory.entmax_jacobian(p, 30.0)[..., 0, 1],
    ],
)
def test_rows_without_derivative_stay_finite(function, quick_compile):
    p = [[0, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4, [1, 2e-38, 0, 0]]
    p = jnp.array(p, jnp.float32)
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(function)))(p)
    np.testing.assert_array_equal(value[:2], 0)
    assert np.isfinite(value).all() and np.isfinite(gradient).all()


def test_shapes_and_dtypes():
    p = jnp.full((2, 1, 4), 0.25, jnp.bfloat16)
    for name, norm in NORMS.items():
        shape = jax.eval_shape(norm, p)
        assert shape.dtype == jnp.float32 and shape.shape == (2, 1)
        none, one = all_norms(jnp.zeros((3, 0)))[name], all_norms(jnp.ones((3, 1)))[name]
        assert none.tolist() == one.tolist() == [0, 0, 0]
        with pytest.raises(ValueError, match=r"weights must be \[..., S\]: got a scalar"):
            norm(1.0)
    assert jax.eval_shape(theory.softmax_jacobian, p).shape == (2, 1, 4, 4)
    assert jax.jit(theory.softmax_jacobian)(jnp.zeros((3, 0))).shape == (3, 0, 0)
    with pytest.raises(ValueError, match="alpha must be finite and at least 1 .*: got 0.5"):
        theory.entmax_jacobian(p, 0.5)
    with pytest.raises(ValueError, match=r"alpha must be a scalar: got shape \(2,\)"):
        theory.entmax_jacobian(p, jnp.ones(2))
