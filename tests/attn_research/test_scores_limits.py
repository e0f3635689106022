"""Scores at their limits: near and far vectors, long, short and zero ones, in float32."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar

NORMALIZED = ["cosine", "qk_norm", "qk_rms_norm"]
DISTANCES = ["squared_distance", "gaussian"]
NEW = ["concat", "normed_additive", *NORMALIZED, *DISTANCES]


def logits(query, key, **options):
    """``[N, T, S]`` (``[T, S]`` for one head), scaled: the lse of a key alone is its logit."""

    def of_one(k):
        return ar.attend_with_lse(query, k[None], k[None], **options)[1]

    return jax.vmap(of_one, out_axes=-1)(key)


def single(params):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)


def clusters(rng, centres):
    """float32 queries and keys with a spread of 1e-3 around each centre, and them in float64."""
    points = [
        np.concatenate([c + 1e-3 * rng.normal(size=(n, 8)) for c in centres]).astype(np.float32)
        for n in (3, 5)
    ]
    return points, [x.astype(np.float64) for x in points]


@pytest.mark.parametrize("centres", [[20.0], [20.0, -20.0], [20.0, 1000.0]], ids=str)
@pytest.mark.parametrize("score", DISTANCES)
def test_small_distances_far_from_zero(score, centres, rng):  # case 11
    (query, key), (q, k) = clusters(rng, centres)
    width = 1.3e-3  # no power of two
    params = {"log_width": jnp.float32(math.log(width))} if score == "gaussian" else {}
    factor = 1 / (2 * math.exp(float(params["log_width"])) ** 2) if params else 1.0
    pull = rng.normal(size=(len(query), len(key)))
    gaps = q[:, None] - k[None]

    @jax.jit
    def run(query, key):
        out, back = jax.vjp(lambda q, k: logits(q, k, score=score, score_params=params), query, key)
        return out, back(jnp.asarray(pull, jnp.float32))

    got, grads = run(query, key)
    assert (got <= 0).all()
    np.testing.assert_allclose(got, -factor * (gaps**2).sum(-1), rtol=5e-6)  # 4e-7 in log_width
    for side in (0, 1):
        terms = -2 * factor * pull[..., None] * gaps * (1 if side == 0 else -1)
        error = np.abs(grads[side] - terms.sum(1 - side))
        assert (error <= 1e-5 * np.abs(terms).sum(1 - side)).all()


@pytest.mark.usefixtures("forward_mode")
@pytest.mark.parametrize("score", NORMALIZED)
def test_a_zero_vector_has_logits_0_and_spoils_no_gradient(score, draw, draw_params):  # case 11
    query, key, value = draw(batch=(1,)).cast(jnp.float32)
    params = single(draw_params(score, 4, 4))
    zeroed = query.at[0, 1].set(0), key.at[0, 2].set(0)

    @jax.jit
    def run(q, k, params):
        def loss(q, k, params):
            return jnp.sin(ar.attend(q, k, value, score=score, score_params=params)).sum()

        tangents = jax.tree.map(jnp.ones_like, (q, k, params))
        grads = jax.grad(loss, (0, 1, 2))(q, k, params)
        own = logits(q[0], k[0], score=score, score_params=params)
        return own, grads, jax.jvp(loss, (q, k, params), tangents)

    own, (dq, dk, dparams), forward = run(*zeroed, params)
    assert not own[:, 1].any() and not own[..., 2].any()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((dq, dk, dparams, forward)))
    if score != "qk_rms_norm":
        assert not dq[0, 1].any() and not dk[0, 2].any()
    assert np.abs(dq[0, 0]).min() > 0 and np.abs(dk[0, 0]).min() > 0


@pytest.mark.parametrize(
    ("score", "sizes"),
    [("cosine", (1e-30, 1e30)), ("qk_norm", (1e-30, 1e30)), ("qk_rms_norm", (1.0, 1e30))],
)
def test_only_directions_count_however_long_the_vectors(score, sizes, draw, draw_params):
    query, key = (1000 * x for x in draw(batch=()).cast(jnp.float32)[:2])
    params = single(draw_params(score, 4, 4))

    @jax.jit
    def run(q, k):
        out, back = jax.vjp(lambda q, k: logits(q, k, score=score, score_params=params), q, k)
        return out, back(jnp.cos(jnp.arange(30.0)).reshape(out.shape))

    want, (want_dq, want_dk) = run(query, key)
    for a in sizes:
        for b in sizes:
            got, (dq, dk) = run(a * query, b * key)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(a * dq, want_dq, rtol=1e-4, atol=1e-7)
            np.testing.assert_allclose(b * dk, want_dk, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_only_distance_by_width_counts(size, draw):
    query, key, _ = draw(batch=()).cast(jnp.float32)
    want = jax.jit(lambda q, k: logits(q, k, score="squared_distance", scale=0.5))(query, key)
    params = {"log_width": jnp.float32(math.log(size))}
    got = jax.jit(lambda q, k: logits(q, k, score="gaussian", score_params=params))(
        size * query, size * key
    )
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)  # 69 eps / 2 in the width


@pytest.mark.parametrize("score", DISTANCES)
def test_saturated_distances(score):
    params = {"log_width": jnp.float32(0.0)} if score == "gaussian" else {}
    query = jnp.array([[3e38, -3e38]])
    key = jnp.array([[-3e38, 3e38], [3e38, -3e38], [0.0, 1e19]])
    got = jax.jit(lambda q, k: logits(q, k, score=score, score_params=params))(query, key)
    top = float(jnp.finfo(jnp.float32).max)
    np.testing.assert_array_equal(got, [[-top, 0.0, -top]])


@pytest.mark.usefixtures("forward_mode")
@pytest.mark.parametrize("score", NEW)
def test_no_derivative_of_finite_inputs_is_nan(score, draw, draw_params):
    query, key, value = draw(batch=()).cast(jnp.float32)
    params = single(draw_params(score, 4, 4))

    def loss(q, k, params):
        return ar.attend(q, k, value, score=score, score_params=params).sum()

    reverse = jax.jit(jax.grad(loss, (0, 1, 2)))
    forward = jax.jit(lambda *args: jax.jvp(loss, args, jax.tree.map(jnp.ones_like, args)))
    for size in (0.0, 1e-38, 1e-30, 1e15, 1e19, 1e30, 3.4e38):
        vectors = [size * jnp.sign(x) for x in (query, key)]
        for args in ((*vectors, params), (query, vectors[1], params)):
            assert not any(np.isnan(x).any() for x in jax.tree.leaves(reverse(*args))), size
            if size < 1e19:  # beyond, derivatives along a direction overflow
                assert not any(np.isnan(x).any() for x in forward(*args)), size
    for size in (0.0, 1e-30, 1e15, -1e15):
        sized = jax.tree.map(lambda x, c=size: jnp.full_like(x, c), params)
        grads = jax.tree.leaves(reverse(query, key, sized))
        assert not any(np.isnan(x).any() for x in [*grads, *forward(query, key, sized)]), size


def test_the_direction_of_v(draw, draw_params):
    query, key, _ = draw(batch=()).cast(jnp.float32)
    params = single(draw_params("normed_additive", 4, 4))

    @jax.jit
    def run(v):
        def of(v):
            return logits(query, key, score="normed_additive", score_params=params | {"v": v})

        out, back = jax.vjp(of, v)
        return out, back(jnp.cos(jnp.arange(30.0)).reshape(out.shape))[0]

    want, dv = run(params["v"])
    for size in (1e-30, 1e30):
        got, scaled = run(size * params["v"])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(size * scaled, dv, rtol=1e-4, atol=1e-6)
    got, dv = run(0 * params["v"])
    assert not got.any() and not dv.any()
