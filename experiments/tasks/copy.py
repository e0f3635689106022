"""Copy a sequence of integers: "3 1 2" -> "3 1 2". The source sentences are those of `reverse`."""

from experiments.tasks import _sequences
from experiments.tasks._pairs import Definition

TASK = Definition(
    defaults=_sequences.DEFAULTS,
    stored=tuple(_sequences.DEFAULTS),
    draw=lambda options, log: _sequences.draw(options, target=lambda words: words),
    vocabularies=lambda options, *_: (_sequences.vocabulary(options),) * 2,
    clean=_sequences.clean,
    check=_sequences.check,
)
