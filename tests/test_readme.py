"""What README says must run: its Python, and the files that it names."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_in_it_runs_and_gives_the_shapes_in_its_comments():
    code, sweep = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    names: dict = {}
    exec(sweep, names)
    assert len(names["sweep"]()) == 2 * 2 * 3
    exec(code, names)
    claims = re.findall(r"^(\w+)\.shape  # (.+)$", code, flags=re.M)
    assert len(claims) >= 3
    for name, shape in claims:
        assert str(names[name].shape) == shape


def test_every_file_that_it_names_is_there():
    named = re.findall(r"(?:configs|docs|attn_research|experiments)/[\w/]+\.\w+", README)
    assert [name for name in named if not (ROOT / name).exists()] == ["configs/NAME.py"]
