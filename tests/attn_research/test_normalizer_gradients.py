"""Derivatives of the normalizers: closed forms, finite differences of the oracle, both modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import reference

pytestmark = pytest.mark.usefixtures("quick_compile")

DIFFERENTIABLE = [
    *((name, {}) for name in ar.NORMALIZERS if name != "hard"),
    ("sinks", {"logit": 1.0}),
    ("sigmoid", {"bias": -0.5}),
    ("entmax", {"alpha": 1.0}),
    ("entmax", {"alpha": 1.2}),
    ("entmax", {"alpha": 2.0}),
    ("top_k", {"k": 3}),
    ("hard", {"straight_through": False, "temperature": 0.7}),
]


@pytest.mark.parametrize(("name", "options"), DIFFERENTIABLE, ids=str)
def test_finite_differences_and_both_modes_to_second_order(name, options, rng):
    """By the logits and by the options that are numbers."""
    numbers = {k: v for k, v in options.items() if isinstance(v, float)}
    static = {k: v for k, v in options.items() if k not in numbers}
    logits, pull, step = rng.normal(size=(3, 1, 3, 10))
    logits[0, 0, 4] = -np.inf
    moved = {k: rng.normal() for k in numbers if (k, numbers[k]) != ("alpha", 1.0)}
    still = {k: v for k, v in numbers.items() if k not in moved}  # the oracle ends at alpha = 1

    def along(h):
        total = 0.0
        own = {k: v + h * moved.get(k, 0) for k, v in numbers.items()}
        for t in range(3):
            seen = logits[0, t] > -np.inf
            row = (logits + h * step)[0, t, seen]
            total += reference.NORMALIZERS[name](row, **own, **static) @ pull[0, t, seen]
        return total

    with jax.enable_x64(True):

        @jax.jit
        def run(logits, step, moving):
            def loss(logits, moving):
                made = ar.normalizer(name, **static, **still, **moving)
                return (made.normalize(logits) * pull).sum()

            def gradient(*x):
                return jax.grad(loss, (0, 1))(*x)

            tangents = (step, moved)
            forward = jax.jvp(loss, (logits, moving), tangents)[1]
            return forward, *jax.jvp(gradient, (logits, moving), tangents)

        at = {k: numbers[k] for k in moved}
        forward, gradient, second = run(logits, step, at)
        pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves((step, moved)), strict=True)
        reverse = sum(float((g * d).sum()) for g, d in pairs)
        assert reverse == pytest.approx(float(forward), rel=1e-10, abs=1e-12)
        h = 1e-6
        assert reverse == pytest.approx((along(h) - along(-h)) / (2 * h), rel=1e-6, abs=1e-8)

        ends = [
            run(logits + s * step, step, {k: at[k] + s * moved[k] for k in at})[1] for s in (h, -h)
        ]
        wanted = jax.tree.map(lambda a, b: (a - b) / (2 * h), *ends)
        for mine, want in zip(jax.tree.leaves(second), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(mine, want, rtol=1e-5, atol=1e-6)


def slopes(p, alpha):
    return np.where(p > 0, np.where(p > 0, p, 1) ** (2 - alpha), 0)


def projected(g):
    return np.diag(g) - np.outer(g, g) / g.sum()


CLOSED_FORMS = {
    "softmax": lambda p, x: np.diag(p) - np.outer(p, p),
    "softmax_one": lambda p, x: np.diag(p) - np.outer(p, p),
    "sinks": lambda p, x: np.diag(p) - np.outer(p, p),
    "sigmoid": lambda p, x: np.diag(p * (1 - p)),
    "relu": lambda p, x: np.diag((x > 0) / len(x)),
    "relu_squared": lambda p, x: np.diag(2 * np.maximum(x, 0) / len(x)),
    "sparsemax": lambda p, x: projected((p > 0).astype(float)),
    "entmax15": lambda p, x: projected(np.sqrt(p)),
    "entmax": lambda p, x: projected(slopes(p, 1.5)),
    "top_k": lambda p, x: np.diag(p) - np.outer(p, p),
    "hard": lambda p, x: projected(reference.NORMALIZERS["softmax"](x)),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_jacobian_is_the_closed_form(name, rng):
    with jax.enable_x64(True):
        logits = rng.normal(size=12) * 1.5
        normalize = ar.normalizer(name).normalize
        weights, forward, reverse = jax.jit(
            lambda x: (normalize(x), jax.jacfwd(normalize)(x), jax.jacrev(normalize)(x))
        )(logits)
        want = CLOSED_FORMS[name](np.asarray(weights), logits)
        np.testing.assert_allclose(forward, want, atol=1e-13)
        np.testing.assert_allclose(reverse, want, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_jacobian_of_entmax_keeps_its_digits_where_slopes_are_steep(dtype):
    """alpha = 3: two keys with p_2 = 1e-3 have g = (1.001.., 1000): J = g_1 g_2 / (g_1 + g_2)."""
    with jax.enable_x64(dtype == "float64"):
        p = np.array([1 - 1e-3, 1e-3])
        logits = jnp.asarray(p**2 / 2, dtype)
        normalize = ar.normalizer("entmax", alpha=3.0).normalize
        g = 1 / np.asarray(jax.jit(normalize)(logits), np.float64)
        want = g[0] * g[1] / g.sum() * np.array([[1, -1], [-1, 1]])
        for jacobian in (jax.jacfwd, jax.jacrev):
            got = jax.jit(jacobian(normalize))(logits)
            np.testing.assert_allclose(got, want, rtol=5e-6)


def closed_form_by_alpha(p, alpha):
    """Derive ``p = (1 + e u)^(1 / e)``, e = alpha - 1, by e, then by the threshold in u."""
    e, p = np.longdouble(alpha) - 1, p.astype(np.longdouble)
    log, g = np.log(np.where(p > 0, p, 1)), slopes(p, alpha)
    own = np.where(p > 0, -p * log / e + (p - g) / e**2, 0)
    return np.float64(own - g * own.sum() / g.sum())


def test_entmax_by_alpha(rng):
    """Finite differences of the oracle; at alpha = 1 the limit ``-p (ln^2 p - mean ln^2 p) / 2``,
    and nothing jumps there."""
    logits = rng.normal(size=8) * 1.5
    with jax.enable_x64(True):
        by_alpha = jax.jit(
            jax.jacfwd(lambda alpha: ar.normalizer("entmax", alpha=alpha).normalize(logits))
        )
        for alpha in (1.05, 1.3, 1.5, 2.0, 2.4):
            h = 1e-6
            ends = [reference.NORMALIZERS["entmax"](logits, alpha + s * h) for s in (1, -1)]
            want = (ends[0] - ends[1]) / (2 * h)
            np.testing.assert_allclose(by_alpha(alpha), want, rtol=1e-5, atol=1e-7)
            exact = closed_form_by_alpha(reference.NORMALIZERS["entmax"](logits, alpha), alpha)
            np.testing.assert_allclose(by_alpha(alpha), exact, atol=1e-13)
        p = reference.NORMALIZERS["softmax"](logits)
        square = np.log(p) ** 2
        limit = -p * (square - p @ square) / 2
        np.testing.assert_allclose(by_alpha(1.0), limit, atol=1e-14)
        for step in (1e-4, 1e-6, 1e-8, 1e-12, 1e-15):
            for alpha in (1 + step, 1 - step):
                np.testing.assert_allclose(by_alpha(alpha), limit, atol=100 * step + 1e-12)


def test_entmax_of_a_large_alpha_has_finite_gradients(rng):
    """Slopes p^(2 - alpha) of more than the dtype holds saturate."""
    normalize = ar.normalizer("entmax", alpha=jnp.float32(100)).normalize
    logits = np.float32([[0, 0, 0, -1, -9], [0, -1e-4, -1e-3, -1e-2, -np.inf]])
    pull = rng.normal(size=(2, 5)).astype(np.float32)
    weights, gradient = jax.jit(lambda x: (normalize(x), jax.vjp(normalize, x)[1](pull)[0]))(logits)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(weights[0], [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=1e-6)
    assert np.isfinite(gradient).all()


def test_gradients_by_options_that_differ_by_head(draw, rng):
    """Each head's own, through attend: equal to that of the head alone."""
    query, key, value = draw(batch=()).cast(jnp.float32)
    for name, option in (("sinks", "logit"), ("sigmoid", "bias"), ("entmax", "alpha")):

        def loss(x, q, k, v, name=name, option=option):
            given = ar.normalizer(name, **{option: x})
            return jnp.sin(ar.attend(q, k, v, normalizer=given)).sum()

        x = jnp.asarray(rng.uniform(1.1, 1.9, size=2), jnp.float32)
        got = jax.jit(jax.grad(loss))(x, query, key, value)
        alone = jax.jit(jax.grad(loss))
        for n in range(2):
            want = alone(x[n], *(y[:, n : n + 1] for y in (query, key, value)))
            np.testing.assert_allclose(got[n], want, rtol=1e-4, atol=1e-6)
            assert abs(want) > 1e-5


def test_sink_takes_from_each_key_in_proportion(rng):
    with jax.enable_x64(True):
        logits, sink = rng.normal(size=6), rng.normal()
        normalize = jax.jit(lambda s: ar.normalizer("sinks", logit=s).normalize(logits))
        got = jax.jit(jax.jacfwd(normalize))(sink)
        total = np.exp(sink) + np.exp(logits).sum()
        want = -np.exp(logits) / total * np.exp(sink) / total
        np.testing.assert_allclose(got, want, atol=1e-15)


def test_hard_has_the_derivative_of_softmax_at_its_temperature(rng):
    logits, pull = rng.normal(size=(2, 1, 3, 5)).astype(np.float32)

    def gradients(normalize):
        return jax.jit(jax.grad(lambda x, t: (normalize(x, t) * pull).sum(), (0, 1)))(logits, 0.6)

    got = gradients(lambda x, t: ar.normalizer("hard", temperature=t).normalize(x))
    want = gradients(lambda x, t: jax.nn.softmax(x / t))
    for mine, wanted in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-6)
