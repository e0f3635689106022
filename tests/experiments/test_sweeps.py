"""Sweeps from outside: run, disturbed, shared, grouped, and what is said of points that fail."""

import csv
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from experiments import runs, summary
from tests.experiments.launching import environment, launch, start

CONFIG = """
from configs import reverse
from experiments.sweep import chain, product, seeds


def get_config(variant=""):
    config = reverse.get_config("quick")
    config.task.train_examples, config.task.eval_examples = 200, 20
    config.task.max_length = 5
    config.model.hidden_size, config.model.dropout = 8, 0.0
    config.train.steps, config.train.log_every, config.train.eval_every = 20, 3, 5
    return config


def sweep(variant=""):
    score, scale = "model.attention.score", "model.attention.scale"
    if variant == "large":
        values = {score: ["projected_dot", "additive", "general"], scale: ["none", "rsqrt_dim"]}
        return product(values, seeds(3))
    if variant == "two_programs":
        return product({score: ["additive", "general"]}, seeds(2))
    if variant == "impossible":
        return chain(seeds(2), {"model.hidden_size": [-1]})
    if variant == "three":
        return product({"optim.learning_rate": [0.01, 1e38, 0.02]})
    if variant == "diverging":
        return product({"optim.learning_rate": [0.01, 1e38]}, seeds(2))
    return product({scale: ["none", 0.5]}, seeds(2))
"""


def command(tmp: Path, variant: str = "") -> list[str]:
    tmp.mkdir(exist_ok=True)
    file = tmp / "tiny.py"
    file.write_text(CONFIG)
    return [f"--config={file}:{variant}", "--sweep", f"--workdir={tmp}"]


def timeless(folder: Path) -> list[dict[str, str]]:
    with open(folder / "tiny" / "summary.csv", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in summary.TIMES} for row in table]


def directories(folder: Path) -> list[Path]:
    return sorted(file.parent for file in (folder / "tiny").glob("*/STATUS"))


def kill_and_resume(arguments: list[str], env: dict[str, str], times: int, least: int) -> str:
    """Starts the sweep, kills it `times` times at random, and lets it end."""
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    print(f"{seed=}")
    for _ in range(times):
        process = start(*arguments, env=env)
        time.sleep(least + 8 * chance.random())
        process.send_signal(signal.SIGKILL)
        process.communicate()
    status, out = launch(*arguments, env=env)
    assert status == 0, out
    return out


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("undisturbed")
    env = environment(tmp)
    status, out = launch(*command(tmp), env=env)
    assert status == 0, out
    return env, tmp, out


def test_a_sweep_ends_in_a_table_and_a_report(undisturbed):
    env, tmp, out = undisturbed
    table = timeless(tmp)
    assert [row["status"] for row in table] == ["done"] * 4
    assert [(row["model.attention.scale"], row["seed"]) for row in table] == [
        (scale, seed) for scale in ("none", "0.5") for seed in "01"
    ]
    assert "1 compiled program for" in out and "4/4 done" in out
    assert "summary.csv" in out and "report.html" in out
    for path in directories(tmp):
        assert runs.done(path) and (path / "log.txt").exists() and list((path / "tb").iterdir())
    before = timeless(tmp)
    status, out = launch(*command(tmp), env=env)
    assert status == 0 and "4 done" in out and timeless(tmp) == before
    status, out = launch(*command(tmp), "--dry_run", env=env)
    assert status == 0 and "80 in all, 0 left" in out, out


def test_killed_at_random_it_ends_as_undisturbed(undisturbed, tmp_path):
    env, tmp, _ = undisturbed
    kill_and_resume(command(tmp_path), env, times=2, least=3)
    assert timeless(tmp_path) == timeless(tmp)


@pytest.mark.slow
def test_three_scores_killed_three_times_end_byte_for_byte(tmp_path):
    """3 scores x 2 scales x 3 seeds: some 4 minutes."""
    env = environment(tmp_path / "one")
    one, two = tmp_path / "one", tmp_path / "two"
    status, out = launch(*command(one, "large"), env=env)
    assert status == 0 and "3 of 6" in out, out
    kill_and_resume(command(two, "large"), env, times=3, least=5)
    assert timeless(two) == timeless(one) and len(timeless(one)) == 18


def test_two_launches_share_the_work(undisturbed, tmp_path):
    env, tmp, _ = undisturbed
    processes = [start(*command(tmp_path), env=env) for _ in range(2)]
    outs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outs
    assert timeless(tmp_path) == timeless(tmp)
    for path in directories(tmp_path):
        assert (path / "log.txt").read_text().count("step 1 is done") == 1


def test_members_on_devices_equal_single_runs_and_end_one_by_one(tmp_path):
    """Four members on two devices, in one program, against one after the other; two diverge."""
    tables = []
    for devices in (1, 2):
        tmp = tmp_path / str(devices)
        tmp.mkdir()
        status, out = launch(*command(tmp, "diverging"), env=environment(tmp, devices))
        assert status == 1 and "2 of 4 points are not done" in out and "--retry_failed" in out, out
        assert "the loss is nan at step" in out and "Traceback" not in out
        tables.append(timeless(tmp))
    one, two = tables
    assert [row["status"] for row in one] == ["done", "done", "diverged", "diverged"]
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            if name.endswith("loss") and a[name]:
                np.testing.assert_allclose(float(a[name]), float(b[name]), rtol=1e-4)
            elif name in ("status", "reason", "seed", "train/steps", "optim.learning_rate"):
                assert a[name] == b[name], name
    log = next(path for path in directories(tmp_path / "2") if runs.done(path)) / "log.txt"
    assert "compiles the step of 4 members" in log.read_text()
    # What diverged is left alone, unless asked; a group that was killed goes on together.
    arguments = command(tmp_path / "2", "diverging")
    began = {path: (path / "env.json").stat().st_mtime_ns for path in directories(tmp_path / "2")}
    status, out = launch(*arguments, "--retry_failed", env=environment(tmp_path / "2", 2))
    again = {path: (path / "env.json").stat().st_mtime_ns for path in began}
    assert status == 1
    for path in began:
        assert (began[path] == again[path]) == runs.done(path)


def test_a_stopped_group_goes_on_together_without_those_that_diverged(tmp_path):
    """Three members on two devices, stopped after the one in the middle diverged."""
    env, arguments = environment(tmp_path, devices=2), command(tmp_path, "three")
    process = start(*arguments, env=env)
    while not list((tmp_path / "tiny").glob("*/checkpoints/5/_CHECKPOINT_METADATA")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    status, out = launch(*arguments, env=env)
    assert status == 1 and "1 of 3 points are not done" in out, out
    assert [row["status"] for row in timeless(tmp_path)] == ["done", "diverged", "done"]
    for path in directories(tmp_path):
        if runs.done(path):
            assert "goes on from step" in (path / "log.txt").read_text()
    undisturbed = tmp_path / "undisturbed"
    launch(*command(undisturbed, "three"), env=environment(tmp_path, devices=2))
    assert timeless(undisturbed) == timeless(tmp_path)


def test_damaged_run_directories_are_rows_and_run_again(undisturbed, tmp_path):
    env, tmp, _ = undisturbed
    shutil.copytree(tmp / "tiny", tmp_path / "tiny")
    one, two, three, four = directories(tmp_path)
    (one / "result.json").write_text('{"test/exact_match": 0.')
    (two / "result.json").write_text("[1, 2]")
    (three / "STATUS").write_bytes(b"\xff\xfe")
    (four / "STATUS").write_text("doing")
    (four / "error.txt").write_bytes(b"\xff")
    for flag in ("--dry_run", "--mode=report"):
        status, out = launch(*command(tmp_path), flag, env=env)
        assert status == 0 and "Traceback" not in out, out
    assert [row["status"] for row in timeless(tmp_path)] == ["stopped"] * 4
    status, out = launch(*command(tmp_path), env=env)
    assert status == 0 and timeless(tmp_path) == timeless(tmp), out


def test_ctrl_c_ends_cleanly(undisturbed, tmp_path):
    env, tmp, _ = undisturbed
    process = start(*command(tmp_path), env=env)
    while not any((path / "metrics.jsonl").exists() for path in directories(tmp_path)):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "the same command goes on from there" in out, out
    assert "Traceback" not in out
    assert (tmp_path / "tiny" / "summary.csv").exists()
    states = {row["status"] for row in timeless(tmp_path)}
    assert states <= {"done", "stopped", "missing"}
    status, out = launch(*command(tmp_path), "--processes=2", env=env)
    assert status == 0 and timeless(tmp_path) == timeless(tmp), out


def test_an_impossible_point_is_refused_before_anything_runs(tmp_path):
    status, out = launch(*command(tmp_path, "impossible"), env=environment(tmp_path))
    assert status == 1 and "point 3 of 3" in out and "model.hidden_size=-1" in out, out
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dry_run"], "--dry_run is of a sweep"),
        (["--executor=slurm"], "--executor is of a sweep"),
        (["--sweep", "--mode=translate"], "leave out --sweep"),
        (["--sweep", "--slurm=timeout_min=5"], "--slurm is of --executor=slurm"),
        (["--sweep", "--executor=slurm", "--processes=2"], "--processes is of"),
        (["--sweep"], "has no sweep(variant)"),
        (["--mode=report"], "has no sweep(variant)"),
    ],
)
def test_flags_that_do_not_go_together(flags, words, tmp_path):
    arguments = ["--config=configs/worked_examples.py", f"--workdir={tmp_path}", *flags]
    status, out = launch(*arguments, env=environment(tmp_path))
    assert status == 1 and words in out and "Traceback" not in out, out
