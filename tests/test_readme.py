"""What README says must run: its Python, and the files that it names."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_in_it_runs_and_gives_the_shapes_in_its_comments():
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    names: dict = {}
    exec(code, names)
    claims = re.findall(r"^(\w+) = .*# (\[\d[\d, ]*\])$", code, flags=re.M)
    assert len(claims) >= 2
    for name, shape in claims:
        assert list(names[name].shape) == eval(shape), name


def test_every_file_that_it_names_is_there():
    named = re.findall(r"(?:configs|docs|attn_research|experiments)/[\w/]+\.\w+", README)
    assert named and all((ROOT / name).exists() for name in named)
