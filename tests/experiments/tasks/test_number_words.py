import itertools

import numpy as np
import pytest
from num2words import num2words

from experiments import tasks
from experiments.config import TaskConfig
from experiments.errors import UserError
from experiments.tasks import number_words

ENGLISH = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
ENGLISH += " fifteen sixteen seventeen eighteen nineteen"
TENS = dict(twenty=20, thirty=30, forty=40, fifty=50, sixty=60, seventy=70, eighty=80, ninety=90)
UNITS = {word: value for value, word in enumerate(ENGLISH.split())} | TENS
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def parse(text):
    """The number that English words name."""
    total = group = 0
    for word in text.replace(",", " ").replace("-", " ").split():
        if word == "hundred":
            group *= 100
        elif word in SCALES:
            total, group = total + group * SCALES[word], 0
        elif word != "and":
            group += UNITS[word]
    return total + group


@pytest.mark.parametrize(
    ("number", "english", "french"),
    [
        (0, "zero", "zéro"),
        (42, "forty-two", "quarante-deux"),
        (71, "seventy-one", "soixante et onze"),
        (80, "eighty", "quatre-vingts"),
        (97, "ninety-seven", "quatre-vingt-dix-sept"),
        (200, "two hundred", "deux cents"),
        (1_000, "one thousand", "mille"),
        (80_000, "eighty thousand", "quatre-vingt mille"),
        (2_000_200, "two million, two hundred", "deux millions deux cents"),
        (1_000_000_001, "one billion and one", "un milliard un"),
    ],
)
def test_wording(number, english, french):
    assert number_words.words(number, "en") == english
    assert number_words.words(number, "fr") == french


def test_wording_is_that_of_num2words():
    rng = np.random.default_rng(0)
    numbers = [int(rng.integers(0, 10 ** int(d))) for d in rng.integers(1, 16, 1500)]
    for number in [*range(1001), *numbers, 10**15 - 1]:
        for language in ("en", "fr"):
            assert number_words.words(number, language) == num2words(number, lang=language)


@pytest.mark.parametrize("options", [{}, {"max_number": 10**15}, {"max_terms": 4}])
def test_pairs(loaded, options):
    """The target is the French wording of the number that the source names."""
    task = loaded("number_words", **options)
    limit, terms = options.get("max_number", 10**9), options.get("max_terms", 1)
    for split in task.splits.values():
        for source, target in zip(split.source_text, split.target_text, strict=True):
            numbers = [parse(part) for part in source.split("; ")]
            assert all(number < limit for number in numbers) and len(numbers) <= terms
            assert target == "; ".join(num2words(number, lang="fr") for number in numbers)


def test_lengths(loaded):
    train = loaded("number_words").splits["train"]
    digits = [len(str(parse(text))) for text in train.source_text]
    counts = np.bincount(digits, minlength=10)[1:]
    assert counts[0] <= 10 and counts.min() > 0  # there are ten numbers of one digit
    assert counts[2:].min() > 0.5 * counts[2:].max()
    lists = loaded("number_words", max_terms=4).splits["train"]
    terms = np.bincount([text.count(";") + 1 for text in lists.source_text], minlength=5)[1:]
    assert terms.min() > 0.15 * terms.sum()
    assert lists.source_ids.lengths.max() > 60


def test_short_numbers_are_mostly_in_training(tmp_path):
    config = TaskConfig(max_number=10**5, train_examples=3000, eval_examples=100)
    drawn = number_words.draw(tasks._options(number_words.TASK, config), print)
    short = set(number_words.words(n, "en") for n in range(100))
    assert len(short & set(drawn["train"].source)) > 85


def test_all_numbers_there_are():
    for train, held_out in ((80, 10), (1, 1)):
        config = TaskConfig(max_number=100, train_examples=train, eval_examples=held_out)
        tasks.check(config)
        drawn = number_words.draw(tasks._options(number_words.TASK, config), print)
        sizes = {split: len(set(texts.source)) for split, texts in drawn.items()}
        assert sizes == {"train": train, "validation": held_out, "test": held_out}
    resolved = tasks.resolve(TaskConfig(max_number=100))
    assert (resolved.train_examples, resolved.eval_examples) == (80, 10)


def test_more_than_there_are():
    with pytest.raises(UserError, match="= 102 different sentences, .*there are 100: ask"):
        tasks.check(TaskConfig(max_number=100, train_examples=82, eval_examples=10))
    with pytest.raises(UserError, match="task.max_number=.* is more than"):
        tasks.check(TaskConfig(max_number=10**16))


@pytest.mark.parametrize("number", [5, 10, 42, 1000, 10**9, 10**15])
def test_vocabulary_has_every_word(number):
    options = {"max_number": number}
    english, french = number_words.vocabularies(options)
    rng = np.random.default_rng(1)
    for n in itertools.chain(range(min(number, 1000)), rng.integers(0, number, 300).tolist()):
        for vocabulary, language in ((english, "en"), (french, "fr")):
            text = number_words.words(n, language) + "; " + number_words.words(0, language)
            assert 3 not in vocabulary.encode(text)
            assert vocabulary.decode(vocabulary.encode(text)) == text
    assert english.size < 60 and french.size < 60


def test_clean():
    assert number_words.clean(" Forty two") == "forty-two"
    assert number_words.clean("one thousand ,two hundred ;Six.") == "one thousand, two hundred; six"
