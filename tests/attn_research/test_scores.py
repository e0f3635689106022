"""Scores: numbers worked by hand, identities between them, what they start with."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar

pytestmark = pytest.mark.usefixtures("quick_compile")


def logits(query, key, **options):
    """``[N, T, S]`` (``[T, S]`` for one head), scaled: the lse of a key alone is its logit."""

    def of_one(k):
        return ar.attend_with_lse(query, k[None], k[None], **options)[1]

    return jax.jit(jax.vmap(of_one, out_axes=-1))(key)


# query, key, parameters, other options, logit
BY_HAND = {
    # 3 * 4 + 4 * 3 = 24 = 0.96 * 5 * 5
    "cosine": ([3, 4], [4, 3], {}, {}, 0.96),
    "cosine, opposite": ([3, 4], [-6, -8], {}, {"scale": 10.0}, -10.0),
    "cosine, learned": ([3, 4], [4, 3], {"log_scale": math.log(5)}, {}, 4.8),
    "cosine, at most 100": ([3, 4], [4, 3], {"log_scale": 7.0}, {}, 96.0),  # e^7 = 1096
    "qk_norm": ([3, 4], [4, 3], {"g": 2.5}, {}, 2.4),
    # mean square 25, so q -> [0.2 1.4] -> [0.2 2.8]; k -> [1 1] -> [3 1]; 3.4 / sqrt(2)
    "qk_rms_norm": (
        [1, 7],
        [5, 5],
        {"query_gain": [1, 2], "key_gain": [3, 1]},
        {},
        3.4 / math.sqrt(2),
    ),
    # mean square 5e-7, plus 1e-6: 1e-3 / sqrt(1.5e-6) = sqrt(2/3)
    "qk_rms_norm, epsilon": (
        [1e-3, 0],
        [5, 5],
        {"query_gain": [1, 1], "key_gain": [1, 1]},
        {},
        math.sqrt(1 / 3),
    ),
    # 3^2 + 4^2
    "squared_distance": ([1, 2], [4, 6], {}, {}, -25.0),
    "squared_distance, scaled": ([1, 2], [4, 6], {}, {"scale": "inverse_dim"}, -12.5),
    # 25 / (2 * 2^2), 25 / (2 * 5^2)
    "gaussian": ([1, 2], [4, 6], {"log_width": math.log(2)}, {}, -3.125),
    "gaussian, wide": ([1, 2], [4, 6], {"log_width": math.log(5)}, {}, -0.5),
    # [0.5 0] + [0.5 0.5] + [0 0.5] = [1 1]; v/|v| = [0.6 0.8]; 2 * 1.4 * tanh(1)
    "normed_additive": (
        [0.5, 0],
        [0.5, 0.5],
        {"query": np.eye(2), "key": np.eye(2), "v": [3, 4], "g": 2, "bias": [0, 0.5]},
        {},
        2.8 * math.tanh(1),
    ),
    # [0.5 1] + [2 * 0.25, -1 * 1] = [1 0]; 3 tanh(1) + 2 tanh(0)
    "concat": (
        [0.5, 1],
        [0.25, 1],
        {"kernel": [[1, 0], [0, 1], [2, 0], [0, -1]], "v": [3, 2]},
        {},
        3 * math.tanh(1),
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case):
    query, key, params, options, want = BY_HAND[case]
    params = {name: jnp.array(leaf, jnp.float32) for name, leaf in params.items()}
    options = dict(score=case.split(",")[0], score_params=params, **options)
    got = logits(jnp.array([query], jnp.float32), jnp.array([key], jnp.float32), **options)
    np.testing.assert_allclose(got, [[want]], rtol=2e-6)


def same(f, g, *args):
    """Checks that two functions agree in float64, with their gradients by every argument."""

    def run(function):
        def loss(args):
            out = function(*args)
            return jnp.sin(out).sum(), out

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(args)

    with jax.enable_x64(True):
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), args)
        (_, got), grads = run(f)
        (_, want), want_grads = run(g)
    np.testing.assert_allclose(got, want, rtol=1e-10)
    for a, b in zip(*map(jax.tree.leaves, (grads, want_grads)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("num_heads", [None, 2])
def test_concat_is_additive_with_a_split_kernel(num_heads, draw, draw_params):
    wrap = ar.PerHead if num_heads else dict

    def concat(p, q, k, v):
        return ar.attend(q, k, v, score="concat", score_params=wrap(p))

    def additive(p, q, k, v):
        kernel = p["kernel"]
        split = {"query": kernel[..., :4, :], "key": kernel[..., 4:, :], "v": p["v"]}
        return ar.attend(q, k, v, score="additive", score_params=wrap(split))

    params = draw_params("concat", 4, 3, num_heads, dim=5)
    same(concat, additive, params.params if num_heads else params, *draw(Dk=3))


def test_normed_additive_is_additive_with_a_v_of_length_g(draw, draw_params):
    def normed(p, q, k, v):
        return ar.attend(q, k, v, score="normed_additive", score_params=p)

    def additive(p, q, k, v):
        p = dict(p)
        g, p["v"] = p.pop("g"), p["v"] / jnp.linalg.norm(p["v"])
        return ar.attend(q, k, v, score="additive", score_params=p | {"v": g * p["v"]})

    same(normed, additive, draw_params("normed_additive", 4, 3, dim=5), *draw(Dk=3))


def test_cosine_is_dot_of_normalized_vectors(draw):
    def cosine(p, q, k, v):
        return ar.attend(q, k, v, score="cosine", score_params=p)

    def dot(p, q, k, v):
        q, k = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
        return ar.attend(q, k, v, scale=jnp.exp(p["log_scale"]))

    same(cosine, dot, {"log_scale": np.log(7.0)}, *draw(K=1))


def test_qk_norm_is_cosine_with_scale_g(draw):
    def qk_norm(g, q, k, v):
        return ar.attend(q, k, v, score="qk_norm", score_params={"g": g})

    same(qk_norm, lambda g, q, k, v: ar.attend(q, k, v, score="cosine", scale=g), -1.7, *draw())


def test_qk_rms_norm_is_dot_of_what_flax_normalizes(draw, draw_params):
    def ours(p, q, k, v):
        return ar.attend(q, k, v, score="qk_rms_norm", score_params=p)

    def flax(p, q, k, v):
        norm = nn.RMSNorm(epsilon=1e-6)
        q = norm.apply({"params": {"scale": p["query_gain"]}}, q)
        k = norm.apply({"params": {"scale": p["key_gain"]}}, k)
        return ar.attend(q, k, v)

    same(ours, flax, draw_params("qk_rms_norm", 4, 4), *draw())


def gaussian(log_width, q, k, v):
    return ar.attend(q, k, v, score="gaussian", score_params={"log_width": log_width})


def test_gaussian_is_squared_distance_with_a_scale(draw):
    def scaled(log_width, q, k, v):
        scale = jnp.exp(-2 * log_width) / 2
        return ar.attend(q, k, v, score="squared_distance", scale=scale)

    same(gaussian, scaled, np.log(1.3), *draw(N=4, K=2))


def test_gaussian_is_kernel_regression(draw):
    def nadaraya_watson(log_width, q, k, v):
        gaps = (q[:, :, None] - k[:, None]) / jnp.exp(log_width)  # [B, T, S, N, D]
        kernel = jnp.exp(-jnp.square(gaps).sum(-1) / 2)
        return jnp.einsum("btsn,bsnd->btnd", kernel, v) / kernel.sum(2)[..., None]

    same(gaussian, nadaraya_watson, 0.4, *draw())


def test_gaussian_starts_as_scaled_dot_less_for_long_keys(draw):
    log_width = ar.init_score("gaussian", jax.random.key(0), 16, 16)["log_width"]
    np.testing.assert_allclose(log_width, math.log(2), rtol=1e-6)

    def dot(q, k, v):
        lengths = jnp.square(k).sum(-1).swapaxes(-1, -2)[..., None, :]
        return ar.attend(q, k, v, bias=-lengths / (2 * 16**0.5))

    same(lambda *x: gaussian(math.log(2), *x), dot, *draw(Dq=16, Dk=16))


@pytest.mark.parametrize("score", ["cosine", "qk_norm", "gaussian"])
def test_each_head_has_its_own_temperature(score, draw):
    query, key, value = draw(N=3, K=1).cast(jnp.float32)
    name = {"cosine": "log_scale", "qk_norm": "g", "gaussian": "log_width"}[score]
    numbers = jnp.array([-1.0, 0.5, 2.0])

    @jax.jit
    def run(numbers):
        options = dict(score=score, score_params=ar.PerHead({name: numbers}))
        heads = [
            ar.attend(query[:, :, n : n + 1], key, value, score=score, score_params={name: number})
            for n, number in enumerate(numbers)
        ]
        return ar.attend(query, key, value, **options), jnp.concatenate(heads, -2)

    got, want = run(numbers)
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert np.abs(np.asarray(got[:, :, 0] - got[:, :, 2])).max() > 1e-3
    if score == "cosine":
        scaled = ar.attend(query, key, value, score="cosine", scale=jnp.exp(numbers))
        np.testing.assert_allclose(got, scaled, atol=1e-6)


D = 32
STARTS = {  # options of init, scale, mean, variance, variance within rows if it is another one
    "dot": ({}, None, 0, 1, None),
    "general": ({}, None, 0, D, None),
    "projected_dot": ({"dim": 16}, "rsqrt_dim", 0, 1, None),
    "additive": ({}, None, 0, 0.520, None),  # E[tanh(x)^2] for variance 2
    "concat": ({}, None, 0, 0.394, None),  # for variance 1
    "normed_additive": ({"dim": 16}, None, 0, 0.520 / 16, None),
    "cosine": ({"learn_scale": True}, None, 0, 100 / D, None),
    "qk_norm": ({"length": 20}, None, 0, math.log2(380) ** 2 / D, None),
    "qk_rms_norm": ({}, None, 0, 1, None),
    "squared_distance": ({}, None, -2 * D, 8 * D, 6 * D),
    "gaussian": ({}, None, -math.sqrt(D), 2, 1.5),
}


@pytest.mark.parametrize("score", STARTS)
def test_variance_of_the_logits_at_the_start(score, rng):
    options, scale, mean, variance, within = STARTS[score]
    heads = 2000
    query, key = (jnp.asarray(rng.normal(size=(3, heads, D)), jnp.float32) for _ in range(2))
    rng_key = jax.random.key(rng.integers(2**31))
    params = ar.init_score(score, rng_key, D, D, num_heads=heads, **options)
    drawn = logits(query, key, score=score, score_params=params, scale=scale)
    drawn = np.float64(drawn)  # [heads, 3, 3]

    def check(samples, want):
        error = samples.std() / math.sqrt(heads)
        assert abs(samples.mean() - want) < 5 * error + 0.01 * want, samples.mean()

    check(np.square(drawn - mean).mean((1, 2)), variance)
    if within is not None:
        check(drawn.var(-1, ddof=1).mean(1), within)


def test_options():
    key = jax.random.key(0)
    assert ar.init_score("cosine", key, 4, 4) == {}
    params = ar.init_score("gaussian", key, 4, 4, num_heads=2, width=0.25, dtype=jnp.float16)
    assert params.params["log_width"].dtype == jnp.float16
    np.testing.assert_allclose(params.params["log_width"], [math.log(0.25)] * 2, rtol=1e-3)
    with pytest.raises(ValueError, match="width must be positive and finite: got 0"):
        ar.init_score("gaussian", key, 4, 4, width=0)
    with pytest.raises(ValueError, match="length must be a number of positions above 1: got 1"):
        ar.init_score("qk_norm", key, 4, 4, length=1)
    with pytest.raises(ValueError, match="'cosine' needs equal feature sizes: query has 4, key"):
        ar.init_score("cosine", key, 4, 5)
    with pytest.raises(ValueError, match=r"'concat' must have shape \[9, E\]: got \[8, 4\]"):
        params = ar.init_score("concat", key, 4, 4)
        ar.attend(
            jnp.ones((2, 4)),
            jnp.ones((2, 5)),
            jnp.ones((2, 1)),
            score="concat",
            score_params=params,
        )
