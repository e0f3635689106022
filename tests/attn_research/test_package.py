"""The package as a whole: import, doctests, the oracle."""

import operator
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attn_research as ar
from tests import examples

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
    assert not examples.failures(name)


@pytest.mark.parametrize(
    ("written", "printed", "same"),
    [
        ("[[0.7615942]]", "[[0.7615941]]", True),
        ("[[0.7615942]]", "[[0.7615842]]", False),
        ("[1.  0.5]", "[0.99999994 0.5       ]", True),
        ("[0.25 0.5 ]", "[0.26 0.5 ]", False),
        ("1.0397", "1.0398", True),
        ("1.0397", "1.0399", False),
        ("[0. 1.]", "[1.e-07 1.e+00]", True),
        ("3 True", "4 True", False),
        ("3 True", "3 False", False),
        ("[1. 2.]", "[1. 2. 3.]", False),
        ("2e-09", "2e-08", False),
    ],
)
def test_an_example_may_round_its_last_digit_otherwise_and_no_more(written, printed, same):
    assert examples.Checker().check_output(written + "\n", printed + "\n", 0) is same


def test_the_public_names_exist():
    assert all(hasattr(ar, name) for name in ar.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        ar.atend  # noqa: B018


def test_the_names_that_texts_mention_exist():
    files = [ROOT / "README.md", *Path(ar.__path__[0]).rglob("*.py")]
    for file in files:
        for name in re.findall(r"\bar\.([a-zA-Z_]\w*(?:\.\w+)*)", file.read_text()):
            assert name.split(".")[0] in ar.__all__, f"{file.name}: ar.{name} is not public"
            operator.attrgetter(name)(ar)


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
