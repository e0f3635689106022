"""Sequences of integers, for the generated tasks."""

from collections.abc import Callable, Iterator

import numpy as np

from experiments.errors import UserError
from experiments.tasks._pairs import Options, Texts, squeeze
from experiments.vocabulary import Words

LONGER = 5  # by this many may sequences of validation and test exceed those of training
PUBLISHED = {"train": 50_000, "validation": 1000, "test": 1000}
LARGEST = 10**6  # symbols
DEFAULTS = {
    "train_examples": 50_000,
    "eval_examples": 1000,
    "vocabulary_size": 50,
    "max_length": 25,
}


def draw(options: Options, target: Callable[[list[str]], list[str]]) -> dict[str, Texts]:
    """The numbers of JoeyNMT 2.3's generator of the reverse task, for any options.

    One legacy NumPy stream of seed 42 gives a length, then as many integers, for each sequence:
    50,000 of training, then 1,000 of validation, then 1,000 of test. A split takes its first so
    many of these, whatever the size of the others, so that a smaller training set is tested on the
    same sentences. What exceeds the published sizes comes from a stream of its own, and so does
    what takes the place of a validation sequence that is also in test, and of a training sequence
    that is in either: the splits share no source sentence, and test is the published one.
    """
    rng = np.random.RandomState(42)
    wanted = {"train": options["train_examples"]}
    longest = {"train": options["max_length"]}
    for split in "validation", "test":
        wanted[split] = options["eval_examples"]
        longest[split] = options["max_length"] + LONGER
    published = {
        split: [_sequence(rng, longest[split], options) for _ in range(size)]
        for split, size in PUBLISHED.items()
    }
    seen: set[str] = set()
    parts: dict[str, list[str]] = {}
    for stream, split in enumerate(("test", "validation", "train")):
        more = _stream(np.random.RandomState([42, stream]), longest[split], options)
        parts[split] = []
        for i in range(wanted[split]):
            text = published[split][i] if i < PUBLISHED[split] else next(more)
            while text in seen:
                text = next(more)
            parts[split].append(text)
        seen |= set(parts[split])
    return {
        split: Texts(parts[split], [" ".join(target(text.split())) for text in parts[split]])
        for split in PUBLISHED
    }


def _sequence(rng: np.random.RandomState, longest: int, options: Options) -> str:
    size = rng.randint(1, longest + 1)
    return " ".join(map(str, rng.randint(0, options["vocabulary_size"], size)))


def _stream(rng: np.random.RandomState, longest: int, options: Options) -> Iterator[str]:
    while True:
        yield _sequence(rng, longest, options)


def check(options: Options, _: object) -> None:
    """Raises where there are too few sequences for three splits that share none."""
    if options["vocabulary_size"] > LARGEST:
        raise UserError(f"task.vocabulary_size={options['vocabulary_size']} is more than {LARGEST}")
    if options["vocabulary_size"] ** options["max_length"] < 8 * options["eval_examples"]:
        raise UserError(
            f"task.vocabulary_size={options['vocabulary_size']} with task.max_length="
            f"{options['max_length']} gives too few sequences to keep 2 x task.eval_examples="
            f"{options['eval_examples']} of them out of training: make one of the first two larger"
        )


def vocabulary(options: Options) -> Words:
    """Integers as words."""
    return Words([str(i) for i in range(options["vocabulary_size"])])


def clean(text: str) -> str:
    """Commas between numbers are taken for spaces."""
    return squeeze(text.replace(",", " "))
