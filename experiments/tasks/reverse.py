"""Reverse a sequence of integers: "3 1 2" -> "2 1 3". The fastest test of an attention mechanism.

The numbers are those of JoeyNMT 2.3's published reverse task (50 integers, at most 25 in training
and 30 in validation and test), so that results compare with published ones, with one exception:
a training sequence that also occurs in validation or test is drawn again, and a validation sequence
that also occurs in test likewise. Test is exactly the published one. See `_sequences.draw`.
"""

from experiments.tasks import _sequences
from experiments.tasks._pairs import Definition

TASK = Definition(
    defaults=_sequences.DEFAULTS,
    stored=tuple(_sequences.DEFAULTS),
    draw=lambda options, log: _sequences.draw(options, target=lambda words: words[::-1]),
    vocabularies=lambda options, *_: (_sequences.vocabulary(options),) * 2,
    clean=_sequences.clean,
    check=_sequences.check,
)
