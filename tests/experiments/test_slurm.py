"""A sweep through a real Slurm, started for the test: python -m pytest -m slurm"""

import os
import re
import subprocess
import time

import pytest

from experiments import runs
from tests import slurm_cluster
from tests.experiments.launching import environment, launch, start
from tests.experiments.test_sweeps import command, directories, timeless


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("submitit")
    missing = slurm_cluster.why_not()
    if missing:
        pytest.skip(missing)
    with slurm_cluster.cluster() as env:
        yield env


@pytest.mark.slurm
def test_a_sweep_whose_job_is_cancelled_is_completed_by_the_same_command(cluster, tmp_path):
    env = environment(tmp_path) | {k: cluster[k] for k in ("SLURM_CONF", "PATH")}
    arguments = [*command(tmp_path, "two_programs"), "--executor=slurm", "--slurm=timeout_min=10"]
    process = start(*arguments, env=env)
    job = ""
    while not job:
        line = process.stdout.readline()
        assert line, "it ended without submitting"
        found = re.search(r"submitted 2 jobs, (\d+)_0 ... \d+_1", line)
        job = found[1] if found else ""
    while not any((path / "metrics.jsonl").exists() for path in directories(tmp_path)):
        assert process.poll() is None
        time.sleep(0.2)
    subprocess.run(["scancel", job], env=env, check=True)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "points are not done" in out and "Traceback" not in out, out
    assert {row["status"] for row in timeless(tmp_path)} <= {"done", "stopped", "missing"}
    status, out = launch(*arguments, env=env)
    assert status == 0 and "report.html" in out, out
    assert [row["status"] for row in timeless(tmp_path)] == ["done"] * 4
    for path in directories(tmp_path):
        assert runs.done(path)
    # The same as here, without Slurm; and a third time nothing is submitted.
    local = tmp_path / "local"
    status, out = launch(*command(local, "two_programs"), env=environment(tmp_path))
    assert status == 0 and timeless(local) == timeless(tmp_path), out
    status, out = launch(*arguments, env=env)
    assert status == 0 and "submitted" not in out, out


def test_without_submitit_or_slurm_it_says_what_to_do(tmp_path):
    env = environment(tmp_path) | {"PATH": os.path.dirname(os.sys.executable)}
    status, out = launch(*command(tmp_path), "--executor=slurm", env=env)
    assert status == 1 and "Traceback" not in out, out
    assert "pip install -e '.[slurm]'" in out or "sbatch" in out, out
    status, out = launch(*command(tmp_path), "--executor=slurm", "--slurm=fast", env=env)
    assert status == 1 and "Traceback" not in out
