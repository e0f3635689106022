"""Dates as people write them to ISO 8601, by characters: "thu, may 3, 2007" -> "2007-05-03".

Every day from 1970 to 2029 in 18 formats of American English, by babel; where a format has two
digits for the year, those decades leave no doubt which it is. Lower case.
"""

import datetime
import re
import string

import numpy as np

from experiments.errors import UserError
from experiments.tasks._pairs import Definition, Log, Options, Texts, squeeze
from experiments.vocabulary import Characters

LOCALE = "en_US"
FIRST, LAST = datetime.date(1970, 1, 1), datetime.date(2029, 12, 31)
FORMATS = (
    "short",
    "medium",
    "long",
    "full",
    "d MMM y",
    "d MMMM y",
    "dd MMM y",
    "d MMM yy",
    "d MMMM, y",
    "MMM d y",
    "MMMM d y",
    "EEE, MMM d, y",
    "EEEE, d MMMM y",
    "EEEE d MMM y",
    "y MMM d",
    "y/MM/dd",
    "dd.MM.y",
    "dd.MM.yy",
)
SENTENCES = 300_000  # a few more there are
SOURCE = string.ascii_lowercase + string.digits + " ,./-"
TARGET = string.digits + "-"


def draw(options: Options, log: Log) -> dict[str, Texts]:
    from babel.dates import format_date

    train, held_out = options["train_examples"], options["eval_examples"]
    days = (LAST - FIRST).days + 1
    pairs: dict[str, str] = {}
    for index in np.random.RandomState(17).permutation(days * len(FORMATS)).tolist():
        date = FIRST + datetime.timedelta(index % days)
        text = format_date(date, FORMATS[index // days], locale=LOCALE)
        pairs[clean(text)] = date.isoformat()
        if len(pairs) == train + 2 * held_out:
            break
    drawn = list(pairs.items())
    return {
        "train": Texts.of(drawn[:train]),
        "validation": Texts.of(drawn[train : train + held_out]),
        "test": Texts.of(drawn[train + held_out :]),
    }


def check(options: Options, _: object) -> None:
    wanted = options["train_examples"] + 2 * options["eval_examples"]
    if wanted > SENTENCES:
        raise UserError(
            f"task.train_examples + 2 task.eval_examples = {wanted} different sentences: the task "
            f"'human_dates' has {SENTENCES}"
        )


def clean(text: str) -> str:
    """Lower case, single spaces, "3rd" as "3".

    >>> clean("May  3rd, 2007")
    'may 3, 2007'
    """
    return re.sub(r"(\d)(st|nd|rd|th)\b", r"\1", squeeze(text.lower()))


TASK = Definition(
    defaults={"train_examples": 50_000, "eval_examples": 1000},
    stored=("train_examples", "eval_examples"),
    draw=draw,
    vocabularies=lambda *_: (Characters(SOURCE), Characters(TARGET)),
    clean=clean,
    check=check,
)
