"""Proof that the tests of the library can fail: each mutant breaks one line, and must be caught.

    python -m tests.mutants            # all of them, minutes each on a laptop
    python -m tests.mutants scale      # those whose name has "scale" in it

Each is applied to a copy of the package, on which the test files named beside it run until one
fails. A mutant that survives, or whose line is no longer there, is an error.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """What is wrong, where, what stands there, what is put there, and which tests must see it."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    Mutant(
        "scale dropped",
        "scaling.py",
        '"rsqrt_dim": 1 / math.sqrt(dim)',
        '"rsqrt_dim": 1.0',
        "attend",
    ),
    Mutant(
        "scale 1/d for 1/sqrt(d)",
        "scaling.py",
        "1 / math.sqrt(dim)",
        "1 / dim",
        "attend",
    ),
    Mutant(
        "log-n counts masked keys",
        "scaling.py",
        "    if visible is None:\n        return math.log",
        "    if True:\n        return math.log",
        "options",
    ),
    Mutant(
        "scale of head 0 for all",
        "scaling.py",
        "return x[:, None, None] if x.ndim else x",
        "return x[:1, None, None] if x.ndim else x",
        "options",
    ),
    Mutant(
        "softmax over the queries",
        "normalizers/softmax.py",
        "total = jnp.sum(exps, axis=-1, keepdims=True)",
        "total = jnp.sum(exps, axis=-2, keepdims=True)",
        "attend",
    ),
    Mutant(
        "softmax gradient without its mean",
        "normalizers/softmax.py",
        "weighted - weights * mean",
        "weighted",
        "gradients",
    ),
    Mutant(
        "lse without the maximum",
        "normalizers/softmax.py",
        "(top + jnp.log(",
        "(jnp.log(",
        "attend",
    ),
    Mutant(
        "empty rows are uniform",
        "compute.py",
        "logits = jnp.where(visible, logits, -jnp.inf)",
        "logits = jnp.where(visible, logits, -1e30)",
        "numerics",
    ),
    Mutant(
        "bias forgotten",
        "compute.py",
        "numerics.clip_finite(logits + hidden.bias.astype(logits.dtype))",
        "numerics.clip_finite(logits + 0 * hidden.bias.astype(logits.dtype))",
        "attend gradients",
    ),
    Mutant(
        "bias without a gradient",
        "compute.py",
        "numerics.clip_finite(logits + hidden.bias.astype(logits.dtype))",
        "numerics.clip_finite(logits + jax.lax.stop_gradient(hidden.bias).astype(logits.dtype))",
        "gradients",
    ),
    Mutant(
        "soft-cap after the bias",
        "compute.py",
        "logits = cap * jnp.tanh(logits / cap)",
        "logits = cap * jnp.tanh(logits / cap + (0 if hidden.bias is None else hidden.bias))",
        "attend",
    ),
    Mutant(
        "NaN of a masked key leaks",
        "hide.py",
        "key = key if transformed else jnp.where(seen, key, numerics.HARMLESS)",
        "key = key",
        "numerics",
    ),
    Mutant(
        "NaN of a visible value is hidden",
        "compute.py",
        "if hidden.bad_values is not None:",
        "if False:",
        "numerics",
    ),
    Mutant(
        "result in float32 for bfloat16",
        "compute.py",
        "out = out.astype(inputs.value.dtype)",
        "out = out.astype(jnp.float32)",
        "numerics",
    ),
    Mutant(
        "logits in the dtype of the inputs",
        "numerics.py",
        "preferred_element_type=wide(x.dtype, y.dtype)",
        "preferred_element_type=x.dtype",
        "numerics",
    ),
    Mutant(
        "products overflow",
        "numerics.py",
        "return jnp.maximum(power, 1)",
        "return jnp.ones_like(power)",
        "numerics",
    ),
    Mutant(
        "grouped heads in the wrong order",
        "kernels/dense.py",
        'contract("...tkgd,...skd->...kgts", grouped, key)',
        'contract("...tkgd,...skd->...gkts", grouped, key)',
        "attend",
    ),
    Mutant(
        "values of the wrong group",
        "kernels/dense.py",
        'multiply("...kgts,...skd->...tkgd", grouped, value)',
        'multiply("...kgts,...skd->...tkgd", grouped, value[..., ::-1, :])',
        "attend",
    ),
    Mutant(
        "general: a missing transpose",
        "scores/general.py",
        'project(x, params["kernel"].T)',
        'project(x, params["kernel"])',
        "attend",
    ),
    Mutant(
        "additive: tanh dropped",
        "kernels/dense.py",
        "tanh = jnp.tanh(query[..., :, None, :] + key[..., None, :, :])",
        "tanh = query[..., :, None, :] + key[..., None, :, :]",
        "attend",
    ),
    Mutant(
        "additive: bias dropped",
        "scores/additive.py",
        'return out + params["bias"] if "bias" in params else out',
        "return out",
        "attend",
    ),
    Mutant(
        "causal mask off by one",
        "masks.py",
        'return Band(None, as_int32("causal(offset)", offset))',
        'return Band(None, as_int32("causal(offset)", offset) + 1)',
        "masks",
    ),
    Mutant(
        "lengths off by one",
        "mask_types.py",
        "return positions(col, cols) < jnp.asarray(self.count)[..., None, None, None]",
        "return positions(col, cols) <= jnp.asarray(self.count)[..., None, None, None]",
        "masks",
    ),
    Mutant(
        "not forgets to negate",
        "mask_algebra.py",
        "return ~self.mask.as_array(T, S)",
        "return self.mask.as_array(T, S)",
        "masks",
    ),
    Mutant(
        "dropout does not scale up",
        "dropout.py",
        "scale = 1 / (1 - jnp.asarray(rate, weights.dtype))",
        "scale = 1.0",
        "options",
    ),
    Mutant(
        "dropout: all heads drop alike",
        "dropout.py",
        "return jax.random.bits(key, (*lead, 2), jnp.uint32)",
        "return jnp.broadcast_to(jax.random.bits(key, (2,), jnp.uint32), (*lead, 2))",
        "options",
    ),
    Mutant(
        "talking heads transposed",
        "talking_heads.py",
        "(matrix).astype(x.dtype).T",
        "(matrix).astype(x.dtype)",
        "options",
    ),
    Mutant(
        "differential: maps added",
        "differential.py",
        "return (first - (weight",
        "return (first + (weight",
        "differential",
    ),
    Mutant(
        "window one wider in jax.nn's place",
        "compat.py",
        "see(masks.window(left, right))",
        "see(masks.window(left + 1, right))",
        "compat",
    ),
    Mutant(
        "residual not transposed",
        "compat.py",
        "lse = lse.swapaxes(-1, -2)",
        "lse = lse",
        "compat",
    ),
    Mutant(
        "blocked: context does not fade as the maximum grows",
        "kernels/streams.py",
        "context = context * fade[..., None] + seen.mix(weights)",
        "context = context + seen.mix(weights)",
        "blocked",
    ),
    Mutant(
        "blocked: sum does not fade as the maximum grows",
        "kernels/streams.py",
        "total * fade + weights.sum(-1)",
        "total + weights.sum(-1)",
        "blocked",
    ),
    Mutant(
        "blocked: gradient of the lse forgotten",
        "kernels/streams.py",
        "inner(d_context, context) - d_lse",
        "inner(d_context, context)",
        "blocked",
    ),
    Mutant(
        "blocked: a block too many is skipped",
        "mask_types.py",
        "(low <= most) & (high >= least)",
        "(low < most) & (high > least)",
        "blocked mask_blocks",
    ),
    Mutant(
        "blocked: what fills up the last block is seen",
        "kernels/blocks.py",
        "there = col + jnp.arange(self.cols) < self.plan.S",
        "there = col + jnp.arange(self.cols) >= 0",
        "blocked",
    ),
    Mutant(
        "blocked: a block that is seen in part is taken for whole",
        "kernels/blocks.py",
        "self.mask.all(row, col, self.rows, self.cols)",
        "self.mask.some(row, col, self.rows, self.cols)",
        "blocked",
    ),
    Mutant(
        "blocked: NaN that is seen is forgotten",
        "kernels/blocked.py",
        "return seen | (here if visible",
        "return seen & (here if visible",
        "blocked_traps",
    ),
    Mutant(
        "splash: the queries are rounded once scaled",
        "kernels/splash.py",
        "rest = (query - rounded",
        "rest = 0 * (query - rounded",
        "fused",
    ),
    Mutant(
        "blocked: bias gradient of the last block alone",
        "kernels/blocked.py",
        "return lax.dynamic_update_slice(x, now + block.astype(x.dtype), start)",
        "return lax.dynamic_update_slice(x, block.astype(x.dtype), start)",
        "blocked",
    ),
    Mutant(
        "blocked: gradients of a head's parameters go to the first",
        "kernels/blocked.py",
        "x.at[one.group].set(y)",
        "x.at[0].set(y)",
        "blocked",
    ),
    Mutant(
        "additive: exponentials without a fallback",
        "kernels/additive.py",
        "limit = 0.49 *",
        "limit = 1e9 *",
        "blocked",
    ),
    Mutant(
        "squared distance: moved where that rounds",
        "kernels/distance.py",
        "jnp.where(away < jnp.abs(centre) / 2, centre, 0)",
        "jnp.where(jnp.isfinite(centre), centre + 1e4, 0)",
        "blocked",
    ),
]


def caught(mutant: Mutant) -> bool:
    """Whether a test fails."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        ignore = shutil.ignore_patterns("__pycache__", "experiments")
        for name in ("attn_research", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", copy)
        file = copy / "attn_research" / mutant.file
        code = file.read_text(encoding="utf-8")
        if code.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.name}: {mutant.file} has not one {mutant.old!r}")
        file.write_text(code.replace(mutant.old, mutant.new), encoding="utf-8")
        tests = [f"tests/attn_research/test_{name}.py" for name in mutant.tests.split()]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(copy)}
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{mutant.name}: pytest stopped\n{done.stdout}{done.stderr}")
        return done.returncode == 1


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if all(word in m.name for word in words)]
    survivors = []
    for i, mutant in enumerate(chosen, 1):
        killed = caught(mutant)
        print(f"{i}/{len(chosen)} {'caught' if killed else 'SURVIVED'}: {mutant.name}", flush=True)
        survivors += [] if killed else [mutant.name]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} caught")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
