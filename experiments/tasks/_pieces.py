"""Byte pair encodings of the two languages, learned on training sentences and kept."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.errors import UserError
from experiments.tasks._pairs import Log, Options, Texts
from experiments.vocabulary import Pieces, Vocabulary, load_vocabulary


def vocabularies(
    options: Options, train: Texts, directory: Path, log: Log
) -> tuple[Vocabulary, Vocabulary]:
    """Pieces of the source and of the target, at most `vocabulary_size` of each. They are kept in
    files beside `directory`, named after what they were learned from."""
    size = options["vocabulary_size"]
    return _learned(train.source, size, directory, log), _learned(
        train.target, size, directory, log
    )


def _learned(texts: Sequence[str], size: int, directory: Path, log: Log) -> Vocabulary:
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    kept = directory.parent / f"{directory.name}.pieces-{size}-{digest}.json"
    if kept.exists():
        try:
            return load_vocabulary(kept)
        except UserError:
            log(f"{kept} cannot be read: learning it again")
    start = time.perf_counter()
    pieces = Pieces.learn(texts, size)
    log(f"learned {pieces.size:,} pieces in {time.perf_counter() - start:.1f} s")
    try:
        pieces.save(kept)
    except OSError as error:
        log(f"the pieces are not kept: {kept.parent} cannot be written ({error.strerror})")
    return pieces
