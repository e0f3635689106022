"""A new score is one new file: in a copy of the repository it is found and tested, nothing else
edited; and tested means that a wrong one fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attn_research as ar

ROOT = Path(ar.__file__).parents[1]

SCORE = '''"""Bilinear with a diagonal: ``logits[i, j] = sum_d w_d q_d k_d``.

>>> from attn_research import init_score
>>> init_score("brand_new", None, 2, 2)["w"].tolist()
[1.0, 1.0]
"""

import jax.numpy as jnp

DEFAULT_SCALE = "rsqrt_dim"
PAIRWISE = "dot"
PARAMS = {"w": ("Dq",)}
SAME_DIM = True


def init(key, query_dim, key_dim):
    return {"w": jnp.ones(query_dim)}


def transform_query(params, x):
    return x


def transform_key(params, x):
    return x * params["w"]
'''
WRONG = {  # what -> (what is there, what stands there then)
    "keys leak into each other": ('x * params["w"]', 'x * params["w"] + x.sum(-3, keepdims=True)'),
    "its gradient is not its own": ('x * params["w"]', "x * jax.lax.stop_gradient(params['w'])"),
    "16 bits stay 16 bits": ('x * params["w"]', "(x * params['w']).astype('bfloat16')"),
}


@pytest.fixture
def copy(tmp_path):
    """A copy of the package and its tests."""
    wanted = shutil.ignore_patterns("__pycache__", "experiments")
    shutil.copytree(ROOT / "attn_research", tmp_path / "attn_research", ignore=wanted)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=wanted)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(copy: Path) -> subprocess.CompletedProcess[str]:
    files = [
        f"tests/attn_research/test_{name}.py" for name in ("attend", "gradients", "properties")
    ]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-k",
            "brand_new",
            "-p",
            "no:cacheprovider",
            *files,
        ],
        cwd=copy,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )


def test_a_new_score_is_one_file(copy):
    (copy / "attn_research/scores/brand_new.py").write_text(SCORE)
    done = run(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert passed >= 10, done.stdout


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_new_score_fails(copy, what):
    old, new = WRONG[what]
    wrong = SCORE.replace(old, new).replace("import jax.numpy", "import jax\nimport jax.numpy")
    assert wrong.count(new) == 1
    (copy / "attn_research/scores/brand_new.py").write_text(wrong)
    done = run(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "brand_new" in done.stdout
