"""A run directory that something happened to."""

import pytest

from experiments import runs, signals
from experiments.config import Config
from experiments.errors import UserError


def test_lines_of_metrics_that_are_none_are_left_out_and_those_after_a_step_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'3\n{"step": 1, "a": 2.0}\n\xff\n{"step": 2}\n{"step": 3}\n{"ste')
    assert runs.read_metrics(tmp_path) == [{"step": 1, "a": 2.0}, {"step": 2}, {"step": 3}]
    metrics = runs.Metrics(tmp_path, 2)
    metrics.write(3, {"loss": float("nan")})
    metrics.close()
    assert runs.read_metrics(tmp_path)[1:] == [{"step": 2}, {"step": 3, "loss": None}]


def test_done_means_that_there_is_a_result(tmp_path):
    calls = []

    def run(config, path, log):
        calls.append(path)
        return {"test/loss": float("inf")}

    for _ in range(2):
        runs.execute(run, Config(), tmp_path / "run")
    assert len(calls) == 1
    (tmp_path / "run" / "result.json").unlink()
    runs.execute(run, Config(), tmp_path / "run")
    assert len(calls) == 2
    assert '"test/loss": null' in (tmp_path / "run" / "result.json").read_text()


@pytest.mark.parametrize(
    ("error", "status", "raised"),
    [
        (runs.Diverged("the loss is nan at step 3"), "diverged", UserError),
        (ZeroDivisionError(), "failed", ZeroDivisionError),
        (signals.Stopped("stopped by SIGTERM"), "stopped", None),
    ],
)
def test_status_says_how_it_ended(tmp_path, error, status, raised):
    def run(config, path, log):
        assert runs.status(path) == "running"
        raise error

    if raised:
        with pytest.raises(raised):
            runs.execute(run, Config(), tmp_path)
    else:
        runs.execute(run, Config(), tmp_path)
    assert runs.status(tmp_path) == status and not (tmp_path / "result.json").exists()


def test_the_directory_changes_with_all_that_changes_the_result_and_nothing_else(tmp_path):
    def directory(**changes):
        config = Config()
        for name, value in changes.items():
            setattr(config, name, value)
        return runs.directory(tmp_path, "x", "quick", runs.changes(Config(), config), config)

    plain, other = directory(), directory(seed=3)
    assert plain != other and other.name.startswith("quick,seed=3-")
    moved = Config().task
    moved.data_dir = "elsewhere"
    assert directory(task=moved) == plain
