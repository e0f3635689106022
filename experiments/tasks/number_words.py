"""English number words to French ones, both as num2words has them:
"one thousand and ninety-seven" -> "mille quatre-vingt-dix-sept".

The number of digits is uniform, then the number, so that short ones occur too. With max_terms > 1 a
sentence is a list of 1 to max_terms numbers with "; " between them: a comma would not do, for
"one thousand, one hundred" is 1,100. Four numbers below a billion make about 60 words. Sentences
are drawn without repetition and then dealt to the splits, so that most of the few short numbers are
in training.
"""

import functools
import re
from collections.abc import Iterator

import numpy as np

from experiments.errors import UserError
from experiments.tasks._pairs import Definition, Log, Options, Texts, squeeze
from experiments.vocabulary import Words

LARGEST = 10**15
BETWEEN = "; "
TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
UNITS = "one|two|three|four|five|six|seven|eight|nine"


@functools.cache
def _group(number: int, language: str) -> str:
    from num2words import num2words

    return num2words(number, lang=language)


def words(number: int, language: str) -> str:
    """The wording of num2words for 0 <= number < 10**15, from its wording of each group of three
    digits, which is much faster than asking for every number.

    >>> words(80_000_021, "en"), words(80_000_021, "fr")
    ('eighty million and twenty-one', 'quatre-vingts millions vingt et un')
    """
    groups = []
    scale = 1
    rest = number
    while rest:
        rest, digits = divmod(rest, 1000)
        if digits:
            groups.append(digits * scale)
        scale *= 1000
    if not groups:
        return _group(0, language)
    text = _group(groups.pop(), language)
    for group in reversed(groups):
        join = " " if language == "fr" else ", " if group >= 100 else " and "
        text += join + _group(group, language)
    return text


def _lists(options: Options) -> Iterator[tuple[int, ...]]:
    """Without end; NumPy's legacy generator, whose numbers are promised never to change."""
    rng = np.random.RandomState(15)
    digits = len(str(options["max_number"] - 1))
    low = np.array([0] + [10**d for d in range(1, digits)], np.int64)
    high = np.append(low[1:], options["max_number"])
    while True:
        size = rng.randint(0, digits, (4096, options["max_terms"]))
        numbers = rng.randint(low[size], high[size], dtype=np.int64).tolist()
        terms = rng.randint(1, options["max_terms"] + 1, 4096).tolist()
        for row, count in zip(numbers, terms, strict=True):
            yield tuple(row[:count])


def draw(options: Options, log: Log) -> dict[str, Texts]:
    wanted = options["train_examples"] + 2 * options["eval_examples"]
    distinct: dict[tuple[int, ...], None] = {}
    for numbers in _lists(options):
        distinct[numbers] = None
        if len(distinct) == wanted:
            break
    pool = list(distinct)
    order = np.random.RandomState(16).permutation(wanted)
    ends = np.cumsum([options["train_examples"], options["eval_examples"]])
    parts = zip(("train", "validation", "test"), np.split(order, ends), strict=True)
    return {split: Texts.of(_pair(pool[i]) for i in part) for split, part in parts}


def _pair(numbers: tuple[int, ...]) -> tuple[str, str]:
    english, french = (BETWEEN.join(words(n, lang) for n in numbers) for lang in ("en", "fr"))
    return english, french


def _sentences(options: Options) -> int:
    """How many different ones there are."""
    return sum(options["max_number"] ** terms for terms in range(1, options["max_terms"] + 1))


def fill(options: dict[str, int]) -> Options:
    """Where there are few numbers, a tenth of them for each of validation and test."""
    sentences = _sentences(options)
    held_out = options.get("eval_examples", max(1, min(1000, sentences // 10)))
    train = options.get("train_examples", max(1, min(50_000, sentences - 2 * held_out)))
    return {**options, "train_examples": train, "eval_examples": held_out}


def check(options: Options, _: object) -> None:
    if options["max_number"] > LARGEST:
        raise UserError(f"task.max_number={options['max_number']} is more than {LARGEST}")
    wanted = options["train_examples"] + 2 * options["eval_examples"]
    if wanted > _sentences(options):
        raise UserError(
            f"task.train_examples + 2 task.eval_examples = {wanted} different sentences, and with "
            f"task.max_number={options['max_number']} and task.max_terms={options['max_terms']} "
            f"there are {_sentences(options)}: ask for fewer, or for larger numbers"
        )


def vocabularies(options: Options, *_: object) -> tuple[Words, Words]:
    """Every word of a number below max_number, whether or not it was drawn."""
    found = []
    for language in "en", "fr":
        texts = [words(0, language), BETWEEN]
        scale = 1
        while scale < options["max_number"]:
            texts += [words(n * scale, language) for n in range(1, 1000)]
            scale *= 1000
        texts.append(words(1101, language))  # the words that join groups
        blank = Words([], pattern=r"-?[^\s,;-]+|[,;]", glue="-,;")
        symbols = dict.fromkeys(token for text in texts for token in blank.split(text))
        found.append(Words(tuple(symbols), pattern=blank.pattern, glue=blank.glue))
    return found[0], found[1]


def clean(text: str) -> str:
    """Lower case, hyphens in twenty-one, commas and semicolons where num2words has them.

    >>> clean("Forty two  thousand , three")
    'forty-two thousand, three'
    """
    text = re.sub(r"\s*([,;])\s*", r"\1 ", text.lower())
    return re.sub(rf"\b({TENS}) ({UNITS})\b", r"\1-\2", squeeze(text).rstrip("."))


TASK = Definition(
    defaults={
        "train_examples": None,  # 50,000, or as many as there are
        "eval_examples": None,  # 1,000, or a tenth of what there is
        "max_number": 10**9,
        "max_terms": 1,
    },
    stored=("max_number", "max_terms", "train_examples", "eval_examples"),
    draw=draw,
    vocabularies=vocabularies,
    clean=clean,
    fill=fill,
    check=check,
)
