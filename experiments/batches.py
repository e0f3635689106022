"""Batches of a few fixed shapes; a training batch is a pure function of (seed, step).

The one convention of lengths: a row is its tokens, <eos>, then <pad>; its length counts tokens and
<eos>. There is no <sos> in a batch: the decoder's input is `target` shifted by the model.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from experiments.tasks import Split
from experiments.vocabulary import EOS, PAD

SAVING = 0.05  # of the padded tokens: what a further shape, one more compilation, must save
CANDIDATES = 64  # places where the sorted split may be cut
AHEAD = 16  # batches made before they are asked for

Shape = tuple[int, int]


class Batch(NamedTuple):
    """B sentence pairs; all int32."""

    source: np.ndarray  # [B, S]
    source_length: np.ndarray  # [B]
    target: np.ndarray  # [B, T]
    target_length: np.ndarray  # [B]


def bucket_shapes(split: Split, batch_size: int, buckets: int = 4) -> list[Shape]:
    """At most `buckets` shapes (S, T), increasing in both, the last of which holds every pair.

    Of all ways to cut the split, sorted by length, the one with the fewest padded tokens; as few
    buckets as come within SAVING a bucket of that, each with `batch_size` pairs or more (a smaller
    split is one bucket). An empty split has no shape.
    """
    shapes, _ = _buckets(_lengths(split), batch_size, buckets)
    return shapes


def _lengths(*splits: Split) -> np.ndarray:
    """[2, N]: of each source and each target, <eos> counted."""
    sides = [[split.source_ids.lengths, split.target_ids.lengths] for split in splits]
    return np.concatenate([np.stack(side) for side in sides], axis=1) + 1


def _buckets(
    lengths: np.ndarray, batch_size: int, buckets: int
) -> tuple[list[Shape], list[np.ndarray]]:
    """The shapes, and for each the indices of its pairs, sorted by length."""
    if not lengths.size:
        return [], []
    size = (lengths / lengths.max(axis=1, keepdims=True)).max(axis=0)
    order = np.lexsort((lengths[1], lengths[0], size))
    size, lengths = size[order], np.maximum.accumulate(lengths[:, order], axis=1)
    # Pairs of equal size stay together, so that the cut does not depend on the order of the split.
    ends = np.flatnonzero(np.append(size[1:] > size[:-1], True)) + 1
    if len(ends) > CANDIDATES:
        near = np.searchsorted(ends, np.linspace(0, len(size), CANDIDATES + 1)[1:])
        ends = np.unique(ends[near])
    ends = ends[(ends >= batch_size) & (len(size) - ends >= batch_size) | (ends == len(size))]
    cuts = _cuts(ends, lengths[:, ends - 1].sum(axis=0), batch_size, buckets)
    shapes = [(int(lengths[0, cut - 1]), int(lengths[1, cut - 1])) for cut in cuts]
    return shapes, np.split(order, cuts[:-1])


def _cuts(ends: np.ndarray, width: np.ndarray, least: int, buckets: int) -> list[int]:
    """Which of `ends` [C] to cut at, the last always, so that the sum over buckets of their pairs
    times `width` at their end is least."""
    starts = np.concatenate([[0], ends])
    count = ends[None, :] - starts[:, None]  # [C + 1, C]
    cost = np.where(count >= (least if len(ends) > 1 else 1), count * width, np.inf)
    best, back = [cost[0]], [np.zeros(len(ends), int)]  # of one bucket, by where it ends
    for _ in range(1, buckets):
        total = np.concatenate([[np.inf], best[-1]])[:, None] + cost
        best.append(total.min(axis=0))
        back.append(total.argmin(axis=0))
    totals = np.array([b[-1] for b in best])
    number = 1
    for more in range(2, buckets + 1):
        if totals[more - 1] < totals[number - 1] * (1 - SAVING * (more - number)):
            number = more
    cuts, end = [], len(ends)
    for n in reversed(range(number)):
        cuts.append(int(ends[end - 1]))
        end = int(back[n][end - 1])
    return cuts[::-1]


class _Rows:
    """The pairs of one bucket as dense rows: a batch is a few rows of them."""

    def __init__(self, split: Split, indices: np.ndarray, shape: Shape):
        source, target = split.source_ids.select(indices), split.target_ids.select(indices)
        self.all = Batch(
            source.dense(shape[0], EOS, PAD),
            (source.lengths + 1).astype(np.int32),
            target.dense(shape[1], EOS, PAD),
            (target.lengths + 1).astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self.all.source)

    def take(self, rows: np.ndarray) -> Batch:
        return Batch(*(array[rows] for array in self.all))


class TrainBatches:
    """`batches[step]` is the batch of a step, from `seed`, the split and `batch_size` alone,
    without the steps before it.

    An epoch is `steps_per_epoch` full batches, each of one bucket. No pair comes twice in it, and
    the few that do not fill a batch are others in the next epoch. A split smaller than a batch
    fills it by repetition.
    """

    def __init__(self, split: Split, batch_size: int, seed: int, buckets: int = 4):
        if not len(split):
            raise ValueError("a split without pairs has no training batch")
        self.batch_size, self.seed = batch_size, seed
        self.shapes, indices = _buckets(_lengths(split), batch_size, buckets)
        self._rows = [_Rows(split, i, s) for i, s in zip(indices, self.shapes, strict=True)]
        self._batches = [max(1, len(rows) // batch_size) for rows in self._rows]
        self.steps_per_epoch = sum(self._batches)
        self._epoch: tuple[int, np.ndarray, np.ndarray] = (-1, np.empty(0), np.empty(0))

    def __getitem__(self, step: int) -> Batch:
        epoch, position = divmod(step, self.steps_per_epoch)
        known = self._epoch  # one tuple, replaced as a whole: threads may share this
        if known[0] != epoch:
            known = self._epoch = (epoch, *self._order(epoch))
        _, bucket, rows = known
        return self._rows[bucket[position]].take(rows[position])

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The bucket [steps] and its rows [steps, B] of every batch of an epoch."""
        rng = np.random.default_rng([self.seed, epoch, 0x0B47C4])
        drawn = []
        for rows, batches in zip(self._rows, self._batches, strict=True):
            order = np.resize(rng.permutation(len(rows)), batches * self.batch_size)
            drawn.append(order.reshape(batches, self.batch_size))
        bucket = np.repeat(np.arange(len(drawn)), self._batches)
        shuffled = rng.permutation(self.steps_per_epoch)
        return bucket[shuffled], np.concatenate(drawn)[shuffled]


def train_batches(
    split: Split,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    stop_step: int | None = None,
    *,
    buckets: int = 4,
) -> Iterator[tuple[int, Batch]]:
    """(step, batch) of the steps from `start_step` up to, not including, `stop_step` (None: without
    end), made ahead in a thread by grain."""
    import grain

    batches = TrainBatches(split, batch_size, seed, buckets)
    stop = np.iinfo(np.int64).max if stop_step is None else max(start_step, stop_step)
    steps = grain.MapDataset.range(start_step, stop).map(lambda step: (step, batches[step]))
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=AHEAD)
    return iter(steps.to_iter_dataset(options))


def eval_shapes(splits: Iterable[Split], batch_size: int, *, buckets: int = 4) -> list[Shape]:
    """`bucket_shapes` of several splits together, so that programs compiled for one serve all."""
    return _buckets(_lengths(*splits), batch_size, buckets)[0]


def eval_batches(
    split: Split, batch_size: int, shapes: Sequence[Shape] | None = None
) -> Iterator[tuple[np.ndarray, Batch]]:
    """(indices, batch) over the whole split, every pair once, in the first of `shapes` (None: the
    split's own) that holds it, short ones first. `indices` [B] int64 says which pair a row is; -1
    is filler, with source <eos>, source_length 1, target_length 0."""
    lengths = _lengths(split)
    shapes = _buckets(lengths, batch_size, 4)[0] if shapes is None else shapes
    fits = [(lengths <= np.array(shape)[:, None]).all(axis=0) for shape in shapes]
    first = np.argmax(fits, axis=0) if shapes else np.zeros(0, int)
    order = np.lexsort((lengths[1], lengths[0]))
    for number, shape in enumerate(shapes):
        indices = order[(first == number)[order]]
        rows = _Rows(split, indices, shape).all
        missing = math.ceil(len(indices) / batch_size) * batch_size - len(indices)
        filler = Batch(
            np.full((missing, shape[0]), PAD, np.int32),
            np.ones(missing, np.int32),
            np.full((missing, shape[1]), PAD, np.int32),
            np.zeros(missing, np.int32),
        )
        filler.source[:, 0] = EOS
        rows = Batch(*(np.concatenate(pair) for pair in zip(rows, filler, strict=True)))
        indices = np.concatenate([indices, np.full(missing, -1)]).astype(np.int64)
        for start in range(0, len(indices), batch_size):
            part = slice(start, start + batch_size)
            yield indices[part], Batch(*(array[part] for array in rows))
