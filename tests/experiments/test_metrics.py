import copy
import json
import logging

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from experiments import metrics

EOS, PAD = 1, 0
HYPOTHESES = [
    "The cat doesn't sit on the mat.",
    "He came home late, and tired.",
    "Quatre-vingt-dix-sept euros, s'il vous plaît !",
    "",
]
REFERENCES = [
    "The cat doesn't sit on the mat.",
    "He came home late and very tired.",
    "Quatre-vingt-dix-neuf euros, s'il vous plaît !",
    "Nothing was said.",
]
HYPOTHESIS_IDS = [[5, 6, 7, EOS], [5, 6, EOS, 9, 9], [5, 6, 7, 8], [EOS]]
REFERENCE_IDS = [[5, 6, 7, EOS, PAD], [5, 6, EOS, PAD, PAD], [5, 6, 7, EOS, PAD], [5, EOS, PAD]]
LENGTHS = [8, 3, 21, 22]
COUNTS = [(4, 4), (3, 3), (2, 4), (0, 2)]


def measure(**changed):
    given = dict(
        hypotheses=HYPOTHESES,
        references=REFERENCES,
        hypothesis_ids=HYPOTHESIS_IDS,
        reference_ids=REFERENCE_IDS,
        source_lengths=LENGTHS,
        token_counts=COUNTS,
        eos_id=EOS,
    )
    return metrics.translation_metrics(**(given | changed))


def test_summary_by_hand_and_by_sacrebleu_itself():
    summary = measure().summary
    names = "exact_match token_accuracy bleu bleu_signature chrf chrf_signature"
    assert list(summary) == names.split()
    # 1: equal; 2: equal up to <eos>, whatever follows; 3: cut off before <eos>; 4: empty.
    assert summary["exact_match"] == 2 / 4
    assert summary["token_accuracy"] == (4 + 3 + 2 + 0) / (4 + 3 + 4 + 2)
    ours = BLEU(), CHRF()
    assert summary["bleu"] == ours[0].corpus_score(HYPOTHESES, [REFERENCES]).score
    assert summary["chrf"] == ours[1].corpus_score(HYPOTHESES, [REFERENCES]).score
    assert 20 < summary["bleu"] < 80
    assert summary["bleu_signature"] == str(ours[0].get_signature())
    assert summary["chrf_signature"] == str(ours[1].get_signature())
    assert "tok:13a" in summary["bleu_signature"] and "version:" in summary["bleu_signature"]
    json.dumps(summary, allow_nan=False)


def test_bleu_by_hand():
    # 6 words against 6: 1-grams 5/6, 2-grams 3/5, 3-grams 2/4, 4-grams 1/3, no brevity penalty.
    score, _ = metrics.bleu(["a b c d x f"], ["a b c d e f"])
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    # 4 words of 8: all precisions 1, brevity penalty exp(1 - 8/4).
    score, _ = metrics.bleu(["a b c d"], ["a b c d e f g h"])
    assert score == pytest.approx(100 * np.exp(-1))


def test_tokenized_text_is_another_score():
    """Case 29: the same translations with their tokens spaced out score differently, whence the
    metrics take detokenized text only, and refuse what is visibly pieces."""
    spaced = [text.replace("'", " ' ").replace("-", " - ") for text in HYPOTHESES]
    spaced_references = [text.replace("'", " ' ").replace("-", " - ") for text in REFERENCES]
    right, _ = metrics.bleu(HYPOTHESES, REFERENCES)
    assert abs(metrics.bleu(spaced, spaced_references)[0] - right) > 1
    assert abs(metrics.bleu(spaced, REFERENCES)[0] - right) > 5
    for pieces in ("\u2581the \u2581c at", "the c@@ at"):
        with pytest.raises(ValueError, match="detokenized"):
            metrics.bleu([pieces], [pieces])
    # One odd sentence of the data is not that; nor is what a model made up.
    metrics.bleu(["a", "b\u2581", "c"], ["a\u2581", "b", "c"])


def test_by_length_by_hand():
    rows = measure().by_length
    found = [(row["length_low"], row["length_high"], row["n"]) for row in rows]
    assert found == [(1, 5, 1), (6, 10, 1), (21, 25, 2)]  # nothing in 11-15, 16-20: no row
    assert [row["exact_match"] for row in rows] == [1, 1, 0]
    assert [row["token_accuracy"] for row in rows] == [1, 1, 2 / 6]
    names = "length_low length_high n exact_match token_accuracy bleu chrf"
    assert list(rows[0]) == names.split()
    last = BLEU(effective_order=True).corpus_score(HYPOTHESES[2:], [REFERENCES[2:]])
    assert rows[2]["bleu"] == last.score
    assert rows[2]["bleu"] == BLEU().corpus_score(HYPOTHESES[2:], [REFERENCES[2:]]).score
    assert rows[2]["chrf"] == CHRF().corpus_score(HYPOTHESES[2:], [REFERENCES[2:]]).score
    assert sum(row["n"] for row in rows) == len(LENGTHS)
    json.dumps(rows, allow_nan=False)


def test_a_bin_of_perfect_short_sentences_is_perfect():
    one = dict(hypothesis_ids=[[5, EOS]], reference_ids=[[5, EOS]], source_lengths=[2])
    result = measure(hypotheses=["vingt"], references=["vingt"], token_counts=[(2, 2)], **one)
    perfect = dict(n=1, exact_match=1, token_accuracy=1, bleu=100, chrf=100)
    assert result.by_length == [dict(length_low=2, length_high=2) | perfect]
    assert result.summary["bleu"] == 0  # as published: no 4-gram
    assert result.summary["chrf"] == 100 and result.summary["exact_match"] == 1


def test_all_hypotheses_empty():
    result = measure(hypotheses=[""] * 4, hypothesis_ids=[[]] * 4)
    assert [result.summary[name] for name in ("exact_match", "bleu", "chrf")] == [0, 0, 0]
    assert all(row["bleu"] == row["chrf"] == 0 for row in result.by_length)


def test_without_token_counts():
    result = measure(token_counts=None)
    assert "token_accuracy" not in result.summary and "token_accuracy" not in result.by_length[0]


def test_arrays_of_ids_deterministic_and_nothing_changed():
    ids = np.array([[5, 6, EOS, PAD], [7, EOS, PAD, PAD]])
    given = dict(
        hypotheses=HYPOTHESES[:2],
        references=REFERENCES[:2],
        hypothesis_ids=ids,
        reference_ids=ids.copy(),
        source_lengths=np.array([4, 2]),
        token_counts=np.array([[2, 3], [2, 2]]),
    )
    kept = copy.deepcopy(given)
    first, second = measure(**given), measure(**given)
    assert first == second
    for name, value in given.items():
        np.testing.assert_array_equal(value, kept[name])
    assert first.summary["exact_match"] == 1 and first.summary["token_accuracy"] == 4 / 5
    assert all(type(v) in (int, float, str) for row in first.by_length for v in row.values())


def test_nothing_that_scores_is_left_to_the_log(caplog):
    with caplog.at_level(logging.WARNING):
        measure()
    assert not caplog.records


@pytest.mark.parametrize(
    "changed, message",
    [
        (dict(hypotheses=HYPOTHESES[:3]), "one item a sentence"),
        (dict(source_lengths=[1]), "one item a sentence"),
        (dict(token_counts=[(1, 1)]), "one item a sentence"),
        (dict(reference_ids=[[5, 6]] * 4), "no <eos>"),
        (dict(token_counts=[(1, 1), (2, 1), (1, 1), (1, 1)]), "correct <= total"),
        (dict(token_counts=[(0, 0)] * 4), "total >= 1"),
        (dict(source_lengths=[-1, 2, 3, 4]), "lengths >= 0"),
    ],
)
def test_what_cannot_be_measured_is_an_error(changed, message):
    with pytest.raises(ValueError, match=message):
        measure(**changed)


def test_no_sentence_is_an_error():
    nothing = dict.fromkeys(
        ["hypotheses", "references", "hypothesis_ids", "reference_ids", "source_lengths"], []
    )
    with pytest.raises(ValueError, match="one sentence or more"):
        measure(**nothing, token_counts=[])
    with pytest.raises(ValueError, match="0 hypotheses"):
        metrics.chrf([], [])
    with pytest.raises(ValueError, match="no sentence"):
        metrics.token_accuracy([])


@pytest.mark.parametrize(
    "lengths, wanted",
    [
        ([7], [(7, 7)]),
        ([1, 8], [(k, k) for k in range(1, 9)]),
        ([1, 9], [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]),
        ([0, 3], [(0, 0), (1, 1), (2, 2), (3, 3)]),
        ([0, 40], [(0, 0), (1, 10), (11, 20), (21, 30), (31, 40)]),
        ([31, 60], [(31, 35), (36, 40), (41, 45), (46, 50), (51, 55), (56, 60)]),
        ([1, 161], [(1, 50), (51, 100), (101, 150), (151, 200)]),
    ],
)
def test_bins(lengths, wanted):
    assert metrics.bins(lengths) == wanted


def test_bins_cover_every_length_once():
    random = np.random.RandomState(0)
    for longest in (1, 2, 7, 30, 99, 1000):
        lengths = random.randint(0, longest + 1, 50)
        chosen = metrics.bins(lengths)
        assert len(chosen) <= 8
        assert all(sum(low <= x <= high for low, high in chosen) == 1 for x in lengths)
        assert len({high - low for low, high in chosen if high}) == 1
