"""Feature maps: the kernels that they estimate, their variance, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import feature_maps
from attn_research.feature_maps import Performer, elu_plus_one, random_features
from attn_research.linear import linear_attention


def test_elu_plus_one(rng):
    x = np.concatenate([rng.normal(size=50) * 3, [0.0, -20.0, -80.0]]).astype(np.float32)
    want = np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0), dtype=np.float64))
    np.testing.assert_allclose(elu_plus_one(x), want, rtol=1e-6)
    slope = jax.vmap(jax.grad(elu_plus_one))(jnp.asarray(x))
    np.testing.assert_allclose(slope, np.where(x > 0, 1, want), rtol=1e-6)


@pytest.mark.parametrize("name", ["elu_plus_one", "performer"])
def test_logarithms_are_those_of_the_features(name, rng):
    x = jnp.asarray(rng.normal(size=(7, 4)), jnp.float32)
    phi = elu_plus_one
    if name == "performer":
        phi = Performer(random_features(jax.random.key(0), 4, 6), scale=0.7)
    want = np.log(np.asarray(phi(x), np.float64))
    for of_keys in (True, False):
        got = feature_maps.features(phi, x, of_keys).log - want  # constant: over all, in a row
        got = got - got[..., :1] if not of_keys else got - got[0, 0]
        np.testing.assert_allclose(got, np.zeros_like(want), atol=1e-5)


def draws(seed, orthogonal, num_features, number, q, k, scale):
    """``number`` independent estimates of exp(scale q . k)."""

    @jax.jit
    @jax.vmap
    def estimate(key):
        projection = random_features(key, len(q), num_features, orthogonal)
        phi = Performer(projection, scale)
        return phi(q) @ phi(k)

    return np.asarray(estimate(jax.random.split(jax.random.key(seed), number)), np.float64)


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("num_features", [3, 11])  # fewer than D, and no multiple of it
def test_performer_is_unbiased(orthogonal, num_features, rng, seed):
    q, k = (jnp.asarray(0.5 * x / np.linalg.norm(x), jnp.float32) for x in rng.normal(size=(2, 5)))
    scale, factor = (1.0, 1.0) if orthogonal else (None, 5**-0.5)
    got = draws(seed, orthogonal, num_features, 4_000, q, k, scale)
    z = (got.mean() - np.exp(factor * float(q @ k))) / (got.std() / len(got) ** 0.5)
    assert abs(z) < 5.5


def test_orthogonal_directions_have_less_variance(rng, seed):
    """At |q + k| = 0.8 with m = D = 16 the ratio was 0.82, of 8,000 draws 0.02 around it."""
    x = rng.normal(size=16)
    q = k = jnp.asarray(0.4 * x / np.linalg.norm(x), jnp.float32)
    orthogonal, independent = (draws(seed, o, 16, 8_000, q, k, 1.0).var() for o in (True, False))
    assert orthogonal < 0.95 * independent


def test_directions_are_orthogonal_and_as_long_as_normal_ones(seed):
    w = np.asarray(random_features(jax.random.key(seed), 8, 20 * 8 + 3), np.float64)
    assert w.shape == (163, 8)
    for block in (*w[:160].reshape(20, 8, 8), w[160:]):
        gram = block @ block.T
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-4)
    squares = (w**2).sum(-1)  # chi-squared with 8 degrees: mean 8, variance 16
    assert abs(squares.mean() - 8) < 5.5 * (16 / 163) ** 0.5
    assert 4 < squares.var() < 45


@pytest.mark.usefixtures("quick_compile")
def test_performer_approaches_softmax_attention(draw, seed):
    query, key, value = draw(batch=(), T=4, S=7, N=2, Dq=8, Dk=8).cast(jnp.float32)
    query, key = query / 2, key / 2
    want = ar.attend(query, key, value)

    def error(num_features):
        @jax.jit
        @jax.vmap
        def square(rng):
            phi = Performer(random_features(rng, 8, num_features, orthogonal=False))
            return jnp.square(linear_attention(query, key, value, feature_map=phi) - want).mean()

        return float(square(jax.random.split(jax.random.key(seed), 30)).mean())

    few, more, many = (error(m) for m in (16, 128, 1024))  # the mean square falls like 1 / m
    assert more < few / 2 and many < more / 2 and many < 3e-3, (few, more, many)


def test_what_is_refused(draw):
    inputs = draw().cast(jnp.float32)
    projection = random_features(jax.random.key(0), 4, 6)
    for feature_map, error, message in (
        ("elu", ValueError, "unknown feature_map 'elu'.*'elu_plus_one'.*a function, or ar.Perf"),
        (3, TypeError, "feature_map must be a name, a function or ar.Performer: got int"),
        (Performer(projection[0]), ValueError, r"projection of Performer must be \[m, D\].*\(4,\)"),
        (Performer(projection, scale=-1.0), ValueError, "scale .* a number above 0: got -1.0"),
        (Performer(projection, scale=jnp.ones(2)), ValueError, "scale .* a number above 0"),
        (Performer(projection[:, :3]), ValueError, r"for 3 features: query has 4.*\(rng, 4, 6\)"),
        (lambda x: x.sum(-1), ValueError, r"must take \[..., D\] to \[..., F\].*\[3, 2, 4\] into"),
        (lambda x: x[:1], ValueError, r"must take \[..., D\] to \[..., F\]"),
    ):
        with pytest.raises(error, match=message):
            linear_attention(*inputs, feature_map=feature_map)
    with pytest.raises(ValueError, match="as many features: query, of 4, gets 4; key, of 6, 6"):
        linear_attention(*draw(Dk=6).cast(jnp.float32))
    with pytest.raises(ValueError, match="num_features must be a positive integer: got 0"):
        random_features(jax.random.key(0), 4, 0)
