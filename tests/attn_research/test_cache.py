"""Incremental decoding equals the full computation: KVCache, and the modules with ``decode``."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import positions, reference, scores

pytestmark = pytest.mark.usefixtures("quick_compile")

BY_CONTENT = [name for name in ar.SCORES if not hasattr(scores.get(name), "place")]
T = 6
LEFT = 2  # of the sliding window


def empty(drawn, max_length):
    *batch, _, heads, Dk = drawn.key.shape
    return ar.KVCache.empty(tuple(batch), max_length, heads, Dk, drawn.value.shape[-1])


def visible(left=None):
    i, j = np.arange(T)[:, None], np.arange(T)
    return (j <= i) & (j >= i - (T if left is None else left))


def one_by_one(query, key, value, cache, **options):
    """Causal and windowed contexts ``[..., T, N, Dv]`` by a scan over single positions."""

    def step(cache, new):
        q, k, v = (x[..., None, :, :] for x in new)
        cache = cache.append(k, v)
        masks = cache.mask(1), cache.mask(1, left=LEFT)
        outs = [ar.attend(q, cache.key, cache.value, mask=mask, **options) for mask in masks]
        return cache, jnp.stack(outs)[..., 0, :, :]

    steps = [jnp.moveaxis(x, -3, 0) for x in (query, key, value)]
    return jnp.moveaxis(jax.lax.scan(step, cache, steps)[1], 0, -3)


@pytest.mark.parametrize("score", BY_CONTENT)
def test_positions_one_by_one_in_a_scan(score, draw, draw_params):
    drawn = draw(T=T, S=T, N=4, K=2)
    params = draw_params(score, 4, 4, 4)
    options = dict(score=score, score_params=jax.tree.map(jnp.float32, params))
    cache = jax.tree.map(lambda x: jnp.where(x == 0, jnp.nan, x), empty(drawn, 8))
    cache = dataclasses.replace(cache, length=jnp.int32(0))  # empty positions hold NaN
    got = jax.jit(functools.partial(one_by_one, **options))(*drawn.cast(jnp.float32), cache)
    for left, context in zip((None, LEFT), got, strict=True):
        options = dict(score=score, score_params=params.params, per_head=True)
        want = reference.attention(*drawn, mask=visible(left), **options)[0]
        np.testing.assert_allclose(context, want, atol=5e-5)  # logits of a gaussian are large


def test_a_prompt_at_once_then_chunks(draw, draw_params):
    drawn, params = draw(T=T, S=T, batch=()), draw_params("additive", 4, 4)
    traced = []

    @jax.jit
    def step(cache, q, k, v, left):
        traced.append(q.shape)
        cache = cache.append(k, v)
        mask, options = cache.mask(len(q), left), dict(score="additive", score_params=params)
        return cache, ar.attend(q, cache.key, cache.value, mask=mask, **options)

    for left in (T, LEFT, 0):
        cache, outs = empty(drawn, T), []
        for start, stop in ((0, 3), (3, 4), (4, 5), (5, 6)):
            cache, out = step(cache, *(x[start:stop] for x in drawn.cast(jnp.float32)), left)
            outs.append(out)
        options = dict(score="additive", score_params=params)
        want = reference.attention(*drawn, mask=visible(left), **options)[0]
        np.testing.assert_allclose(np.concatenate(outs), want, atol=3e-6)
        assert cache.length == T
    assert traced == [(3, 2, 4), (1, 2, 4)]  # compiled once for each size


def test_gradients_are_those_of_the_full_computation(draw, draw_params):
    query, key, value = draw(T=T, S=T, K=1).cast(jnp.float32)
    params = jax.tree.map(jnp.float32, draw_params("additive", 4, 4))
    cache = ar.KVCache.empty((2,), 7, 1, 4, 3)

    def loss(outs):
        return jnp.sin(outs[0]).sum() + jnp.cos(outs[1]).sum()

    def by_steps(params, *x):
        return loss(one_by_one(*x, cache, score="additive", score_params=params))

    def at_once(params, *x):
        masks = ar.masks.causal(), ar.masks.window(LEFT, 0)
        options = dict(score="additive", score_params=params)
        return loss([ar.attend(*x, mask=mask, **options) for mask in masks])

    args = params, query, key, value
    got, want = (jax.jit(jax.grad(f, (0, 1, 2, 3)))(*args) for f in (by_steps, at_once))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_what_does_not_fit(draw):
    drawn = draw(T=3, S=3)
    _, key, value = drawn.cast(jnp.float32)
    cache = empty(drawn, 4).append(key, value)
    with pytest.raises(
        ValueError, match="cache is full: 3 more positions after 3, max_length is 4"
    ):
        cache.append(key, value)
    append = jax.jit(lambda cache, t=3: cache.append(key[:, :t], value[:, :t]), static_argnums=1)
    full = append(cache, 1)
    np.testing.assert_array_equal(full.key[:, :3], key)
    np.testing.assert_array_equal(full.value[:, 3], value[:, 0])
    for before, t in ((cache, 3), (full, 1), (append(append(full, 1), 1), 1)):
        after = append(before, t)  # known only when it runs: NaN, whatever the query, however late
        assert after.length == 4
        np.testing.assert_array_equal(after.key[:, : 4 - t], before.key[:, : 4 - t])
        for left in (4, 0):
            mask = after.mask(t, left)
            assert np.isnan(jax.jit(ar.attend)(key[:, :t], after.key, after.value, mask=mask)).all()


def test_going_back_and_dtypes(draw):
    drawn = draw(T=2, S=2)
    query, key, value = drawn.cast(jnp.float32)
    cache = ar.KVCache.empty((2,), 5, 2, 4, 3, jnp.bfloat16).append(key, value)
    assert cache.key.dtype == cache.value.dtype == jnp.bfloat16
    tried = dataclasses.replace(cache.append(7 * key, 9 * value), length=cache.length)
    for x in (cache, tried):
        out = jax.jit(ar.attend)(query, x.key, x.value, mask=x.mask(2))
        k, v = (y.astype(jnp.bfloat16).astype(jnp.float32) for y in (key, value))
        want = reference.attention(query, k, v, mask=np.tri(2, dtype=bool))[0]
        assert out.dtype == jnp.bfloat16
        np.testing.assert_allclose(out.astype(jnp.float32), want, rtol=2**-7, atol=1e-6)


def test_wrong_sizes_are_errors():
    cache = ar.KVCache.empty((2,), 4, heads=1, key_dim=3)
    x = jnp.ones((2, 1, 1, 3))
    with pytest.raises(ValueError, match=r"key must be \[2, t, 1, 3\] .* 1 .. 4: got \[2, 1, 2, 3"):
        cache.append(jnp.ones((2, 1, 2, 3)), x)
    for shape in ((1, 1, 1, 3), (1, 1, 3), (2, 5, 1, 3), (2, 0, 1, 3), (2, 1, 1, 4)):
        with pytest.raises(ValueError, match="value must be"):
            cache.append(x, jnp.ones(shape))
    with pytest.raises(ValueError, match="key has 1 positions, value has 2"):
        cache.append(x, jnp.ones((2, 2, 1, 3)))
    with pytest.raises(ValueError, match="max_length must be a positive integer: got 0"):
        ar.KVCache.empty((2,), 0, 1, 3)
    with pytest.raises(TypeError, match="dtype must be floating: got int8"):
        ar.KVCache.empty((2,), 4, 1, 3, dtype=jnp.int8)


def scaled_l1(params, query, key):
    return -params["w"] * jnp.abs(query[:, None] - key).sum(-1)


def draw_w(key, query_dim, key_dim):
    return {"w": jax.random.uniform(key, minval=0.5)}


@pytest.mark.parametrize(
    "options",
    [
        dict(position_transform=positions.rope, num_kv_heads=2),
        dict(score="additive"),
        dict(score=scaled_l1, score_init=draw_w, scale="learned", talking_heads=True),
    ],
    ids=["dot, rope, grouped", "additive", "function"],
)
def test_self_attention_in_pieces(options, rng):
    options |= dict(num_heads=4, qkv_features=16)
    layer = ar.SelfAttention(decode=True, **options)
    apply = jax.jit(functools.partial(layer.apply, mutable=["cache"]))
    whole = jax.jit(ar.SelfAttention(**options).apply)
    x = jnp.asarray(rng.normal(size=(2, T, 8)), jnp.float32)
    variables = jax.jit(layer.init)(jax.random.key(0), x)
    params = {"params": variables["params"]}
    padding = rng.random((2, 1, 1, T)) < 0.7
    for left in (T, LEFT):
        window = ar.masks.window(left, 0) & padding  # compiled once
        want = whole(params, x, mask=window)
        for pieces in ([1] * T, [4, 1, 1]):
            held, start = variables, 0
            for t in pieces:
                rows = slice(start, start + t)
                got, cache = apply(held, x[:, rows], mask=window)
                np.testing.assert_allclose(got, want[:, rows], atol=5e-6)
                held, start = params | cache, start + t
            assert held["cache"]["cache_index"] == T


# All scores but those whose state is of the keys, such as the weights of earlier steps.
DECODABLE = {name: (name, {}) for name in ar.SCORES if not scores.state_axes(name)}
DECODABLE["local-m"] = "local", {"predict": False}


@pytest.mark.parametrize("variant", DECODABLE)
def test_any_score_one_by_one(variant, rng):
    score, score_options = DECODABLE[variant]
    options = dict(num_heads=2, score=score, score_options=score_options)
    layer = ar.SelfAttention(decode=True, **options)
    x = jnp.asarray(rng.normal(size=(1, 16, 4)), jnp.float32)  # more than the window of local
    shapes = jax.eval_shape(layer.init, jax.random.key(0), x)
    params = jax.tree.map(lambda p: jnp.float32(rng.normal(size=p.shape) / 2), shapes["params"])
    empty = jax.tree.map(lambda p: jnp.zeros(p.shape, p.dtype), shapes["cache"])

    @jax.jit
    def one_by_one(params, cache, x):
        def step(cache, x):
            held = {"params": params, "cache": cache}
            out, new = layer.apply(held, x[:, None], mutable=["cache"])
            return new["cache"], out[:, 0]

        return jax.lax.scan(step, cache, x.swapaxes(0, 1))[1].swapaxes(0, 1)

    whole = jax.jit(ar.SelfAttention(**options).apply)
    want = whole({"params": params}, x, mask=ar.masks.causal())
    np.testing.assert_allclose(one_by_one(params, empty, x), want, atol=2e-5)


def test_masks_and_biases_of_the_calls(rng):
    """A mask from ar.masks is of the whole sequence, an array of this call's queries."""
    layer = ar.SelfAttention(num_heads=2, decode=True)
    apply = jax.jit(functools.partial(layer.apply, mutable=["cache"]))
    x = jnp.asarray(rng.normal(size=(2, T, 8)), jnp.float32)
    variables = jax.jit(layer.init)(jax.random.key(0), x)
    params = {"params": variables["params"]}
    array, bias = rng.random((2, 1, T, T)) < 0.5, jnp.asarray(rng.normal(size=(2, T, T)))
    whole, dense = jax.jit(ar.SelfAttention(num_heads=2).apply), ar.masks.dense(array)
    for of_the_call, full in (
        (lambda rows: dict(mask=dense), dict(mask=dense & ar.masks.causal())),
        (lambda rows: dict(mask=1.0 * array[..., rows, :]), dict(mask=dense & ar.masks.causal())),
        (lambda rows: dict(bias=bias[:, rows]), dict(bias=bias, mask=ar.masks.causal())),
    ):
        want, held = whole(params, x, **full), variables
        for rows in (slice(0, 3), slice(3, 6)):
            got, cache = apply(held, x[:, rows], **of_the_call(rows))
            np.testing.assert_allclose(got, want[:, rows], atol=2e-6)
            held = params | cache


def test_a_length_for_each_batch_element_is_for_vmap():
    cache = ar.KVCache.empty((2,), np.int64(4), np.int32(1), 3)
    cache = dataclasses.replace(cache, length=jnp.array([1, 2]))
    new = jnp.ones((2, 1, 1, 3))
    with pytest.raises(ValueError, match=r"must be a scalar: got shape \(2,\);.*jax.vmap"):
        cache.append(new, new)
    after = jax.vmap(ar.KVCache.append)(cache, new, new)
    assert after.length.tolist() == [2, 3]
    assert after.key[..., 0, 0].tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    assert after.mask(1).as_array(1, 4).sum(-1).ravel().tolist() == [2, 3]


def test_errors_of_decoding(rng):
    layer = ar.SelfAttention(num_heads=2, decode=True)
    apply = functools.partial(layer.apply, mutable=["cache"])
    x = jnp.ones((1, 4, 8))
    variables = jax.jit(layer.init)(jax.random.key(0), x)
    assert variables["cache"]["cache_index"] == 0
    with pytest.raises(ValueError, match="decode=True needs the collection 'cache': layer.init"):
        jax.eval_shape(apply, {"params": variables["params"]}, x)
    for mask in (ar.masks.dense(jnp.ones((2, 4), bool)), ar.masks.segments([0, 1])):
        with pytest.raises(
            ValueError, match=r"whole sequence, \[..., 4, 4\] .*: got \[.*2, [24]\]"
        ):
            jax.eval_shape(apply, variables, x[:, :2], mask=mask)
    _, cache = jax.jit(apply)(variables, x)
    with pytest.raises(ValueError, match="cache is full"):
        apply(variables | cache, x[:, :1])
    for cross in (ar.CrossAttention(num_heads=2), ar.CrossAttention(num_heads=2, decode=True)):
        shapes = jax.eval_shape(cross.init, jax.random.key(0), x, x)
        with pytest.raises(ValueError, match="x_kv may be None only with decode=True and"):
            jax.eval_shape(cross.apply, {"params": shapes["params"]}, x, None)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_cross_attention_projects_once(score, rng):
    options = dict(num_heads=4, num_kv_heads=2, score=score)
    layer = ar.CrossAttention(decode=True, **options)
    apply = jax.jit(functools.partial(layer.apply, mutable=["cache"]))
    x, memory = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, T, 8), (2, 5, 6)))
    variables = jax.jit(layer.init)(jax.random.key(0), x, 0 * memory)  # a cache of zeros
    params = {"params": variables["params"]}
    mask = ar.masks.lengths(jnp.array([5, 2]))
    want = jax.jit(ar.CrossAttention(**options).apply)(params, x, memory, mask=mask)
    got, cache = apply(variables, x[:, :2], memory, mask=mask)
    np.testing.assert_allclose(got, want[:, :2], atol=2e-6)

    needed = {name: p for name, p in params["params"].items() if name not in ("key", "value")}

    @jax.jit
    def rest(cache, steps):
        def step(cache, x):
            out, cache = apply({"params": needed} | cache, x[:, None], None, mask=mask)
            return cache, out[:, 0]

        return jax.lax.scan(step, cache, steps)[1]

    got = rest(cache, jnp.moveaxis(x[:, 2:], 1, 0))
    np.testing.assert_allclose(jnp.moveaxis(got, 0, 1), want[:, 2:], atol=2e-6)
