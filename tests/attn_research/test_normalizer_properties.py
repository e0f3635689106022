"""What every normalizer promises (see ``normalizers/_base.py``): they are enumerated, so that a new
file is tested here with no other edit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import attn_research as ar

pytestmark = pytest.mark.usefixtures("quick_compile")

EVERY = [
    *((name, {}) for name in ar.NORMALIZERS),
    ("sinks", {"logit": -2.0}),
    ("sigmoid", {"bias": 0.5}),
    ("entmax", {"alpha": 1}),
    ("entmax", {"alpha": 2.5}),
    ("top_k", {"k": 2}),
    ("hard", {"straight_through": False, "temperature": 0.5}),
]
each = pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
each_name = pytest.mark.parametrize("name", ar.NORMALIZERS)
LARGEST = {"float32": np.finfo(np.float32).max, "float64": np.finfo(np.float64).max}


def weights_and_pulled(name, options):
    """Jitted: weights, and the gradient of ``sum(weights * pull)`` by the logits."""
    normalize = ar.normalizer(name, **options).normalize

    @jax.jit
    def run(logits, pull):
        weights, vjp = jax.vjp(normalize, logits)
        return weights, vjp(pull)[0]

    return run


@each
def test_values(name, options, rng):
    """Masking is deletion; order of keys and a constant do not matter; sums; empty rows."""
    with jax.enable_x64(True):
        run, S = weights_and_pulled(name, options), 11
        logits, pull = rng.normal(size=(2, 2, 6, S))
        got, gradient = run(logits, pull)
        sums = ar.normalizer(name, **options).SUMS_TO_ONE
        if sums:
            np.testing.assert_allclose(got.sum(-1), 1, atol=1e-14)
            moved, moved_gradient = run(logits + 7.0, pull)
            np.testing.assert_allclose(moved, got, atol=1e-13)
            np.testing.assert_allclose(moved_gradient, gradient, atol=1e-12)
            np.testing.assert_allclose(gradient.sum(-1), 0, atol=1e-12)
        assert (np.asarray(got) >= 0).all()

        order = rng.permutation(S)
        for mine, wanted in zip(
            run(logits[..., order], pull[..., order]), (got, gradient), strict=True
        ):
            np.testing.assert_allclose(mine, wanted[..., order], atol=1e-13)

        kept = np.flatnonzero(rng.permutation(S) < 7)
        hidden = np.full_like(logits, -np.inf)
        hidden[..., kept] = logits[..., kept]
        hidden[1, 2] = -np.inf
        masked = run(hidden, pull)
        for mine, wanted in zip(masked, run(logits[..., kept], pull[..., kept]), strict=True):
            mine = np.asarray(mine)
            assert not mine[1, 2].any() and not np.delete(mine, kept, -1).any()
            mine, wanted = mine[..., kept], np.asarray(wanted)
            seen = np.arange(12).reshape(2, 6) != 8
            np.testing.assert_allclose(mine[seen], wanted[seen], atol=1e-13)


@each
def test_nan_stays_in_its_row_and_shows_in_all_of_it(name, options, rng):
    run = weights_and_pulled(name, options)
    logits, pull = rng.normal(size=(2, 1, 3, 5)).astype(np.float32)
    logits[0, 1, 3] = -np.inf
    want = run(logits, pull)
    for place in (0, 2, 4):
        bad = logits.copy()
        bad[0, 1, place] = np.nan
        got = run(bad, pull)
        assert np.isnan(got[0][0, 1, [0, 1, 2, 4]]).all()
        for mine, wanted in zip(got, want, strict=True):
            np.testing.assert_array_equal(mine[0, [0, 2]], wanted[0, [0, 2]])


def extreme_rows(top):
    """Rows of five finite or -inf logits up to the largest number ``top``."""
    hidden = -np.inf
    return np.array(
        [
            [top, top, top, top, top],
            [-top, -top, -top, -top, -top],
            [top, -top, 0, 1, -1],
            [top, top, -top, -top, hidden],
            [-top, hidden, hidden, hidden, hidden],
            [top, hidden, -top, hidden, hidden],
            [0, 0, 0, 0, 0],
            [1e30, 1e30, 1e-30, -1e30, -1e-30],
            [top / 2, -top / 2, top / 3, 1e19, 1e20],
            [-1e30, -1e30, -1e30, hidden, -1e30],
            [1, 1, -0.0, 0.0, hidden],
            [100, -100, 88, -88, 104],
            [hidden, hidden, hidden, hidden, hidden],
        ]
    )


@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    [(*case, "float32") for case in EVERY] + [(name, {}, "float64") for name in ar.NORMALIZERS],
    ids=str,
)
def test_logits_of_any_size(name, options, dtype, rng):
    """Weights and derivatives are finite, forward, reverse, forward over reverse, also by the
    options; where rows sum to 1, extreme ones do; equal logits get equal weights."""
    given = ar.normalizer(name, **options)
    with jax.enable_x64(dtype == "float64"):
        logits = jnp.asarray(extreme_rows(LARGEST[dtype])[None], dtype)
        pull = jnp.asarray(rng.normal(size=logits.shape), dtype)
        own = {
            f.name: jnp.asarray(getattr(given, f.name), dtype)
            for f in dataclasses.fields(given)
            if isinstance(getattr(given, f.name), float | int) and not f.metadata.get("static")
        }

        @jax.jit
        def run(logits, own):
            def loss(logits, own):
                weights = dataclasses.replace(given, **own).normalize(logits)
                return (weights * pull).sum(), weights

            def pulled(logits, own):
                return jax.grad(loss, (0, 1), has_aux=True)(logits, own)[0]

            tangents = pull[::-1], jax.tree.map(jnp.ones_like, own)
            gradient, second = jax.jvp(pulled, (logits, own), tangents)
            forward = jax.jvp(lambda *x: loss(*x)[1], (logits, own), tangents)[1]
            return loss(logits, own)[1], forward, gradient, second

        out = run(logits, own)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(out))
        weights = np.asarray(out[0][0])
    hidden = np.isinf(logits[0])
    for x in (weights, out[1][0], out[2][0][0], out[3][0][0]):
        assert not np.asarray(x)[hidden].any()
    if given.SUMS_TO_ONE:
        wanted = (~hidden).any(-1)
        np.testing.assert_allclose(weights.sum(-1), wanted, atol=1e-6)
        if name not in ("hard", "top_k") or options.get("straight_through") is False:
            np.testing.assert_allclose(weights[0], 0.2, atol=1e-6)
            np.testing.assert_allclose(weights[3], [0.5, 0.5, 0, 0, 0], atol=1e-6)


@pytest.mark.parametrize(("name", "options"), [("sparsemax", {}), ("entmax", {"alpha": 1})])
def test_no_step_gives_nan(name, options):
    """So that ``jax_debug_nans`` finds those of others; it looks at each operation outside jit."""
    logits = jnp.array([[0.0, -jnp.inf, 1.0], [-jnp.inf] * 3, [-3e38, 3e38, -jnp.inf]])
    with jax.debug_nans(True):
        jax.jvp(ar.normalizer(name, **options).normalize, (logits,), (jnp.ones((3, 3)),))


@each_name
def test_products_that_fuse_into_the_difference(name, rng):
    """Not under quick_compile: XLA may contract ``a * b - top`` into one multiply-add, which leaves
    the rounding error of ``a * b``, large for a large product."""
    jax.config.update("jax_disable_most_optimizations", False)
    normalizer = ar.normalizer(name)
    a = rng.uniform(1, 2, size=(1, 4, 16)).astype(np.float32)
    b = np.float32(1e15) * rng.uniform(1, 2, size=(1, 4, 1)).astype(np.float32)
    got = jax.jit(lambda a, b: normalizer.normalize(a * b))(a, b)
    np.testing.assert_allclose(got, normalizer.normalize(jnp.asarray(a * b)), rtol=1e-5, atol=1e-6)


@each_name
def test_vmap_of_grad_and_shard_map_are_the_batch(name, rng):
    normalizer = ar.normalizer(name)
    logits, pull = rng.normal(size=(2, 3, 2, 4, 7)).astype(np.float32)

    def gradient(logits, pull):
        return jax.grad(lambda x: (normalizer.normalize(x) * pull).sum())(logits)

    want = jax.jit(gradient)(logits, pull)
    np.testing.assert_allclose(jax.jit(jax.vmap(gradient))(logits, pull), want, atol=1e-6)
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = P("batch"), P("batch")
    sharded = jax.shard_map(gradient, mesh=mesh, in_specs=specs, out_specs=P("batch"))
    np.testing.assert_allclose(jax.jit(sharded)(logits, pull), want, atol=1e-6)


@each_name
def test_it_is_a_frozen_pytree_whose_traced_options_do_not_recompile(name):
    normalizer = ar.normalizer(name)
    assert isinstance(normalizer.SUMS_TO_ONE, bool)
    assert normalizer.STREAMS in ("softmax", "sinks", "elementwise", "threshold", "bisection", None)
    leaves, structure = jax.tree.flatten(normalizer)
    rebuilt = jax.tree.unflatten(structure, [object()] * len(leaves))
    assert type(rebuilt) is type(normalizer)
    assert jax.tree.structure(ar.normalizer(name)) == structure
    traced = [
        f.name
        for f in dataclasses.fields(normalizer)
        if not f.metadata.get("static") and f.name != "key"
    ]
    traces = 0

    @jax.jit
    def run(normalizer, logits):
        nonlocal traces
        traces += 1
        return normalizer.normalize(logits)

    logits, seen = jnp.arange(6.0).reshape(1, 2, 3) / 4, []
    for value in (1.2, 1.9):
        given = dataclasses.replace(normalizer, **{option: value for option in traced})
        seen.append(run(given, logits))
        np.testing.assert_allclose(seen[-1], given.normalize(logits), atol=1e-6)
    assert traces == 1
    hard = name == "hard"  # a temperature changes its gradient alone
    assert bool(traced) == (np.abs(seen[0] - seen[1]).max() > 1e-3) or hard
