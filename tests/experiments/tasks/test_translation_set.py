"""TFDS sets without a network: on mock data, and on small sets written here."""

import pytest
import tensorflow_datasets as tfds

from experiments import tasks
from experiments.config import TaskConfig
from experiments.errors import UserError
from experiments.tasks import _storage, _translation_set

NAME = "ted_hrlr_translate/pt_to_en"


def config(place, **options):
    return TaskConfig(tfds=NAME, data_dir=str(place), vocabulary_size=400, **options)


def silent(line):
    pass


def write(place, splits):
    """The TFDS set NAME, with these sentence pairs in the place of its own."""
    with _storage.quiet():
        original = tfds.builder_cls("ted_hrlr_translate")

        def examples(self, pairs):
            for i, (pt, en) in enumerate(pairs):
                yield i, {"pt": pt, "en": en}

        members = {
            "name": "ted_hrlr_translate",
            "_split_generators": lambda self, _: {s: examples(self, p) for s, p in splits.items()},
            "_generate_examples": examples,
            "pkg_dir_path": original.pkg_dir_path,
        }
        cls = type("Small", (original,), members, skip_registration=True)
        builder = cls(config="pt_to_en", data_dir=str(place), file_format="array_record")
        builder.download_and_prepare()


def pairs(*numbers):
    return [(f"frase numero {i}", f"sentence number {i}") for i in numbers]


def sources(task, split):
    return {int(text.split()[-1]) for text in task.splits[split].source_text}


def test_mock_data(tmp_path):
    with tfds.testing.mock_data(num_examples=60):
        task = tasks.load(config(tmp_path), log=silent)
    assert task.name == NAME
    assert all(len(split) for split in task.splits.values())
    texts = [set(split.source_text) for split in task.splits.values()]
    assert sum(map(len, texts)) == len(set.union(*texts))
    assert (
        task.source.decode(task.splits["test"].source_ids[0]) == task.splits["test"].source_text[0]
    )


def test_own_splits_made_disjoint(tmp_path):
    write(
        tmp_path,
        {
            "train": [*pairs(*range(100)), ("frase numero 3", "another"), ("", "empty")],
            "validation": pairs(98, 99, 100, 101, 102),
            "test": pairs(99, 102, 103),
        },
    )
    task = tasks.load(config(tmp_path), log=silent)
    assert sources(task, "test") == {99, 102, 103}
    assert sources(task, "validation") == {98, 100, 101}
    assert sources(task, "train") == set(range(98))
    assert len(task.splits["train"]) == 99  # the sentence with two translations keeps both
    train = task.splits["train"]
    for source, target in zip(train.source_text, train.target_text, strict=True):
        assert target == "another" or target.split()[-1] == source.split()[-1]


def test_missing_splits_come_from_training(tmp_path):
    write(tmp_path / "a", {"train": pairs(*range(100))})
    task = tasks.load(config(tmp_path / "a", eval_examples=7), log=silent)
    sizes = {name: len(split) for name, split in task.splits.items()}
    assert sizes == {"train": 86, "validation": 7, "test": 7}
    write(tmp_path / "b", {"train": pairs(*reversed(range(100)))})  # in another order
    other = tasks.load(config(tmp_path / "b", eval_examples=7), log=silent)
    for split in task.splits:
        assert sources(task, split) == sources(other, split)
    assert set.union(*(sources(task, split) for split in task.splits)) == set(range(100))


def test_fewer_training_sentences_same_test(tmp_path):
    write(tmp_path, {"train": pairs(*range(100))})
    task, few = (
        tasks.load(config(tmp_path, eval_examples=5, train_examples=n), log=silent)
        for n in (None, 20)
    )
    assert len(few.splits["train"]) == 20
    assert sources(few, "train") < sources(task, "train")
    assert sources(few, "test") == sources(task, "test")


def test_pieces_are_kept_beside_the_data(tmp_path):
    write(tmp_path, {"train": pairs(*range(100))})
    lines = []
    tasks.load(config(tmp_path), log=lines.append)
    assert sum("learned" in line for line in lines) == 2
    kept = sorted((tmp_path / NAME).glob("*.json"))
    assert len(kept) == 2
    tasks.load(config(tmp_path), log=lines.append)
    assert sum("learned" in line for line in lines) == 2
    kept[0].write_text("{")  # a damaged file is learned again
    tasks.load(config(tmp_path), log=lines.append)
    assert sum("learned" in line for line in lines) == 3


def test_long_pairs_are_left_out_of_every_split(tmp_path):
    long = [("longa " * 50 + f"frase {i}", f"sentence {i}") for i in range(3)]
    write(
        tmp_path,
        {
            "train": pairs(*range(50)) + long[:1],
            "validation": long[1:2] + pairs(60),
            "test": pairs(61) + long[2:],
        },
    )
    lines = []
    task = tasks.load(config(tmp_path, max_length=30), log=lines.append)
    assert [len(task.splits[s]) for s in ("train", "validation", "test")] == [50, 1, 1]
    assert lines[-1] == (
        "left out, longer than task.max_length=30: 1 of 51 train, 1 of 2 validation, 1 of 2 test "
        "pairs"
    )


def test_no_data_and_no_network(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", refuse)
    with pytest.raises(UserError) as error:
        tasks.load(config(tmp_path), log=silent)
    line = str(error.value)
    assert "\n" not in line and NAME in line and str(tmp_path) in line and "no connection" in line
    assert "task.data_dir" in line


def test_other_files(tmp_path):
    write(tmp_path, {"train": pairs(*range(10))})
    for path in (tmp_path / NAME).glob("*/*array_record*"):
        path.write_bytes(b"not this")
    with pytest.raises(UserError, match="cannot be read"):
        tasks.load(config(tmp_path), log=silent)


def test_set_prepared_in_another_format(tmp_path):
    write(tmp_path, {"train": pairs(*range(10))})
    info = next(tmp_path.glob("**/dataset_info.json"))
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(UserError, match="TFRECORD") as error:
        tasks.check(config(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ted_hrlr_translat/pt_to_en", "did you mean 'ted_hrlr_translate'"),
        ("ted_hrlr_translate/pt_en", "did you mean 'pt_to_en'"),
        ("ted_hrlr_translate", "has the pairs az_to_en"),
        ("ted_multi_translate", "not a set of sentence pairs"),
        ("mnist", "not a set of sentence pairs"),
    ],
)
def test_not_a_set_of_pairs(tmp_path, name, says):
    with pytest.raises(UserError, match=says):
        tasks.check(TaskConfig(tfds=name, data_dir=str(tmp_path)))


def test_option_of_another_task():
    with pytest.raises(UserError, match="task.max_terms=2: the task 'ted_hrlr_translate/pt_to_en'"):
        tasks.check(TaskConfig(tfds=NAME, max_terms=2))


def test_resolve(tmp_path):
    resolved = tasks.resolve(TaskConfig(tfds=NAME, data_dir=str(tmp_path)))
    assert resolved.name == resolved.tfds == NAME
    assert (resolved.vocabulary_size, resolved.max_length, resolved.train_examples) == (
        8000,
        60,
        None,
    )
    assert tasks.resolve(resolved) == resolved


def test_downloads_give_up_soon():
    from tensorflow_datasets.core.download import downloader

    before = downloader.MAX_RETRIES
    with _translation_set._few_retries():
        assert downloader.MAX_RETRIES == _translation_set.RETRIES < before
    assert downloader.MAX_RETRIES == before
