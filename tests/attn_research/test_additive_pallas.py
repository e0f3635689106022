"""The additive kernels for GPUs: interpreted, against float64 NumPy, and lowered to Triton."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research.kernels import additive, additive_pallas, pairs

pytestmark = pytest.mark.usefixtures("quick_compile")
SIZES = [(1, 1, 1), (5, 70, 3), (33, 64, 40)]  # rows, cols, E


@pytest.fixture
def small_tiles(monkeypatch):
    """Several tiles of sizes that take no time."""
    for name, size in dict(ROWS=4, COLS=8, FEATURES=2).items():
        monkeypatch.setattr(additive_pallas, name, size)


def oracle(q, k, v, g):
    """Values, and the gradients of ``sum(g * values)``, in float64 by arrays of three axes."""
    q, k, v, g = (np.asarray(x, np.float64) for x in (q, k, v, g))
    tanh = np.tanh(q[:, None] + k[None])
    slope = np.cosh(np.clip(q[:, None] + k[None], -300, 300)) ** -2.0
    d = g[..., None] * slope * v
    return (tanh * v).sum(-1), d.sum(1), d.sum(0), (g[..., None] * tanh).sum((0, 1))


@jax.jit
def outcome(q, k, v, g):
    out, back = jax.vjp(functools.partial(additive_pallas.sum_tanh, interpret=True), q, k, v)
    return out, *back(g)


def drawn(rng, rows, cols, E, dtype=np.float32):
    shapes = (rows, E), (cols, E), (E,), (rows, cols)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_and_gradients(sizes, rng):
    arrays = drawn(rng, *sizes)
    wants = oracle(*arrays)
    for got, want in zip(outcome(*arrays), wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-5)
    with jax.enable_x64(True):
        arrays = drawn(rng, *sizes, np.float64)
        for got, want in zip(outcome(*arrays), oracle(*arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [30.0, 60.0, 1e4, 3e38])
def test_inputs_of_any_size(size, rng):
    q, k, v, g = drawn(rng, 6, 9, 4)
    q, k = (np.clip(x * np.float64(size), -3e38, 3e38).astype(np.float32) for x in (q, k))
    k[:4], q[-1] = -q[:4], 0  # large ones that cancel (float32 sums of such are exact), and others
    with np.errstate(over="ignore"):
        wants = oracle(q, k, v, g)
    for got, want in zip(outcome(q, k, v, g), wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_parts_are_batched_each_by_its_own_size(scale, rng, small_tiles):
    """Under vmap twice: one batch element needs tanh itself, the others do not."""
    draw = functools.partial(drawn, rng, 5, 3, 3)
    batch = [np.stack(x) for x in zip(*(draw() for _ in range(4)), strict=True)]
    batch[0][1] *= scale
    wants = [np.stack(x) for x in zip(*map(oracle, *batch), strict=True)]
    two = [x.reshape(2, 2, *x.shape[1:]) for x in batch]
    for got, want in zip(jax.vmap(jax.vmap(outcome))(*two), wants, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=3e-5)


def test_without_features_or_keys():
    none = jnp.ones((3, 0)), jnp.ones((2, 0)), jnp.ones(0)
    assert additive_pallas.sum_tanh(*none, True).tolist() == [[0, 0]] * 3
    q, v = jnp.ones((3, 2)), jnp.ones(2)
    assert additive_pallas.sum_tanh(q, q[:0], v, True).shape == (3, 0)


def test_attend_uses_it_where_there_is_a_gpu(draw, draw_params, monkeypatch, small_tiles):
    assert pairs._additive() is additive
    q, k, v = draw(batch=(), T=5, S=9, N=2, K=1).cast(jnp.float32)
    params = jax.tree.map(jnp.asarray, draw_params("additive", 4, 4, num_heads=2))
    params = jax.tree.map(lambda x: x.astype(jnp.float32), params)

    def run(q, k, v, params, implementation):
        out = ar.attend(
            *(q, k, v), score="additive", score_params=params, implementation=implementation
        )
        return jnp.sin(out).sum(), out

    @functools.partial(jax.jit, static_argnums=4)
    def both(*arguments):
        return jax.grad(run, (0, 1, 2, 3), has_aux=True)(*arguments)

    want = both(q, k, v, params, "dense")
    calls = []

    class Interpreted:
        @staticmethod
        def sum_tanh(*arguments):
            calls.append("sum_tanh")
            return additive_pallas.sum_tanh(*arguments, True)

        @staticmethod
        def values(*arguments):
            calls.append("values")
            return additive_pallas.values(*arguments, True)

    monkeypatch.setattr(pairs, "_additive", lambda: Interpreted)
    got = both(q, k, v, params, "blocked")
    assert set(calls) == {"sum_tanh", "values"}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=3e-5), got, want)
    monkeypatch.undo()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert pairs._additive() is additive_pallas


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_it_is_lowered_to_triton():
    """What Triton has no rule for would raise."""
    gpu = jax.sharding.AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=gpu)
    q, k, v, _ = (jnp.asarray(x) for x in drawn(np.random.default_rng(0), 33, 70, 20))
    batch = [jnp.stack([x, x]) for x in (q, k, v)]
    grad = jax.grad(lambda *x: additive_pallas.sum_tanh(*x).sum(), (0, 1, 2))
    with jax.sharding.use_abstract_mesh(mesh):
        lowered = jax.jit(jax.vmap(grad)).trace(*batch).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("xla.gpu.triton") == 3
