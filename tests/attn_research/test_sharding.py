"""On eight devices, in all the ways JAX has to use them, everything equals one device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import attn_research as ar

ROOT = Path(ar.__file__).parents[1]

# Runs in a process of its own, which has eight CPU devices. argv: the scores, the seed.
PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import attn_research as ar
from attn_research import scores

assert jax.device_count() == 8
rng = np.random.default_rng(int(sys.argv[2]))
B, T, S, N, D = 8, 8, 6, 8, 4
arrays = [jnp.asarray(rng.normal(size=s), jnp.float32)
          for s in ((B, T, N, D), (B, S, N, D), (B, S, N, 3), (N, T, S))]
lengths = jnp.asarray(rng.integers(0, S + 1, size=B))

def mesh(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))

for score in sys.argv[1].split(","):
    drawn = ar.init_score(score, jax.random.key(0), D, D, num_heads=N)
    leaves = jax.tree.map(lambda x: x + 0.1, drawn.params)
    placed = hasattr(scores.get(score), "place")  # depends on the positions of its queries

    def attend(leaves, q, k, v, bias, n, offset=0):
        mask = ar.masks.lengths(n) & ar.masks.causal(offset - 1)
        options = dict(score=score, score_params=ar.PerHead(leaves), mask=mask, bias=bias)
        context, lse = ar.attend_with_lse(q, k, v, **options)
        return context, jnp.where(lse == -jnp.inf, 0, lse)

    def total(f):
        return lambda *args: sum(jnp.sin(x).sum() for x in f(*args))

    def both(f, *args):
        grads = jax.jit(jax.grad(total(f), argnums=(0, 1, 2, 3, 4)))(*args)
        return jax.tree.leaves((jax.jit(f)(*args), grads))

    args = (leaves, *arrays, lengths)
    want = both(attend, *args)

    def check(got, what):
        for x, y in zip(jax.tree.leaves(got), want, strict=True):
            np.testing.assert_allclose(x, y, atol=2e-5, rtol=1e-5, err_msg=f"{score} {what}")

    def sharded(f, mesh, specs, out):
        return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out)

    batch = (P(), *[P("b")] * 3, P(), P("b"))
    check(both(sharded(attend, mesh(b=8), batch, (P("b"), P("b"))), *args), "batch")
    heads = (P("h"), *[P(None, None, "h")] * 3, P("h"), P())
    out = P(None, None, "h"), P(None, "h")
    check(both(sharded(attend, mesh(h=8), heads, out), *args), "heads")
    two = (P("h"), *[P("b", None, "h")] * 3, P("h"), P("b"))
    out = P("b", None, "h"), P("b", "h")
    check(both(sharded(attend, mesh(b=2, h=4), two, out), *args), "batch and heads")

    if not placed:
        def rows(*args):  # each device has 2 of the 8 queries and says so by the causal offset
            return attend(*args, offset=jax.lax.axis_index("t") * 2)

        queries = (P(), P("b", "t"), P("b"), P("b"), P(None, "t"), P("b"))
        out = P("b", "t"), P("b", None, "t")
        check(both(sharded(rows, mesh(b=2, t=4), queries, out), *args), "batch and queries")

    both_axes = mesh(b=2, h=2, t=2)
    put = [P(), P("b", "t", "h"), P("b", None, "h"), P("b", None, "h"), P("h", "t"), P("b")]
    laid = [jax.device_put(x, NamedSharding(both_axes, p)) for x, p in zip(args, put)]
    got = both(attend, *laid)
    assert not got[0].sharding.is_fully_replicated, "the context should stay sharded"
    check(got, "NamedSharding")

    mapped = jax.pmap(attend, in_axes=(None, 0, 0, 0, None, 0))
    for x, y in zip(mapped(*args), want[:2]):
        np.testing.assert_allclose(x, y, atol=2e-5)
    gradient = jax.grad(total(attend), argnums=(0, 1, 2, 3, 4))
    def summed(*args):
        dp, *dqkv, dbias = gradient(*args)
        return jax.lax.psum(dp, "b"), dqkv, jax.lax.psum(dbias, "b")
    dp, dqkv, dbias = jax.pmap(summed, axis_name="b", in_axes=(None, 0, 0, 0, None, 0))(*args)
    first = jax.tree.map(lambda x: x[0], (dp, dbias))
    check([*want[:2], first[0], *dqkv, first[1]], "pmap")
"""


def program(names: str, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, names, str(seed)],
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("part", range(2))
def test_pmap_shard_map_and_named_sharding(part, seed):
    program(",".join(ar.SCORES[part::2]), seed)
