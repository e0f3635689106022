"""What a task is made of: the types that its file fills in and that its users get."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.config import TaskConfig
from experiments.vocabulary import Vocabulary

SPLITS = ("train", "validation", "test")

Log = Callable[[str], None]
Options = Mapping[str, int]  # of a task, resolved: only one whose default is None may be absent


@dataclasses.dataclass(frozen=True)
class Texts:
    """Sentences and their translations, line by line; detokenized."""

    source: Sequence[str]
    target: Sequence[str]

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.source, self.target, strict=True)

    @staticmethod
    def of(pairs: Iterable[tuple[str, str]]) -> "Texts":
        pairs = list(pairs)
        return Texts([source for source, _ in pairs], [target for _, target in pairs])


@dataclasses.dataclass(frozen=True)
class Ids:
    """Sequences of token ids, one behind the other: `ids[i]` is `flat[offsets[i]:offsets[i + 1]]`,
    `flat` int32, `offsets` int64 [len + 1]. No <sos>, <eos> or <pad> among them."""

    flat: np.ndarray
    offsets: np.ndarray

    @staticmethod
    def of(sequences: Sequence[Sequence[int]]) -> "Ids":
        offsets = np.zeros(len(sequences) + 1, np.int64)
        np.cumsum([len(s) for s in sequences], out=offsets[1:])
        flat = np.fromiter(itertools.chain.from_iterable(sequences), np.int32, int(offsets[-1]))
        return Ids(flat, offsets)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each, int64 [len]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        i = range(len(self))[i]
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    def dense(self, width: int, end: int, fill: int) -> np.ndarray:
        """int32 [len, width]: each sequence, then `end`, then `fill`; width > the longest."""
        column, lengths = np.arange(width), self.lengths[:, None]
        rows = np.full((len(self), width), fill, np.int32)
        rows[column < lengths] = self.flat
        rows[column == lengths] = end
        return rows

    def select(self, indices: np.ndarray) -> "Ids":
        """The sequences of these indices, in this order."""
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        shift = np.repeat(self.offsets[:-1][indices] - offsets[:-1], lengths)
        return Ids(self.flat[np.arange(offsets[-1]) + shift], offsets)


@dataclasses.dataclass(frozen=True)
class Split:
    """One part of the data: texts as references, ids as what a model reads."""

    source_text: Sequence[str]
    target_text: Sequence[str]
    source_ids: Ids
    target_ids: Ids

    def __len__(self) -> int:
        return len(self.source_text)

    def select(self, indices: np.ndarray) -> "Split":
        """The pairs of these indices, in this order."""
        return Split(
            [self.source_text[i] for i in indices],
            [self.target_text[i] for i in indices],
            self.source_ids.select(indices),
            self.target_ids.select(indices),
        )


@dataclasses.dataclass(frozen=True)
class Task:
    """Data ready for a model. `splits` has train, validation and test, which share no source
    sentence. `clean` brings what a user types into the form of the task's own sentences."""

    name: str
    source: Vocabulary
    target: Vocabulary
    splits: Mapping[str, Split]
    clean: Callable[[str], str]


@dataclasses.dataclass(frozen=True)
class Definition:
    """What the file of a task says."""

    defaults: Mapping[str, int | None]  # the options it reads
    # from the training texts; beside the directory of the prepared data they may be kept
    vocabularies: Callable[[Options, Texts, Path, Log], tuple[Vocabulary, Vocabulary]]
    clean: Callable[[str], str]
    # the texts of the three splits, which share no source sentence ...
    draw: Callable[[Options, Log], Mapping[str, Texts]] | None = None
    version: str = "1.0.0"  # of what `draw` gives: raise it when that changes
    stored: Sequence[str] = ()  # the options that change what `draw` gives
    # ... or the same where they are not drawn, and the directory they lie in
    read: Callable[[TaskConfig, Log], tuple[Mapping[str, Texts], Path]] | None = None
    fill: Callable[[dict[str, int]], Options] = dict  # defaults that depend on other options
    check: Callable[[Options, TaskConfig], None] = lambda options, config: None  # raises UserError
    packages: Sequence[str] = ()  # beyond requirements.txt
    drop_long: bool = False  # pairs with more than max_length tokens on a side are left out


def squeeze(text: str) -> str:
    """Without spaces at the ends, and single ones between."""
    return " ".join(text.split())
