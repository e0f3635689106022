"""Each normalizer against the oracle, and what is particular to one; for what all share see
test_normalizer_properties.py, for derivatives test_normalizer_gradients.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import reference

pytestmark = pytest.mark.usefixtures("quick_compile")

HEADS = 2
OPTIONS = [  # "[N]" is a number a head, in this range
    *((name, {}) for name in ar.NORMALIZERS),
    ("sinks", {"logit": 1.5}),
    ("sinks", {"logit": "[N]", "range": (-2, 3)}),
    ("sigmoid", {"bias": -0.5}),
    ("sigmoid", {"bias": "[N]", "range": (-2, 2)}),
    ("entmax", {"alpha": 1}),
    ("entmax", {"alpha": 2.0}),
    ("entmax", {"alpha": "[N]", "range": (1, 2.5)}),
    ("top_k", {"k": 1}),
    ("top_k", {"k": 3}),
    ("hard", {"straight_through": False}),
    ("hard", {"straight_through": False, "temperature": "[N]", "range": (0.3, 2)}),
]


def filled(options, rng):
    options = dict(options)
    between = options.pop("range", None)
    return {k: rng.uniform(*between, size=HEADS) if v == "[N]" else v for k, v in options.items()}


def by_row(name, logits, options):
    """The oracle on ``logits [N, T, S]``, -inf is not visible."""
    out = np.zeros(logits.shape)
    for n, t in np.ndindex(*logits.shape[:2]):
        seen = logits[n, t] > -np.inf
        own = {k: v[n] if np.ndim(v) else v for k, v in options.items()}
        if seen.any():
            row = np.asarray(logits[n, t, seen], np.float64)
            out[n, t, seen] = reference.NORMALIZERS[name](row, **own)
    return out


def weights(name, logits, **options):
    return np.asarray(jax.jit(ar.normalizer(name, **options).normalize)(logits))


@pytest.mark.parametrize(("name", "options"), [x for x in OPTIONS if x[1]], ids=str)
def test_attend(name, options, draw, rng):
    drawn, options = draw(N=2, K=1, S=12), filled(options, rng)
    mask, bias = rng.random((2, 1, 3, 12)) < 0.6, rng.normal(size=(2, 1, 12))
    mask[1, 0, 1] = False
    given = dict(scale=2.0, mask=mask, bias=bias)
    context, want, lse = reference.attention(
        *drawn, normalizer=name, normalizer_options=options, **given
    )
    with jax.enable_x64(True):

        @jax.jit
        def run(q, k, v):
            own = given | {"normalizer": ar.normalizer(name, **options)}
            return *ar.attend_with_lse(q, k, v, **own), ar.attention_weights(q, k, **own)

        got = run(*drawn)
    for found, wanted in zip(got, (context, lse, want), strict=True):
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_rows_of_every_kind(name, options, dtype, rng):
    options = filled(options, rng)
    options = {k: v.astype(dtype) if np.ndim(v) else v for k, v in options.items()}
    with jax.enable_x64(dtype == "float64"):
        run = jax.jit(ar.normalizer(name, **options).normalize)
        for S in (40,) if dtype == "float64" else (1, 40):
            logits = rng.normal(size=(HEADS, 8, S)) * rng.choice([0.05, 1, 10], size=(8, 1))
            logits[:, :2] = logits[:, :2].round()  # ties
            logits[:, 2:] = np.where(rng.random(logits[:, 2:].shape) < 0.3, -np.inf, logits[:, 2:])
            logits[:, -1] = -np.inf
            logits = logits.astype(dtype)
            got = run(logits)
            assert got.dtype == dtype
            tolerance = 5e-15 if dtype == "float64" else 5e-7
            scale = max(1, np.square(logits[np.isfinite(logits)]).max(initial=0) / 40)
            want = by_row(name, logits, options)
            np.testing.assert_allclose(got, want, rtol=0, atol=scale * tolerance * 10)
        if dtype == "float32":
            assert run(np.zeros((0, HEADS, 3, 40), dtype)).shape == (0, HEADS, 3, 40)


def test_softmax_one_is_a_sink_of_zero_and_a_sink_is_a_key_without_a_value(draw, rng):  # case 14
    query, key, value = draw(batch=(), N=2, K=2, Dq=3, Dk=3).cast(jnp.float32)
    sinks = rng.normal(size=2).astype(np.float32)
    got = jax.jit(ar.attend)(query, key, value, normalizer=ar.normalizer("sinks", logit=sinks))
    more = [np.pad(x, ((0, 1), (0, 0), (0, 0))) for x in (key, value)]
    bias = np.zeros((2, 1, 6), np.float32)
    bias[..., -1] = sinks[:, None]
    np.testing.assert_allclose(got, jax.jit(ar.attend)(query, *more, bias=bias), atol=1e-6)
    logits = rng.normal(size=(1, 3, 7)) * 5
    one = weights("softmax_one", logits)
    np.testing.assert_array_equal(one, weights("sinks", logits, logit=0.0))
    np.testing.assert_allclose(one.sum(-1), 1 - 1 / (1 + np.exp(logits).sum(-1)), atol=1e-6)
    plain = weights("sinks", logits, logit=-np.inf)
    np.testing.assert_allclose(plain, weights("softmax", logits), atol=1e-6)
    assert not weights("sinks", np.float32([[-np.inf, -np.inf]]), logit=-np.inf).any()


def test_sigmoid_and_relu_count_visible_keys():
    logits = np.array([[0.0, 0.0, 0.0, -np.inf], [2.0, -np.inf, -np.inf, -np.inf]])
    np.testing.assert_allclose(weights("sigmoid", logits)[0], [0.25, 0.25, 0.25, 0], atol=1e-7)
    np.testing.assert_allclose(weights("relu", logits + 3)[0], [1, 1, 1, 0])
    np.testing.assert_allclose(weights("relu_squared", logits + 3)[:, 0], [3, 25])
    np.testing.assert_allclose(weights("relu", np.float32([[3, -3e38, -np.inf]])), [[1.5, 0, 0]])


def test_known_values_of_sparsemax_and_entmax():
    """Two keys whose logits differ by d < 2: 1.5-entmax is ``(b +- a)^2`` with a = d / 4 and b =
    sqrt(1/2 - a^2); sparsemax ``(1 +- d) / 2``, clipped (Martins and Astudillo 2016)."""
    gap = np.array([0.0, 0.3, 0.99, 1.7, 2.01])
    logits = np.float32(np.stack([gap, 0 * gap], -1))
    want = np.clip(np.stack([1 + gap, 1 - gap], -1) / 2, 0, 1)
    np.testing.assert_allclose(weights("sparsemax", logits), want, atol=2e-7)
    a = gap / 4
    b = np.sqrt(0.5 - a * a)
    want = np.stack([b + a, b - a], -1) ** 2
    want[-1] = 1, 0
    np.testing.assert_allclose(weights("entmax15", logits), want, atol=2e-7)


def test_entmax_equals_softmax_entmax15_and_sparsemax_and_goes_smoothly_between(rng):
    with jax.enable_x64(True):
        logits = rng.normal(size=(1, 20, 9)) * rng.choice([0.2, 1, 5], size=(20, 1))
        run = jax.jit(lambda alpha: ar.normalizer("entmax", alpha=alpha).normalize(logits))
        for alpha, name in ((1.0, "softmax"), (1.5, "entmax15"), (2.0, "sparsemax")):
            np.testing.assert_allclose(run(alpha), weights(name, logits), atol=4e-15)
        at_one = run(1.0)
        for exponent in range(3, 16):  # the change by alpha is at most max p ln(p)^2 of order 1
            step = 10.0**-exponent
            for alpha in (1 + step, 1 - step):
                np.testing.assert_allclose(run(alpha), at_one, rtol=0, atol=20 * step + 4e-15)
        dense = run(0.7)
        np.testing.assert_allclose(dense.sum(-1), 1, atol=1e-14)
        powers = dense**-0.3 / -0.3  # l_j - threshold for alpha = 0.7
        differences = np.diff(powers, axis=-1) - np.diff(logits, axis=-1)
        np.testing.assert_allclose(differences, 0, atol=1e-11 * np.abs(powers).max())


def test_top_k_keeps_exactly_k_and_the_first_of_equal_logits(rng):
    logits = rng.integers(0, 3, size=(1, 50, 11)).astype(np.float32)
    got = weights("top_k", logits, k=4)
    assert ((got > 0).sum(-1) == 4).all()
    np.testing.assert_allclose(got, by_row("top_k", logits, {"k": 4}), atol=1e-6)
    zeros = np.float32([[-0.0, 0.0, -0.0, 0.0, -1.0]])
    np.testing.assert_array_equal(weights("top_k", zeros, k=2), [[0.5, 0.5, 0, 0, 0]])
    np.testing.assert_array_equal(weights("hard", zeros), [[1, 0, 0, 0, 0]])
    few = np.where(np.arange(11) < 3, logits, -np.inf)
    np.testing.assert_allclose(weights("top_k", few), weights("softmax", few), atol=1e-6)
    np.testing.assert_allclose(
        weights("top_k", logits, k=99), weights("softmax", logits), atol=1e-6
    )


@pytest.mark.parametrize("offset", [0.0, 1e30])
def test_hard_draws_each_key_as_often_as_softmax_says(offset, seed, rng):
    draws, S = 20000, 5
    logits = (rng.normal(size=S) * 1.5 if not offset else np.zeros(S)).astype(np.float32)
    visible = np.arange(S) != 3
    wanted = np.where(visible, np.exp(logits), 0)
    wanted = wanted / wanted.sum()
    rows = np.where(visible, logits + np.float32(offset), -np.inf)
    rows = np.broadcast_to(rows, (1, draws, S)).astype(np.float32)
    hard = ar.normalizer("hard", key=jax.random.key(seed), temperature=0.5)
    got = np.asarray(jax.jit(lambda hard, x: hard.normalize(x))(hard, rows))
    assert set(np.unique(got)) == {0, 1} and (got.sum(-1) == 1).all()
    deviation = np.sqrt(wanted * (1 - wanted) / draws)
    z = (got[0].mean(0) - wanted) / np.where(visible, deviation, 1)
    assert np.abs(z).max() < 5, z
    assert not got[..., 3].any()


def test_gumbel_softmax_is_softmax_of_noisy_logits(rng, seed):
    logits, key = jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32), jax.random.key(seed)
    noisy = logits + jax.random.gumbel(key, logits.shape)
    options = dict(key=key, temperature=0.7)
    soft = weights("hard", logits, straight_through=False, **options)
    np.testing.assert_allclose(soft, jax.nn.softmax(noisy / 0.7), atol=1e-5)
    one_hot = weights("hard", logits, **options)
    np.testing.assert_array_equal(one_hot, jax.nn.one_hot(jnp.argmax(noisy, -1), 5))
    other = weights("hard", logits, straight_through=False, **options | {"key": jax.random.key(1)})
    assert np.abs(other - soft).max() > 1e-3
    query = jnp.asarray(rng.normal(size=(2, 4, 1, 3)), jnp.float32)

    @jax.jit
    @jax.vmap
    def run(q, key):
        return ar.attention_weights(q, q, normalizer=ar.normalizer("hard", key=key))

    drawn = run(query, jax.random.split(key))
    assert (drawn.sum(-1) == 1).all()


WRONG = [
    ("entmax", {"alpha": 0.5}, ValueError, "alpha of entmax must be at least 1 .*: got 0.5"),
    ("entmax", {"alpha": float("nan")}, ValueError, "alpha of entmax .*: got nan"),
    ("entmax", {"alpha": float("inf")}, ValueError, "alpha of entmax .*: got inf"),
    ("entmax", {"alfa": 1.5}, TypeError, "unknown option of normalizer 'entmax' 'alfa': did you"),
    ("top_k", {"k": 0}, ValueError, "k of top_k must be at least 1: got 0"),
    ("top_k", {"k": 2.0}, TypeError, "k of top_k must be a Python integer: got float"),
    ("hard", {"temperature": 0.0}, ValueError, "temperature of hard must be positive .*: got 0.0"),
    ("hard", {"temperature": -1}, ValueError, "temperature of hard must be positive .*: got -1"),
    ("hard", {"key": 0}, TypeError, "key of hard must be a jax.random key .*: got 0"),
    ("hard", {"straight_through": 1}, TypeError, "straight_through of hard .*: got 1"),
    ("sigmoid", {"bias": float("inf")}, ValueError, "bias of sigmoid must be finite .*: got inf"),
    ("sinks", {"logit": float("nan")}, ValueError, "logit of sinks .*: got nan"),
    ("sparsemax", {"k": 3}, TypeError, "unknown option of normalizer 'sparsemax' 'k'"),
    ("sparse_max", {}, ValueError, "unknown normalizer 'sparse_max': did you mean 'sparsemax'"),
]


@pytest.mark.parametrize(("name", "options", "error", "message"), WRONG, ids=str)
def test_wrong_options_are_one_clear_line(name, options, error, message):
    with pytest.raises(error, match=message) as caught:
        ar.normalizer(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "option"),
    [("sinks", "logit"), ("sigmoid", "bias"), ("entmax", "alpha"), ("hard", "temperature")],
)
def test_a_number_a_head_needs_as_many_numbers_as_heads(name, option):
    x = jnp.ones((1, 3, 4, 2))
    for shape in ((3,), (1,), (4, 1)):
        given = ar.normalizer(name, **{option: jnp.full(shape, 1.5)})
        with pytest.raises(ValueError, match=rf"{option} of .* 4 heads: got shape \({shape[0]},"):
            jax.eval_shape(lambda given=given: ar.attend(x, x, x, normalizer=given))
