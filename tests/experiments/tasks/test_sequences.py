import numpy as np
import pytest

from experiments import tasks
from experiments.config import TaskConfig
from experiments.errors import UserError
from experiments.tasks import _sequences

from .conftest import small


def published():
    """The reverse task of JoeyNMT 2.3: lists of integers, train, validation, test."""
    np.random.seed(42)
    parts = []
    for amount, longest in ((50_000, 25), (1000, 30), (1000, 30)):
        part = []
        for _ in range(amount):
            size = np.random.randint(1, longest + 1)
            part.append(np.random.randint(0, 50, size).tolist())
        parts.append(part)
    return parts


def sequences(split):
    return [[int(word) for word in text.split()] for text in split]


@pytest.fixture(scope="module")
def numbers():
    state = np.random.get_state()
    yield published()
    np.random.set_state(state)


def test_numbers_are_the_published_ones(numbers):
    """At the default sizes, without going through files."""
    drawn = _sequences.draw(_sequences.DEFAULTS, lambda words: words)
    train, validation, test = (sequences(drawn[s].source) for s in ("train", "validation", "test"))
    assert test == numbers[2]
    held_out = {tuple(x) for x in numbers[2]}
    again = [i for i, x in enumerate(numbers[1]) if tuple(x) in held_out]
    assert again and [i for i in range(1000) if validation[i] != numbers[1][i]] == again
    held_out |= {tuple(x) for x in validation}
    again = [i for i, x in enumerate(numbers[0]) if tuple(x) in held_out]
    assert again and [i for i in range(50_000) if train[i] != numbers[0][i]] == again


def test_smaller_splits_are_the_first_of_them(numbers, loaded):
    splits = loaded("reverse").splits
    assert sequences(splits["test"].source_text) == numbers[2][:40]
    train = sequences(splits["train"].source_text)
    same = sum(a == b for a, b in zip(train, numbers[0][:400], strict=True))
    assert 370 < same <= 400


def test_larger_ones_go_on():
    base, larger = (
        _sequences.draw({**_sequences.DEFAULTS, **sizes}, lambda words: words)
        for sizes in ({}, {"train_examples": 50_100, "eval_examples": 1010})
    )
    assert len(larger["train"]) == 50_100 and len(larger["test"]) == 1010
    assert larger["test"].source[:1000] == base["test"].source
    assert not set(larger["train"].source) & set(larger["test"].source)


def test_reverse_and_copy(loaded):
    backward, forward = loaded("reverse"), loaded("copy")
    for name, split in backward.splits.items():
        assert sequences(split.target_text) == [x[::-1] for x in sequences(split.source_text)]
        assert forward.splits[name].source_text == split.source_text
        assert forward.splits[name].target_text == split.source_text


def test_options(loaded):
    task = loaded("copy", vocabulary_size=7, max_length=12)
    assert task.source.size == 7 + 4
    longest = {name: split.source_ids.lengths.max() for name, split in task.splits.items()}
    assert longest == {"train": 12, "validation": 17, "test": 17}
    symbols = {word for text in task.splits["train"].source_text for word in text.split()}
    assert symbols == set("0123456")


def test_too_few_sequences():
    with pytest.raises(UserError, match="vocabulary_size=2 with task.max_length=3 gives too few"):
        tasks.check(small("reverse", vocabulary_size=2, max_length=3))
    tasks.check(TaskConfig(name="reverse", vocabulary_size=2, max_length=13))


def test_clean():
    assert _sequences.clean(" 3, 1,2 ") == "3 1 2"
