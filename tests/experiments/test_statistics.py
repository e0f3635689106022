"""Against counting by hand, enumeration of every case, and scipy."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from experiments import statistics


def every_resample(values):
    """The means of all n**n resamples."""
    return np.array([np.mean(one) for one in itertools.product(values, repeat=len(values))])


@pytest.mark.parametrize("n", [4, 5, 6])
def test_interval_is_that_of_all_resamples(rng, n):
    """Its ends have the 95 % of all n**n resamples between them, to the noise of 9,999 draws."""
    values = rng.normal(3, 2, size=n)
    low, high = statistics.interval(values)
    means = every_resample(values)
    assert np.mean(means < low - 1e-12) <= 0.025 + 0.007  # 4 standard deviations of the noise
    assert np.mean(means <= low + 1e-12) >= 0.025 - 0.007
    assert np.mean(means > high + 1e-12) <= 0.025 + 0.007
    assert np.mean(means >= high - 1e-12) >= 0.025 - 0.007


def test_interval_is_scipys(rng):
    values = rng.normal(10, 3, size=30)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=rng
    ).confidence_interval
    width = theirs.high - theirs.low
    np.testing.assert_allclose(statistics.interval(values), tuple(theirs), atol=0.05 * width)


def test_interval_is_the_same_each_time_and_none_of_one_value(rng):
    values = rng.normal(size=7)
    assert statistics.interval(values) == statistics.interval(values.copy())
    assert statistics.interval(values[:1]) is None
    assert statistics.interval(np.array([0.3, 0.3, 0.3])) == pytest.approx((0.3, 0.3))


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_permutation_test_is_that_of_all_flips(rng, n):
    """In fractions, so that ties are ties."""
    differences = rng.integers(-6, 9, size=n)
    observed = abs(sum(differences.tolist()))
    flips = list(itertools.product((1, -1), repeat=n))
    extreme = sum(abs(sum(s * int(d) for s, d in zip(f, differences, strict=True))) >= observed
                  for f in flips)  # fmt: skip
    got = statistics.sign_flip_p(differences * 0.1)
    assert got == pytest.approx(float(Fraction(extreme, len(flips))), abs=1e-12)


@pytest.mark.parametrize("n", [6, 16])
def test_permutation_test_is_scipys(rng, n):
    """Exact up to 13 pairs; drawn beyond, to the noise of both."""
    one, two = rng.normal(0.5, 1, size=n), rng.normal(0, 1, size=n)
    theirs = scipy.stats.permutation_test(
        (one, two), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
        vectorized=True, n_resamples=9999 if n > 13 else np.inf, rng=rng,
    ).pvalue  # fmt: skip
    tolerance = 1e-12 if n <= 13 else 6 * np.sqrt(theirs * (1 - theirs) / 9999) + 1e-3
    assert statistics.sign_flip_p(one - two) == pytest.approx(theirs, abs=tolerance)


@pytest.mark.parametrize("n", [2, 3, 5, 13, 14])
def test_smallest_p_is_reached_and_never_beaten(rng, n):
    same_sign = rng.uniform(1, 2, size=n)
    least = statistics.smallest_p(n)
    assert statistics.sign_flip_p(same_sign) == pytest.approx(least, rel=3)  # beyond 13: a chance
    if n <= 13:
        assert statistics.sign_flip_p(-same_sign) == least == 2.0 ** (1 - n)
    assert statistics.sign_flip_p(rng.normal(size=n)) >= least
    assert statistics.sign_flip_p(np.zeros(n)) == 1


def test_holm_by_hand_and_by_its_definition(rng):
    """Adjusted p_(i) = max over j <= i of (m - j + 1) p_(j), at most 1."""
    assert statistics.holm([0.01, 0.02, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert statistics.holm([0.5, None, 0.9]) == pytest.approx([1.0, None, 1.0])
    assert statistics.holm([]) == [] and statistics.holm([None]) == [None]
    ps = rng.uniform(size=6)
    order = np.argsort(ps)
    want = [max(min(1, (6 - j) * ps[order[j]]) for j in range(i + 1)) for i in range(6)]
    np.testing.assert_allclose(np.array(statistics.holm(list(ps)))[order], want)


def test_comparison_pairs_by_seed(rng):
    """Order of the seeds does not matter, and a seed that one of them lacks is in no pair."""
    base = {seed: float(rng.normal()) for seed in (3, 1, 2, 0)}
    other = {seed: float(rng.normal()) for seed in (0, 7, 1, 2)}
    empty, single = {}, {2: 1.5}
    first, second, third, fourth = statistics.compare([base, other, empty, single])
    assert (first.n, first.pairs, first.difference, first.p, first.p_holm) == (4, 0, *[None] * 3)
    differences = [other[seed] - base[seed] for seed in (0, 1, 2)]
    assert (second.n, second.pairs) == (4, 3)
    assert second.mean == pytest.approx(sum(other.values()) / 4)
    assert second.difference == pytest.approx(sum(differences) / 3)
    assert second.difference_low <= second.difference <= second.difference_high
    assert second.difference_low == pytest.approx(min(differences))  # n = 3: 1/27 > 2.5 %
    assert second.smallest_p == 0.25 and second.p >= 0.25
    assert second.p_holm == second.p  # the only comparison: the others have no two pairs
    assert third == statistics.Comparison(0)
    assert (fourth.n, fourth.mean, fourth.low, fourth.high) == (1, 1.5, None, None)
    assert (fourth.pairs, fourth.p, fourth.smallest_p, fourth.difference_low) == (1, *[None] * 3)
    assert fourth.difference == pytest.approx(1.5 - base[2])
