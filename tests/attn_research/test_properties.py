"""Properties that hold for every score, scale, normalizer, mask and dtype, on inputs of any shape.

They enumerate the folders: a new file is tested here with no other edit. Each example of a new
shape compiles, so a run draws two (the first is the simplest there is); EXAMPLES=20 in the
environment draws more.
"""

import os

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

import attn_research as ar
from attn_research import reference, scores
from tests.attn_research.oracles import (
    as_options,
    default_options,
    draw_params,
    formula,
    is_positional,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

few = settings(
    max_examples=int(os.environ.get("EXAMPLES", 2)),
    phases=[Phase.generate],
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)

LENGTHS = st.sampled_from([1, 2, 3, 7, 13])
HEADS = st.sampled_from([(1, 1), (2, 2), (2, 1), (6, 3), (3, 1)])
BATCHES = st.sampled_from([(), (1,), (2,), (2, 3)])
SEEDS = st.integers(0, 2**31 - 1)
TOLERANCE = {"float64": 1e-11, "float32": 3e-5, "bfloat16": 0.05, "float16": 0.01}


@st.composite
def masks(draw, batch, T, S):
    """A mask, or None; with traced-like contents of the batch shape."""
    integer = st.integers(-S, S)
    per_batch = st.builds(
        lambda seed: np.random.default_rng(seed).integers(0, S + 1, size=batch), SEEDS
    )
    ids = st.builds(
        lambda seed: [
            np.random.default_rng(seed + n).integers(0, 2, size=(*batch, n)) for n in (T, S)
        ],
        SEEDS,
    )
    simple = st.one_of(
        st.builds(ar.masks.causal, integer),
        st.builds(ar.masks.lengths, per_batch),
        st.builds(ar.masks.prefix, per_batch),
        st.builds(ar.masks.window, st.integers(0, S), st.integers(0, S)),
        st.builds(lambda both: ar.masks.segments(*both), ids),
        st.builds(ar.masks.dilated, st.integers(1, 3)),
        st.builds(
            lambda seed: ar.masks.dense(np.random.default_rng(seed).random((T, S)) < 0.7), SEEDS
        ),
    )
    mask = draw(st.none() | simple)
    if mask is not None:
        combine = draw(st.sampled_from(["alone", "and", "or", "not"]))
        other = draw(simple)
        mask = {"alone": mask, "and": mask & other, "or": mask | other, "not": ~mask}[combine]
    return mask


@st.composite
def calls(draw, dtypes=("float32", "float64", "bfloat16", "float16"), T=LENGTHS, S=LENGTHS):
    """NumPy arrays of a call, rounded to its dtype, and its mask."""
    batch, (N, K), T, S = draw(BATCHES), draw(HEADS), draw(T), draw(S)
    rng = np.random.default_rng(draw(SEEDS))
    D, Dv = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(dtypes))
    shapes = (*batch, T, N, D), (*batch, S, K, D), (*batch, S, K, Dv)
    arrays = [rng.normal(size=s) for s in shapes]
    if dtype != "float64":
        arrays = [np.asarray(jnp.asarray(x, dtype), np.float64) for x in arrays]
    return arrays, dtype, draw(masks(batch, T, S)), rng


def visible(mask, arrays):
    query, key, _ = arrays
    T, N, S = query.shape[-3], query.shape[-2], key.shape[-3]
    array = True if mask is None else mask.as_array(T, S)
    return np.broadcast_to(np.asarray(array), (*query.shape[:-3], N, T, S))


def run(arrays, dtype, params, **options):
    """(context, weights, lse) of attn_research, jitted."""

    def f(q, k, v, params):
        given = options | {"score_params": params}
        return (
            ar.attend(q, k, v, **given),
            ar.attention_weights(q, k, **given),
            ar.attend_with_lse(q, k, v, **given)[1],
        )

    with jax.enable_x64(dtype == "float64"):
        cast = [jnp.asarray(x, dtype) for x in arrays]
        wide = "float64" if dtype == "float64" else "float32"
        params = jax.tree.map(lambda x: jnp.asarray(x, wide), params)
        out = jax.jit(f)(*cast, params)
        assert out[0].dtype == dtype and out[1].dtype == out[2].dtype == wide
        return [np.asarray(x, np.float64) for x in out]


@pytest.mark.parametrize("score", ar.SCORES)
@few
@given(data=st.data())
def test_every_score_agrees_with_the_oracle(score, data):
    arrays, dtype, mask, rng = data.draw(calls())
    scale = data.draw(
        st.sampled_from([None, "none", "rsqrt_dim", "inverse_dim", "log_n", 0.5, -1.5])
    )
    num_heads = data.draw(st.sampled_from([None, arrays[0].shape[-2]]))
    D = arrays[0].shape[-1]
    params = draw_params(score, rng, D, D, num_heads)
    got = run(arrays, dtype, params, score=score, scale=scale, mask=mask)
    context, weights, lse = reference.attention(
        *arrays,
        score=formula(score),
        scale=("log_n", 1.0) if scale == "log_n" else scale,
        mask=visible(mask, arrays),
        **as_options(params),
    )
    tolerance = TOLERANCE[dtype]
    exact = min(tolerance, 3e-5)  # logits and weights are computed in float32 for 16 bits
    np.testing.assert_allclose(got[0], context, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(got[1], weights, atol=exact, rtol=10 * exact)
    np.testing.assert_allclose(got[2], lse, atol=3 * exact, rtol=10 * exact)


@pytest.mark.parametrize("normalizer", ar.NORMALIZERS)
@few
@given(data=st.data())
def test_every_normalizer_agrees_with_the_oracle(normalizer, data):
    arrays, dtype, mask, _ = data.draw(calls(dtypes=("float32", "float64")))
    scale = data.draw(st.sampled_from([None, 3.0]))
    got = run(arrays, dtype, None, normalizer=normalizer, scale=scale, mask=mask)
    options = default_options(normalizer)
    seen = visible(mask, arrays)
    context, weights, lse = reference.attention(
        *arrays, scale=scale, mask=seen, normalizer=normalizer, normalizer_options=options
    )
    tolerance = TOLERANCE[dtype] * 3
    np.testing.assert_allclose(got[1], weights, atol=tolerance)
    np.testing.assert_allclose(got[0], context, atol=tolerance)
    np.testing.assert_allclose(got[2], lse, atol=tolerance, rtol=tolerance)
    assert not got[1][~seen].any()
    if ar.normalizer(normalizer).SUMS_TO_ONE:
        np.testing.assert_allclose(got[1].sum(-1), seen.any(-1), atol=tolerance)


@pytest.mark.parametrize("score", [s for s in ar.SCORES if not is_positional(s)])
@few
@given(data=st.data())
def test_the_order_of_the_keys_does_not_matter(score, data):
    arrays, dtype, _, rng = data.draw(calls(dtypes=("float64",)))
    query, key, value = arrays
    seen = rng.random(visible(None, arrays).shape[-2:]) < 0.7
    params = draw_params(score, rng, query.shape[-1], query.shape[-1])
    order = rng.permutation(key.shape[-3])
    normalizer = data.draw(st.sampled_from(ar.NORMALIZERS))
    options = dict(score=score, normalizer=normalizer)
    want = run(arrays, dtype, params, mask=seen, **options)
    permuted = [query, *(np.take(x, order, -3) for x in (key, value))]
    got = run(permuted, dtype, params, mask=seen[:, order], **options)
    np.testing.assert_allclose(got[0], want[0], atol=1e-10)
    np.testing.assert_allclose(got[1], np.take(want[1], order, -1), atol=1e-10)


@pytest.mark.parametrize("score", ar.SCORES)
@few
@given(data=st.data())
def test_masking_is_deletion(score, data):
    """Masked keys, whatever they hold, might as well not be there; gradients neither."""
    arrays, dtype, _, rng = data.draw(calls(dtypes=("float32",), S=st.sampled_from([2, 7])))
    query, key, value = arrays
    keys = key.shape[-3]
    kept = np.flatnonzero(rng.random(keys) < 0.6)
    if is_positional(score):
        kept = np.arange(len(kept))  # deleting one in the middle moves the others
    assume(len(kept) < keys)
    gone = np.setdiff1d(np.arange(keys), kept)
    params = draw_params(score, rng, query.shape[-1], query.shape[-1])
    bad = data.draw(st.sampled_from([np.nan, np.inf, 1e30, 5.0]))
    spoiled = [x.copy() for x in (key, value)]
    for x in spoiled:
        x[..., gone, :, :] = bad
    normalizer = data.draw(st.sampled_from(ar.NORMALIZERS))
    mask = np.isin(np.arange(keys), kept)

    def loss(arrays, params, mask):
        out = ar.attend(*arrays, score=score, score_params=params, mask=mask, normalizer=normalizer)
        return jnp.sin(out).sum(), out

    grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    whole = [jnp.asarray(x, jnp.float32) for x in (query, *spoiled)]
    rest = [whole[0], *(jnp.take(x, kept, -3) for x in whole[1:])]
    (_, got), (got_grads, got_params) = grad(whole, single, mask)
    (_, want), (want_grads, want_params) = grad(rest, single, None)
    close = dict(atol=2e-4, rtol=2e-4)
    np.testing.assert_allclose(got, want, **close)
    np.testing.assert_allclose(got_grads[0], want_grads[0], **close)
    for x, y in zip(got_grads[1:], want_grads[1:], strict=True):
        np.testing.assert_allclose(np.take(np.asarray(x), kept, -3), y, **close)
        assert not np.take(np.asarray(x), gone, -3).any()
    for x, y in zip(*map(jax.tree.leaves, (got_params, want_params)), strict=True):
        np.testing.assert_allclose(x, y, **close)


@pytest.mark.usefixtures("forward_mode")
@pytest.mark.parametrize("score", ar.SCORES)
@few
@given(data=st.data())
def test_forward_mode_is_reverse_mode_and_vmap_of_grad_is_a_loop(score, data):
    arrays, _, _, rng = data.draw(calls(dtypes=("float64",)))
    arrays = [np.stack([x, rng.normal(size=x.shape)]) for x in arrays]  # a leading axis to map over
    D = arrays[0].shape[-1]
    params = draw_params(score, rng, D, D)
    mask = rng.random((arrays[0].shape[-3], arrays[1].shape[-3])) < 0.7
    smooth = [n for n in ar.NORMALIZERS if n not in ("hard", "top_k")]
    normalizer = data.draw(st.sampled_from(smooth))

    def loss(arrays, params):
        options = dict(score=score, score_params=params, mask=mask, normalizer=normalizer)
        return jnp.sin(ar.attend(*arrays, **options)).sum()

    with jax.enable_x64(True):
        gradient = jax.grad(loss, argnums=(0, 1))
        mapped = jax.jit(jax.vmap(gradient, in_axes=(0, None)))(arrays, params)
        for i in range(2):
            one = [x[i] for x in arrays]
            step = jax.tree.map(lambda x: rng.normal(size=np.shape(x)), (one, params))
            alone = jax.jit(gradient)(one, params)
            along = jax.jit(lambda x, dx: jax.jvp(loss, x, dx)[1])((one, params), step)
            total = jax.tree.map(lambda g, d: (g * d).sum(), alone, step)
            np.testing.assert_allclose(along, sum(jax.tree.leaves(total)), rtol=1e-8, atol=1e-9)
            for got, want in zip(*map(jax.tree.leaves, (mapped, alone)), strict=True):
                np.testing.assert_allclose(got[i], want, atol=1e-10)


@pytest.mark.parametrize("score", ar.SCORES)
def test_what_is_traced_does_not_recompile(score, rng):
    query, key, value = (jnp.asarray(rng.normal(size=(2, 5, 1, 4)), jnp.float32) for _ in range(3))
    params = ar.init_score(score, jax.random.key(0), 4, 4)
    traces = []

    @jax.jit
    def run(q, k, v, params, scale, softcap, lengths, offset, rate, key):
        traces.append(None)
        mask = ar.masks.lengths(lengths) & ar.masks.causal(offset)
        options = dict(score=score, score_params=params, mask=mask, softcap=softcap)
        options |= dict(scale=scale, dropout_rate=rate, dropout_key=key)
        return ar.attend(q, k, v, **options)

    for i in range(3):
        lengths = jnp.array([5 - i, i])
        run(query, key, value, params, 0.1 + i, 2.0 + i, lengths, i, 0.1 * i, jax.random.key(i))
    assert len(traces) == 1


def test_hidden_module_names_are_no_scores():
    assert not [name for name in (*ar.SCORES, *ar.NORMALIZERS) if name.startswith("_")]
    assert all(scores.get(name).__doc__ for name in ar.SCORES)
