"""Closed forms against samples: means must lie within 6 standard errors (by chance 2e-9)."""

import math

import jax
import numpy as np
import pytest

import attn_research as ar
from attn_research import theory

SAMPLES = 200_000


def assert_mean(samples, want):
    """The mean of independent samples (along the first axis) is ``want``."""
    error = samples.std() / math.sqrt(len(samples))
    assert abs(samples.mean() - want) < 6 * error + 1e-12 * abs(want), (samples.mean(), want, error)
    assert error < 0.1 * abs(want), "too few samples to tell"


def softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def unit(rng, *shape):
    """Entries of mean 0 and variance 1 from one of three distributions."""
    kind = rng.integers(3)
    if kind == 0:
        return rng.normal(size=shape)
    if kind == 1:
        return rng.choice([-1.0, 1.0], size=shape)
    return rng.uniform(-math.sqrt(3), math.sqrt(3), size=shape)


def test_variance_of_a_dot_product(rng):
    dim = int(rng.integers(1, 12))
    stds, scale = rng.uniform(0.5, 2, size=2), rng.uniform(0.1, 2)
    q, k = (std * unit(rng, SAMPLES, dim) for std in stds)
    want = theory.dot_variance(
        dim, query_variance=stds[0] ** 2, key_variance=stds[1] ** 2, scale=scale
    )
    assert_mean(np.square(scale * (q * k).sum(-1)), want)


def test_unit_vectors_have_variance_d():
    assert theory.dot_variance(512) == 512
    assert theory.dot_variance(512, scale=512**-0.5) == pytest.approx(1, rel=1e-15)
    assert theory.dot_variance(512, scale=1 / 512) == 1 / 512


def test_variance_of_a_cosine(rng):
    dim = int(rng.integers(1, 12))
    q, k = rng.uniform(0.5, 3, size=dim), rng.normal(size=(SAMPLES, dim))
    cosine = k @ q / np.linalg.norm(k, axis=-1) / np.linalg.norm(q)
    assert_mean(np.square(3 * cosine), theory.cosine_variance(dim, scale=3))


@pytest.mark.parametrize("init", theory.INITS)
def test_variance_of_a_kernel_as_jax_draws_it(init, seed):
    kernel = getattr(jax.nn.initializers, init)()(jax.random.key(seed), (300, 500))
    want = theory.kernel_variance(init, 300, 500)
    assert_mean(np.square(np.float64(kernel)).ravel(), want)


@pytest.mark.parametrize("init", theory.INITS)
@pytest.mark.parametrize("inputs", ["independent", "the same, normalized"])
def test_variance_of_a_projected_dot(init, inputs, rng):
    dq, dk, dim, heads = (int(n) for n in rng.integers(3, 7, size=4))
    count = SAMPLES // 4
    x, y = unit(rng, count, dq), unit(rng, count, dk)
    if inputs != "independent":
        dk, x = dq, rng.normal(size=(count, dq)) + 3
        x *= math.sqrt(dq) / np.linalg.norm(x, axis=-1, keepdims=True)
        y = x
    fan_out = heads * dim

    def kernels(fan_in):
        std = math.sqrt(theory.kernel_variance(init, fan_in, fan_out))
        shape = (count, fan_in, dim)
        if init.endswith("uniform"):
            return rng.uniform(-std * math.sqrt(3), std * math.sqrt(3), size=shape)
        return std * rng.normal(size=shape)

    q = np.einsum("sa,sae->se", x, kernels(dq))
    k = np.einsum("sa,sae->se", y, kernels(dk))
    want = theory.projected_dot_variance(dq, dk, dim, fan_out=fan_out, init=init, scale=0.5)
    assert_mean(np.square(0.5 * (q * k).sum(-1)), want)


def test_fan_out_of_one_head_is_its_dimension():
    one = theory.projected_dot_variance(512, 512, 64, init="glorot_normal")
    assert one == theory.projected_dot_variance(512, 512, 64, fan_out=64, init="glorot_normal")
    assert one == pytest.approx(64 * (512 * 2 / (512 + 64)) ** 2)


@pytest.mark.parametrize("init", theory.INITS)
def test_variance_of_a_general_score(init, rng):
    dq, dk = (int(n) for n in rng.integers(3, 7, size=2))
    q, k = unit(rng, SAMPLES, dq), unit(rng, SAMPLES, dk)
    kernel = math.sqrt(theory.kernel_variance(init, dk, dq)) * unit(rng, SAMPLES, dq, dk)
    logits = 0.5 * np.einsum("sa,sab,sb->s", q, kernel, k)
    assert_mean(np.square(logits), theory.general_variance(dq, dk, init=init, scale=0.5))


@pytest.mark.parametrize("score", ["general", "projected_dot", "additive"])
def test_variance_of_the_scores_that_this_library_initializes(score, rng, seed):
    dq, dk, count = 6, 5, 30_000
    params = ar.init_score(score, jax.random.key(seed), dq, dk, num_heads=count).params
    params = {name: np.float64(x) for name, x in params.items()}
    x, y = rng.choice([-1.0, 1.0], size=(count, dq)), rng.choice([-1.0, 1.0], size=(count, dk))
    if score == "general":
        logits = np.einsum("sa,sab,sb->s", x, params["kernel"], y)
        want = theory.general_variance(dq, dk)
    else:
        q = np.einsum("sa,sae->se", x, params["query"])
        k = np.einsum("sa,sae->se", y, params["key"])
        if score == "projected_dot":
            logits, want = (q * k).sum(-1), theory.projected_dot_variance(dq, dk, dk)
        else:
            logits = (params["v"] * np.tanh(q + k)).sum(-1)
            want = theory.additive_variance(1, math.sqrt(2))
    assert_mean(np.square(logits), want)


def test_variance_of_the_additive_score(rng):
    dim, std = int(rng.integers(1, 8)), 10 ** rng.uniform(-1, 1)
    v = rng.normal(size=dim)
    logits = np.tanh(std * rng.normal(size=(SAMPLES, dim))) @ v
    assert_mean(np.square(logits), theory.additive_variance(np.linalg.norm(v), std))


def test_second_moment_of_tanh():
    x, weights = np.polynomial.hermite_e.hermegauss(150)
    for std in (1e-3, 0.1, 0.3, 0.5):  # Gauss-Hermite is exact to rounding for these
        want = weights @ np.tanh(std * x) ** 2 / math.sqrt(2 * math.pi)
        assert theory.tanh_second_moment(std) == pytest.approx(want, rel=1e-12)
    # By adaptive quadrature in 40 digits.
    assert theory.tanh_second_moment(1.0) == pytest.approx(0.39429449039784117, rel=1e-14)
    assert theory.tanh_second_moment(1.001) == pytest.approx(0.39465792501442902, rel=1e-14)
    assert theory.tanh_second_moment(100.0) == pytest.approx(0.99202148248051304, rel=1e-14)
    assert theory.tanh_second_moment(0) == 0
    assert theory.tanh_second_moment(1e6) == pytest.approx(1 - math.sqrt(2 / math.pi) / 1e6)


def test_steins_identity(rng):
    n, std = int(rng.integers(2, 12)), rng.uniform(0.3, 6)
    z = std * rng.normal(size=(SAMPLES, n))
    p = softmax(z)
    attended, traces = (p * z).sum(-1), 1 - (p**2).sum(-1)
    error = (attended - std**2 * traces).std() / math.sqrt(SAMPLES)
    assert abs(attended.mean() - theory.stein_mean_logit(traces.mean(), std)) < 6 * error


def test_expected_maximum_of_normals(rng):
    pi = math.pi
    known = {
        1: 0,
        2: 1 / math.sqrt(pi),
        3: 3 / (2 * math.sqrt(pi)),
        4: 3 / math.sqrt(pi) * (1 / 2 + math.asin(1 / 3) / pi),
        5: 5 / (2 * math.sqrt(pi)) * (1 / 2 + 3 * math.asin(1 / 3) / pi),
        # By adaptive quadrature in 40 digits.
        10: 1.538752730835172856,
        1000: 3.2414357691334408614,
        10**6: 4.8628974861964627212,
        10**15: 8.0111407227787421559,
    }
    for n, want in known.items():
        assert theory.expected_max_of_normals(n) == pytest.approx(want, rel=1e-13, abs=1e-15), n
    n = int(rng.integers(2, 30))
    assert_mean(rng.normal(size=(SAMPLES, n)).max(-1), theory.expected_max_of_normals(n))


def test_softmax_of_normal_logits(rng):
    for std in 10 ** rng.uniform(-1, 1.3, size=3):
        n = int(rng.integers(2, 40))
        z = std * rng.normal(size=(SAMPLES // 2, n))
        p = softmax(z)
        lse = z.max(-1) + np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1))
        assert_mean(1 - (p**2).sum(-1), theory.expected_trace(n, std))
        assert_mean(lse, theory.expected_log_sum_exp(n, std))
        assert_mean(lse - (p * z).sum(-1), theory.expected_entropy(n, std))


def test_softmax_of_equal_logits_and_of_one():
    for n in (1, 2, 37, 10**6):
        assert theory.expected_trace(n, 0) == pytest.approx(1 - 1 / n, abs=1e-13)
        assert theory.expected_log_sum_exp(n, 0) == pytest.approx(math.log(n), abs=1e-12)
        assert theory.expected_entropy(n, 0) == pytest.approx(math.log(n), abs=1e-12)
    for std in (0.3, 7.0):
        assert theory.expected_trace(1, std) == pytest.approx(0, abs=1e-13)
        assert theory.expected_log_sum_exp(1, std) == pytest.approx(0, abs=1e-12)
    for std in (0.0, 1.0, 100.0, 1000.0):
        assert 0 <= theory.expected_entropy(1, std) < 1e-13
        assert 0 <= theory.expected_trace(1, std) < 1e-13


def test_the_trace_of_two_keys():
    """``2 p q = (1 - tanh^2(g / 2)) / 2`` for the gap g of the logits, of variance 2 std^2."""
    for std in (1e-3, 0.1, 1.0, 3.0, 30.0, 1000.0):
        want = (1 - theory.tanh_second_moment(std / math.sqrt(2))) / 2
        assert theory.expected_trace(2, std) == pytest.approx(want, abs=1e-13)


def test_the_trace_is_the_derivative_of_the_mean_log_sum_exp(rng):
    """z = std x: d lse / d std = sum p x, and Stein. For n that no sample reaches."""
    for n in (3, 10**6, 10**12):
        std, h = 10 ** rng.uniform(-0.5, 1.5), 1e-3
        above, below = (theory.expected_log_sum_exp(n, std + d) for d in (h, -h))
        want = (above - below) / (2 * h)
        assert std * theory.expected_trace(n, std) == pytest.approx(want, rel=1e-5)


def test_saturation_by_samples(rng):
    n, std = int(rng.integers(2, 20)), 25.0
    z = std * rng.normal(size=(SAMPLES, n))
    traces = 1 - (softmax(z) ** 2).sum(-1)
    first_order = 1 - math.pi**2 / 12 / std**2  # what is left is of order std^-3
    assert_mean(traces, theory.saturated_trace(n, std) * first_order)
    assert np.median(traces) < traces.mean() / 5


def test_limits_for_large_logits():
    for n in (2, 10, 50):
        ratio = theory.expected_trace(n, 200) / theory.saturated_trace(n, 200)
        assert (1 - ratio) * 200**2 == pytest.approx(math.pi**2 / 12, rel=0.02)
        entropy = theory.expected_entropy(n, 200)
        assert theory.saturated_entropy(n, 200) == pytest.approx(entropy, rel=0.01)


def test_entropy_of_small_logits_to_fourth_order():
    for n in (2, 10, 100):
        error, half = (
            theory.expected_entropy(n, std) - theory.unsaturated_entropy(n, std)
            for std in (0.2, 0.1)
        )
        assert 13 < error / half < 19


def test_freezing():
    """Towards the limits of both phases as n grows, at fixed std / freezing_std."""
    errors = {below: [] for below in (0.5, 2.0)}
    for n in (10**2, 10**4, 10**8, 10**14):
        for ratio in errors:
            std = ratio * theory.freezing_std(n)
            trace = abs(theory.expected_trace(n, std) - min(1, 1 / ratio))
            entropy = theory.expected_entropy(n, std) / math.log(n) - max(0, 1 - ratio**2)
            errors[ratio].append((trace, abs(entropy)))
    for ratio, found in errors.items():
        assert (np.diff(found, axis=0) < 0).all(), ratio
        assert max(found[-1]) < 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.dot_variance(0), "dim must be a finite number of at least 1: got 0"),
        (lambda: theory.expected_trace(4, -1.0), "std must .* at least 0: got -1.0"),
        (lambda: theory.expected_trace(4, math.nan), "std must .* got nan"),
        (lambda: theory.saturated_trace(4, 0.0), "std must be a finite number above 0: got 0.0"),
        (lambda: theory.expected_max_of_normals(0.5), "n must .* at least 1: got 0.5"),
        (lambda: theory.saturated_trace(1e16, 9.0), r"n must be at most 1e15: got 1e\+16"),
        (lambda: theory.kernel_variance("glorot", 4, 4), "unknown init 'glorot': did you mean"),
    ],
)
def test_what_cannot_be_is_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
