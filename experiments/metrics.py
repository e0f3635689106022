"""How good translations are: pure functions of decoded output, all of it over a whole split.

    exact_match     fraction of sentences whose ids equal the reference's, up to and with <eos>
    token_accuracy  fraction of reference tokens (<eos> counted) that are the model's first choice
                    when it is fed the reference; counted elsewhere, put together here
    bleu, chrf      sacrebleu's, 0..100, on DETOKENIZED text, with its `signature` beside the score

and the same by source length. Nothing is sampled, nothing is changed in place: two evaluations of
one checkpoint are equal.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Row = dict[str, float | int | str]  # flat, as `result.json` and a CSV table want it

MARKS = ("\u2581", "@@ ")  # what SentencePiece and subword-nmt leave in text that is still pieces


class Metrics(NamedTuple):
    summary: Row  # exact_match, token_accuracy, bleu, bleu_signature, chrf, chrf_signature
    by_length: list[Row]  # length_low, length_high, n, exact_match, token_accuracy, bleu, chrf


def translation_metrics(
    hypotheses: Sequence[str],
    references: Sequence[str],
    hypothesis_ids: Sequence[Sequence[int]],
    reference_ids: Sequence[Sequence[int]],
    source_lengths: Sequence[int],
    *,
    eos_id: int,
    token_counts: Sequence[tuple[int, int]] | None = None,
) -> Metrics:
    """Every metric of n >= 1 sentences, over all of them and by source length.

    Args:
      hypotheses, references: n detokenized texts each. The reference is the data set's own text,
        not a decoding of `reference_ids` (which would hide what the vocabulary lost). An empty
        hypothesis is a wrong one.
      hypothesis_ids, reference_ids: n sequences of ids each; what follows the first `eos_id` is
        padding and is not looked at.
      source_lengths: n lengths, in tokens.
      token_counts: n pairs (correct, total) of teacher forcing; without them there is no
        `token_accuracy`, here and in the rows.

    The rows go from the shortest to the longest sources, in the bins of `bins(source_lengths)`; a
    bin that no sentence falls in has no row. BLEU over a bin counts only the n-gram orders that
    some hypothesis of it is long enough for (sacrebleu's `effective_order`): the usual value, but
    that a bin of perfect three-word sentences scores 100 and not 0. The summary has BLEU as it is
    published, with every order to 4.
    """
    n = len(references)
    lengths = np.asarray(source_lengths)
    sizes = {len(hypotheses), n, len(hypothesis_ids), len(reference_ids), len(lengths)}
    sizes |= {n if token_counts is None else len(token_counts)}
    if n == 0 or len(sizes) > 1:
        raise ValueError(f"want one item a sentence, of one sentence or more; got {sorted(sizes)}")
    matches = exact_matches(hypothesis_ids, reference_ids, eos_id)

    def over(chosen: np.ndarray) -> Row:
        row: Row = {"exact_match": float(matches[chosen].mean())}
        if token_counts is not None:
            row["token_accuracy"] = token_accuracy([token_counts[i] for i in chosen])
        return row

    def texts(chosen: np.ndarray) -> tuple[list[str], list[str]]:
        return [hypotheses[i] for i in chosen], [references[i] for i in chosen]

    everything = np.arange(n)
    summary = over(everything) | _both(*texts(everything))
    rows: list[Row] = []
    for low, high in bins(source_lengths):
        chosen = np.flatnonzero((low <= lengths) & (lengths <= high))
        if len(chosen):
            row: Row = {"length_low": low, "length_high": high, "n": len(chosen)}
            scores = _both(*texts(chosen), effective_order=True)
            rows.append(row | over(chosen) | {name: scores[name] for name in ("bleu", "chrf")})
    return Metrics(summary, rows)


def exact_matches(
    hypothesis_ids: Sequence[Sequence[int]],
    reference_ids: Sequence[Sequence[int]],
    eos_id: int,
) -> np.ndarray:
    """bool [n]: is the hypothesis the reference, up to and with its <eos>? A hypothesis that was
    cut off before it ended is not. A reference without <eos> is an error: it too was cut off, and
    to match what is left of it says nothing."""
    matches = np.zeros(len(reference_ids), bool)
    for i, (hypothesis, reference) in enumerate(zip(hypothesis_ids, reference_ids, strict=True)):
        wanted = _until(reference, eos_id)
        if not wanted or wanted[-1] != eos_id:
            raise ValueError(f"reference {i} has no <eos> (id {eos_id}): {wanted}")
        matches[i] = _until(hypothesis, eos_id) == wanted
    return matches


def token_accuracy(token_counts: Sequence[tuple[int, int]]) -> float:
    """Correct tokens over all tokens (not the mean over sentences) of pairs (correct, total)."""
    correct, total = 0, 0
    for right, tokens in token_counts:
        if not 0 <= right <= tokens or tokens == 0:  # a reference holds <eos> at least
            raise ValueError(f"want 0 <= correct <= total and total >= 1, got {right}, {tokens}")
        correct, total = correct + int(right), total + int(tokens)
    if total == 0:
        raise ValueError("token accuracy of no sentence is not defined")
    return correct / total


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, effective_order: bool = False
) -> tuple[float, str]:
    """(corpus BLEU 0..100, sacrebleu's signature) of detokenized text, tokenized by "13a".

    Without `effective_order`, a corpus in which no hypothesis has 4 tokens scores 0, however good.
    """
    from sacrebleu.metrics import BLEU

    _check_text(hypotheses, references)
    metric = BLEU(effective_order=effective_order)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return min(float(score), 100.0), str(metric.get_signature())  # 100.00000000000004 is 100


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """(corpus chrF2 0..100, sacrebleu's signature) of detokenized text."""
    from sacrebleu.metrics import CHRF

    _check_text(hypotheses, references)
    metric = CHRF()
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return min(float(score), 100.0), str(metric.get_signature())


def bins(source_lengths: Sequence[int], at_most: int = 8) -> list[tuple[int, int]]:
    """Bins (low, high), both ends within, of one width, that cover the lengths without a gap.

    The width is the smallest of 1, 2, 5, 10, 20, 50, ... that needs no more than `at_most` bins,
    and the bins end at its multiples (1-5, 6-10, ...). A source of no tokens falls in (0, 0).

    >>> bins([3, 9, 18, 40], at_most=4)
    [(1, 10), (11, 20), (21, 30), (31, 40)]
    """
    shortest, longest = int(min(source_lengths)), int(max(source_lengths))
    if shortest < 0 or at_most < 2:
        raise ValueError(f"want lengths >= 0 and two bins or more, got {shortest=}, {at_most=}")
    widths = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    width = next(w for w in widths if _bin(longest, w) - _bin(shortest, w) < at_most)
    numbers = range(_bin(shortest, width), _bin(longest, width) + 1)
    return [(max(0, (k - 1) * width + 1), k * width) for k in numbers]


def _bin(length: int, width: int) -> int:
    """The k of ((k - 1) width, k width] that the length falls in."""
    return -(-length // width)


def _until(ids: Sequence[int], eos_id: int) -> list[int]:
    """The ids up to and with the first <eos>; all of them where there is none."""
    plain = [int(i) for i in ids]
    return plain[: plain.index(eos_id) + 1] if eos_id in plain else plain


def _both(
    hypotheses: Sequence[str], references: Sequence[str], *, effective_order: bool = False
) -> Row:
    bleu_score, bleu_signature = bleu(hypotheses, references, effective_order=effective_order)
    chrf_score, chrf_signature = chrf(hypotheses, references)
    return {
        "bleu": bleu_score,
        "bleu_signature": bleu_signature,
        "chrf": chrf_score,
        "chrf_signature": chrf_signature,
    }


def _check_text(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raises on the two ways to hand over something that is not text by sentence: unequal or no
    sentences, and pieces (most references bear the marks of a subword tokenizer)."""
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    marked = sum(any(mark in text for mark in MARKS) for text in references)
    if 2 * marked > len(references):
        raise ValueError(f"BLEU and chrF are of detokenized text; got pieces: {references[0]!r}")
