import itertools

import numpy as np
import pytest

from experiments.batches import TrainBatches, bucket_shapes, eval_batches, train_batches
from experiments.tasks import Ids, Split
from experiments.vocabulary import EOS, PAD


def split(size, seed=0, longest=30):
    """Pairs of random lengths; the first source token of a pair is its number + 10."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, size)
    source = [[10 + i, *rng.integers(4, 9, n - 1)] for i, n in enumerate(lengths)]
    target = [list(rng.integers(4, 9, max(1, n + rng.integers(-2, 3)))) for n in lengths]
    text = [str(i) for i in range(size)]
    return Split(text, text, Ids.of(source), Ids.of(target))


def numbers(batch):
    return batch.source[:, 0] - 10


def same(a, b):
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def check_rows(data, indices, batch):
    """Tokens, <eos>, <pad>; <eos> counted; all int32."""
    assert all(array.dtype == np.int32 for array in batch)
    for side, ids in ((0, data.source_ids), (2, data.target_ids)):
        for i, row, length in zip(indices, batch[side], batch[side + 1], strict=True):
            assert length == len(ids[i]) + 1
            assert row[: length - 1].tolist() == ids[i].tolist()
            assert row[length - 1] == EOS
            assert (row[length:] == PAD).all()


def test_rows_hold_their_pairs():
    data = split(300)
    batches = TrainBatches(data, 16, seed=3)
    for step in range(40):
        batch = batches[step]
        assert batch.source.shape[0] == 16
        assert (batch.source.shape[1], batch.target.shape[1]) in batches.shapes
        check_rows(data, numbers(batch), batch)


def test_a_batch_by_hand():
    data = Split(["a"], ["b"], Ids.of([[7, 8]]), Ids.of([[9]]))
    batch = TrainBatches(data, 1, seed=0)[0]
    assert [array.tolist() for array in batch] == [[[7, 8, EOS]], [3], [[9, EOS]], [2]]


def test_batch_is_a_function_of_seed_and_step():
    data = split(300)
    forward = [TrainBatches(data, 16, seed=1)[step] for step in range(50)]
    batches = TrainBatches(data, 16, seed=1)
    for step in (49, 0, 20, 19, 48, 1):
        assert same(batches[step], forward[step])
    other = TrainBatches(data, 16, seed=2)
    assert not any(same(other[step], forward[step]) for step in range(50))


def test_no_pair_twice_in_an_epoch_and_all_in_some():
    data = split(301)
    batches = TrainBatches(data, 16, seed=0)
    assert batches.steps_per_epoch >= 301 // 16 - len(batches.shapes)
    seen, epochs = set(), []
    for epoch in range(12):
        steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
        drawn = np.concatenate([numbers(batches[step]) for step in steps])
        assert len(set(drawn)) == len(drawn) > 301 - 16 * len(batches.shapes)
        seen |= set(drawn)
        epochs.append(drawn.tolist())
    assert seen == set(range(301))
    assert all(a != b for a, b in itertools.combinations(epochs, 2))


def test_batches_of_a_shape_are_spread_over_the_epoch():
    batches = TrainBatches(split(3000), 16, seed=0)
    shapes = [batches[step].source.shape[1] for step in range(batches.steps_per_epoch)]
    assert len(set(shapes)) > 1
    assert len(set(shapes[: len(shapes) // 4])) == len(set(shapes))


def test_resume_equals_uninterrupted():
    data = split(200)
    whole = list(train_batches(data, 8, seed=5, start_step=0, stop_step=70))
    parts = [
        *train_batches(data, 8, seed=5, start_step=0, stop_step=33),
        *train_batches(data, 8, seed=5, start_step=33, stop_step=70),
    ]
    assert [step for step, _ in parts] == [step for step, _ in whole] == list(range(70))
    assert all(same(a, b) for (_, a), (_, b) in zip(whole, parts, strict=True))
    batches = TrainBatches(data, 8, seed=5)
    assert all(same(batch, batches[step]) for step, batch in whole)


def test_training_without_end_and_of_no_steps():
    data = split(20)
    endless = train_batches(data, 8, seed=0, start_step=1000)
    assert [step for step, _ in itertools.islice(endless, 3)] == [1000, 1001, 1002]
    assert list(train_batches(data, 8, seed=0, start_step=5, stop_step=5)) == []


@pytest.mark.parametrize("size", [1, 3, 9, 10, 11, 19, 21])
def test_small_splits_fill_their_batches(size):
    data = split(size)
    batches = TrainBatches(data, 10, seed=0)
    seen = set()
    for step in range(60):
        assert len(numbers(batches[step])) == 10
        seen |= set(numbers(batches[step]).tolist())
    assert seen == set(range(size))
    drawn = np.bincount(numbers(batches[0]), minlength=size)
    assert drawn.max() - drawn.min() <= 1  # repetition is even


def test_no_training_pair():
    with pytest.raises(ValueError, match="without pairs"):
        TrainBatches(split(0), 4, seed=0)


def test_shapes():
    data = split(2000)
    shapes = bucket_shapes(data, 10)
    assert 1 < len(shapes) <= 4
    assert shapes == sorted(shapes) and len(set(shapes)) == len(shapes)
    assert shapes[-1] == (data.source_ids.lengths.max() + 1, data.target_ids.lengths.max() + 1)
    assert bucket_shapes(data, 10, buckets=1) == [shapes[-1]]
    assert len(bucket_shapes(data, 10, buckets=2)) == 2
    assert bucket_shapes(split(0), 10) == []


def test_shapes_do_not_depend_on_the_order():
    data = split(500)
    shuffled = data.select(np.random.default_rng(1).permutation(500))
    assert bucket_shapes(shuffled, 10) == bucket_shapes(data, 10)


def test_shapes_save_padding():
    """Three lengths far apart: the three obvious buckets, and no padding at all."""
    ids = Ids.of([[4] * n for n in (3, 10, 30) for _ in range(50)])
    data = Split([""] * 150, [""] * 150, ids, ids)
    assert bucket_shapes(data, 10) == [(4, 4), (11, 11), (31, 31)]
    assert bucket_shapes(data, 10, buckets=2) == [(11, 11), (31, 31)]
    equal = Ids.of([[4] * 7] * 150)
    assert bucket_shapes(Split([""] * 150, [""] * 150, equal, equal), 10) == [(8, 8)]


def test_best_cut_is_the_best():
    """Against all cuts of a small split in two, by counting."""
    data = split(60, longest=20)
    length = np.stack([data.source_ids.lengths, data.target_ids.lengths]) + 1
    shapes = bucket_shapes(data, 5, buckets=2)

    def padded(low):
        fits = (length[0] <= low[0]) & (length[1] <= low[1])
        if fits.sum() < 5 or (~fits).sum() < 5:
            return np.inf
        return fits.sum() * sum(low) + (~fits).sum() * sum(shapes[-1])

    best = min(padded((s, t)) for s in range(2, 22) for t in range(2, 24))
    assert len(shapes) == 2
    assert padded(shapes[0]) <= 1.02 * best  # of chains along one order, nearly the best of all


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, 333])
def test_evaluation_covers_every_pair_once(size):
    data = split(size)
    found, shapes, lengths = [], set(), []
    for indices, batch in eval_batches(data, 8):
        assert indices.shape == (8,) and indices.dtype == np.int64
        real = indices >= 0
        check_rows(data, indices[real], type(batch)(*(array[real] for array in batch)))
        filler = type(batch)(*(array[~real] for array in batch))
        assert (filler.source_length == 1).all() and (filler.target_length == 0).all()
        assert (filler.source[:, 0] == EOS).all() and (filler.source[:, 1:] == PAD).all()
        assert (filler.target == PAD).all()
        found += indices[real].tolist()
        shapes.add((batch.source.shape, batch.target.shape))
        lengths.append(batch.source.shape[1])
    assert sorted(found) == list(range(size))
    assert len(shapes) <= 4
    assert lengths == sorted(lengths)


def test_select_takes_texts_and_ids_alike():
    data = split(20)
    part = data.select(np.array([7, 3, 7, 19]))
    assert part.source_text == part.target_text == ["7", "3", "7", "19"]
    assert [ids[0] - 10 for ids in (part.source_ids[i] for i in range(4))] == [7, 3, 7, 19]
    assert all(
        np.array_equal(part.target_ids[k], data.target_ids[i]) for k, i in enumerate((7, 3, 7, 19))
    )
    assert len(data.select(np.array([], int)).source_ids) == 0
