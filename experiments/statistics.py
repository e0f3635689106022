"""What a few seeds say of a metric: mean and interval, difference to a baseline, permutation test.

A group is {seed: value}; the first group is the baseline, and the others are paired with it by
seed. Nothing here is random from call to call: resamples are drawn from a fixed seed.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeGuard

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 9999  # of a bootstrap, and of a permutation test with more than EXACT pairs
EXACT = 13  # up to so many pairs all 2**n flips are tried

HOW = (
    "n: seeds with a result; mean: over these. Intervals are 95 % percentile bootstrap intervals "
    f"over seeds ({RESAMPLES:,} resamples from a fixed seed; none at n = 1). Of few seeds they are "
    "too narrow: for normally distributed results such an interval holds the true mean in 51 % of "
    "cases at n = 2, 75 % at n = 3, 84 % at n = 5 and 90 % at n = 10.",
    "Difference: to the baseline (the first condition), over the pairs of runs that share a seed, "
    "with its own interval. p: two-sided paired permutation test, which asks how often a mean "
    "difference at least as large comes about when the sign of each pair's difference is drawn at "
    f"random; all 2ⁿ choices are tried up to {EXACT} pairs and {RESAMPLES:,} random ones beyond. "
    "However clear a result, p cannot fall below the smallest p, 2/2ⁿ: .25 at 3 pairs, .0625 at "
    f"5, .03125 at 6 (beyond {EXACT}: .0001). Holm: p corrected (Holm 1979) for all comparisons "
    "with the baseline on that metric; not for looking at several metrics. It cannot fall below "
    "the smallest p times the number of comparisons, or 1: with few seeds and many conditions no "
    "difference can be significant, and the intervals of the differences say more.",
    "A run that failed or diverged has no value and is not in n, so a condition whose bad runs "
    "diverge looks better than it is: read n beside the mean.",
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One group, and how it differs from the baseline; None where it is not defined."""

    n: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    smallest_p: float | None = None
    p_holm: float | None = None


def compare(groups: Sequence[Mapping[Hashable, float]]) -> list[Comparison]:
    """A Comparison a group, in their order; all values are finite.

    >>> baseline, other = compare([{0: 1.0, 1: 2.0, 2: 4.0}, {0: 2.0, 1: 4.0, 2: 7.0, 3: 9.0}])
    >>> baseline.n, other.n, other.pairs, other.difference
    (3, 4, 3, 2.0)
    >>> other.p == other.smallest_p == other.p_holm == 0.25
    True
    """
    found = [_compared(group, groups[0] if k else {}) for k, group in enumerate(groups)]
    corrected = holm([one.p for one in found])
    return [dataclasses.replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True)]


def _compared(group: Mapping[Hashable, float], baseline: Mapping[Hashable, float]) -> Comparison:
    if not group:
        return Comparison(0)
    values = np.array(list(group.values()), float)
    low, high = interval(values) or (None, None)
    one = Comparison(len(values), float(values.mean()), low, high)
    differences = np.array([group[seed] - baseline[seed] for seed in group if seed in baseline])
    if not differences.size:
        return one
    low, high = interval(differences) or (None, None)
    tested = differences.size > 1  # of one pair p is always 1
    return dataclasses.replace(
        one,
        pairs=differences.size,
        difference=float(differences.mean()),
        difference_low=low,
        difference_high=high,
        p=sign_flip_p(differences) if tested else None,
        smallest_p=smallest_p(differences.size) if tested else None,
    )


def interval(values: np.ndarray) -> tuple[float, float] | None:
    """The percentile bootstrap interval of the mean of values [n]; None for fewer than two.

    >>> interval(np.array([1.0, 2.0, 6.0]))  # one resample in 27 is the smallest three times
    (1.0, 6.0)
    """
    if len(values) < 2:
        return None
    means = np.asarray(values, float)[_resamples(len(values))].mean(axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


@functools.lru_cache(maxsize=4)
def _resamples(n: int) -> np.ndarray:
    """Indices [RESAMPLES, n]: the same ones for all that have n values."""
    return np.random.default_rng(0).integers(n, size=(RESAMPLES, n))


def sign_flip_p(differences: np.ndarray) -> float:
    """p of the two-sided paired permutation test whose statistic is the mean difference.

    >>> sign_flip_p(np.array([1.0, 2.0, 3.0, 4.0, 5.0])), sign_flip_p(np.array([1.0, -1.0]))
    (0.0625, 1.0)
    """
    differences = np.asarray(differences, float)
    largest = np.abs(differences).max(initial=0.0)
    if largest == 0:
        return 1.0
    scaled = differences / largest
    flipped = np.abs(_signs(len(scaled)) @ scaled)
    as_large = int((flipped >= abs(scaled.sum()) - 1e-9).sum())  # sums in another order round
    if len(scaled) <= EXACT:
        return as_large / len(flipped)
    return (as_large + 1) / (len(flipped) + 1)  # the signs as they are count as one draw


@functools.lru_cache(maxsize=4)
def _signs(n: int) -> np.ndarray:
    """Signs [flips, n]: all of them, or RESAMPLES drawn ones."""
    if n <= EXACT:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    return np.random.default_rng(0).choice([1.0, -1.0], size=(RESAMPLES, n))


def smallest_p(pairs: int) -> float:
    """The least that `sign_flip_p` can give: every pair differs in one direction.

    >>> smallest_p(3), smallest_p(6), smallest_p(20)
    (0.25, 0.03125, 0.0001)
    """
    return 2 / 2**pairs if pairs <= EXACT else 1 / (RESAMPLES + 1)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (1979) of these p values; a None is no comparison.

    >>> holm([None, 0.01, 0.04, 0.03])
    [None, 0.03, 0.06, 0.06]
    """
    order = sorted((p, k) for k, p in enumerate(ps) if p is not None)
    out: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, k) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        out[k] = largest
    return out


def finite(value: object) -> TypeGuard[float]:
    """Whether it is a number that a mean can be taken of.

    >>> finite(1), finite(0.5), finite(True), finite(None), finite("1"), finite(math.nan)
    (True, True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
