"""Preparing data while something goes wrong."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from experiments import tasks
from experiments.errors import UserError
from experiments.tasks import _storage

from .conftest import SMALL, small

KILLED = """
    import os, signal
    from experiments.tasks import _storage

    original = _storage._Pairs._generate_examples

    def killed(self, split):
        for i, example in original(self, split):
            if split == "validation" and i == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            yield i, example

    _storage._Pairs._generate_examples = killed
"""


def start(place, before=""):
    """A process that prepares number_words in `place` and prints what it is told."""
    code = textwrap.dedent(before) + textwrap.dedent(f"""
        from experiments import tasks
        from experiments.config import TaskConfig
        task = tasks.load(TaskConfig(data_dir={str(place)!r}, **{SMALL}), log=print)
        print(task.splits["test"].source_text[0])
    """)
    return subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def test_killed_while_preparing(tmp_path, loaded):
    process = start(tmp_path, KILLED)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    left = list(tmp_path.glob("number_words/*/incomplete*"))
    assert left and "prepared" not in out  # it was killed in the middle
    task = tasks.load(small("number_words", data_dir=str(tmp_path)), log=lambda line: None)
    expected = loaded("number_words")
    assert task.splits["train"].source_text == expected.splits["train"].source_text
    assert not list(tmp_path.glob("number_words/*/incomplete*"))


SLOW = """
    import dataclasses, os, time
    from experiments.tasks import number_words

    def late(*args):
        while not os.path.exists({go!r}):
            time.sleep(0.01)
        return number_words.draw(*args)

    number_words.TASK = dataclasses.replace(number_words.TASK, draw=late)
"""


def test_two_processes_at_once(tmp_path, loaded):
    """The second waits for the first, which goes on only when the second says that it waits."""
    go = tmp_path / "go"
    first = start(tmp_path / "data", SLOW.format(go=str(go)))
    assert first.stdout.readline().startswith("preparing number_words")
    second = start(tmp_path / "data", SLOW.format(go=str(go)))
    assert second.stdout.readline().startswith("waiting for another process that prepares")
    go.touch()
    outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert [err for _, err in outputs] == ["", ""]
    sentence = loaded("number_words").splits["test"].source_text[0]
    prepared, drawn = outputs[0][0].splitlines()
    assert prepared.startswith("prepared 400 train") and drawn == sentence
    assert outputs[1][0].splitlines() == [sentence]  # and it prepared nothing


@pytest.mark.parametrize("inside", ["file/data", "file"])
def test_place_that_cannot_be_written(tmp_path, inside):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as error:
        tasks.load(small("copy", data_dir=str(tmp_path / inside)), log=lambda line: None)
    assert "\n" not in str(error.value)
    assert str(tmp_path / inside) in str(error.value) and "task.data_dir" in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_directory_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written"):
        tasks.load(small("copy", data_dir=str(tmp_path)), log=lambda line: None)
    tmp_path.chmod(0o700)


def test_prepared_data_need_no_writing(tmp_path):
    config = small("copy", data_dir=str(tmp_path))
    first = tasks.load(config, log=lambda line: None)
    lock = next(tmp_path.glob("copy/*/.lock"))
    lock.unlink()
    again = tasks.load(config, log=lambda line: pytest.fail(line))
    assert not lock.exists()
    assert again.splits["test"].source_text == first.splits["test"].source_text


def test_damaged_data(tmp_path):
    config = small("copy", data_dir=str(tmp_path))
    tasks.load(config, log=lambda line: None)
    for path in tmp_path.glob("copy/*/*/*train*"):
        path.write_bytes(b"not this")
    with pytest.raises(UserError, match="cannot be read .*delete that directory"):
        tasks.load(config, log=lambda line: None)


def test_error_while_drawing_is_not_hidden(tmp_path):
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _storage.prepared("x", "all", "1.0.0", tmp_path, broken, lambda line: None)


def test_where_data_lie(monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", "/somewhere")
    assert _storage.data_dir(small("copy")) == Path("/somewhere")
    assert _storage.data_dir(small("copy", data_dir="~/x")) == Path("~/x").expanduser()
    monkeypatch.delenv("TFDS_DATA_DIR")
    assert _storage.data_dir(small("copy")) == Path("~/tensorflow_datasets").expanduser()


def test_files_are_array_record(tmp_path):
    tasks.load(small("copy", data_dir=str(tmp_path)), log=lambda line: None)
    names = sorted(path.name for path in tmp_path.glob("copy/*/1.0.0/*"))
    assert "dataset_info.json" in names
    assert sum("array_record" in name for name in names) == 3
