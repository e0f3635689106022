"""The package as a whole: import, doctests, many devices."""

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import attn_research as ar

ROOT = Path(ar.__file__).parents[1]


def python(code: str, *args: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *args, "-c", code],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MODULES = sorted(m.name for m in pkgutil.walk_packages(ar.__path__, "attn_research."))


@pytest.mark.parametrize("name", ["attn_research", *MODULES])
def test_examples_in_docstrings(name):
    failures, _ = doctest.testmod(importlib.import_module(name))
    assert not failures


def test_the_public_names_exist():
    assert all(hasattr(ar, name) for name in ar.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        ar.atend  # noqa: B018


def test_importing_does_no_work():
    python(
        "import sys, time, jax\n"
        "start = time.process_time()\n"
        "import attn_research as ar\n"
        "seconds = time.process_time() - start\n"
        "assert seconds < 0.5, seconds\n"
        "assert 'flax' not in sys.modules\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "ar.SelfAttention, ar.CrossAttention\n"
        "assert not xla_bridge.backends_are_initialized()\n",
        "-W",
        "error",
    )


def test_the_oracle_shares_no_code():
    python(
        "import importlib.util, sys\n"
        f"folder = {ar.__path__[0]!r} + '/reference'\n"
        "spec = importlib.util.spec_from_file_location('oracle', folder + '/__init__.py',\n"
        "    submodule_search_locations=[folder])\n"
        "module = sys.modules['oracle'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert not {'jax', 'attn_research'} & set(sys.modules)\n"
        "module.attention([[1.0]], [[1.0]], [[1.0]])\n"
    )


PMAP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
import attn_research as ar
from attn_research import reference

assert jax.device_count() == 8
rng = np.random.default_rng()
q, k, v = (rng.normal(size=s) for s in ((8, 3, 2, 4), (8, 5, 2, 4), (8, 5, 2, 3)))
n = np.arange(8) % 6
visible = np.arange(5) < n[:, None, None, None]
single = [jnp.asarray(x, jnp.float32) for x in (q, k, v)]
for score in ar.SCORES:
    params = ar.init_score(score, jax.random.key(0), 4, 4)

    def one(params, q, k, v, n):
        options = dict(score=score, score_params=params, mask=ar.masks.lengths(n))
        return ar.attend(q, k, v, **options)

    want = reference.attention(q, k, v, score=score, score_params=params, mask=visible)[0]
    mapped = jax.pmap(one, in_axes=(None, 0, 0, 0, 0))
    np.testing.assert_allclose(mapped(params, *single, n), want, atol=2e-6)
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (P(), *(P("batch"),) * 4)
    sharded = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=P("batch")))
    np.testing.assert_allclose(sharded(params, *single, n), want, atol=2e-6)

    def total(params, q, k, v, n):
        return jnp.sin(one(params, q, k, v, n)).sum()

    grads = jax.pmap(jax.grad(total, argnums=(1, 2, 3)), in_axes=(None, 0, 0, 0, 0))
    alone = jax.jit(jax.grad(total, argnums=(1, 2, 3)))(params, *single, n)
    for got, wanted in zip(grads(params, *single, n), alone):
        np.testing.assert_allclose(got, wanted, atol=2e-6)
"""


def test_pmap_and_shard_map_on_eight_devices():
    flags = "--xla_force_host_platform_device_count=8"
    python(PMAP, "-W", "error", XLA_FLAGS=flags, JAX_DISABLE_MOST_OPTIMIZATIONS="1")
