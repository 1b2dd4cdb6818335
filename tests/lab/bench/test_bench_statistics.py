"""Statistics against scipy's own tests, hand-computed values, and the cases that break naive ones."""

from __future__ import annotations

import itertools
import math
import statistics as plain

import numpy as np
import pytest
from scipy import stats

from driftgate.lab.bench.statistics import compare, holm, summarise
from driftgate.types import DriftgateError


def test_summary_against_a_reference() -> None:
    values = [61.2, 58.9, 63.4, 60.0]
    summary = summarise(values)
    assert (summary.mean, summary.std) == pytest.approx((plain.mean(values), plain.stdev(values)))
    low, high = stats.t.interval(0.95, 3, loc=plain.mean(values), scale=stats.sem(values))
    assert (summary.low, summary.high) == pytest.approx((low, high))
    random = np.random.default_rng(0)
    covered = [s.low <= 50.0 <= s.high for s in map(summarise, random.normal(50.0, 3.0, (2000, 4)))]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015), "it covers as often as it says"


def test_too_few_and_equal_values() -> None:
    single = summarise([50.0])
    assert (single.n, single.mean) == (1, 50.0) and math.isnan(single.std) and math.isnan(single.low)
    equal = summarise([0.1 + 0.2, 0.3, 0.3])  # equal but for rounding
    assert equal.std == 0.0 and equal.low == equal.high == equal.mean
    for values in ([], [1.0, math.nan], [math.inf]):
        with pytest.raises(DriftgateError, match="at least one value, all finite"):
            summarise(values)


def test_comparison_against_scipy() -> None:
    random = np.random.default_rng(1)
    first, second = random.normal(60, 4, 12), random.normal(58, 4, 12)
    found = compare(first, second)
    assert found is not None
    expected = stats.ttest_rel(first, second)
    interval = expected.confidence_interval(0.95)
    assert found.t_p == pytest.approx(expected.pvalue)
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))
    assert found.wilcoxon_p == pytest.approx(stats.wilcoxon(first, second, method="exact").pvalue)
    assert found.wins == int((first > second).sum())
    # Pairs differ by tens of points, the methods by one: unpaired, nothing could be said.
    base = np.array([20.0, 35.0, 50.0, 65.0, 80.0])
    better = base + 1.0 + 0.1 * np.arange(5)
    found = compare(better, base)
    assert found is not None and found.t_p < 0.001 < stats.ttest_ind(better, base).pvalue


def test_few_units_prove_nothing() -> None:
    """A reviewer met p = 0.023 from two units, and Wilcoxon's 1.000 from one."""
    assert compare([], []) is None
    for count in (1, 2):
        found = compare([3.0, 5.5][:count], [1.0, 3.4][:count])
        assert found is not None and math.isnan(found.t_p) and math.isnan(found.wilcoxon_p)
    three = compare([3.0, 5.5, 7.0], [1.0, 3.4, 5.5])
    assert three is not None and three.t_p < 0.05 and math.isnan(three.wilcoxon_p), "0.25 at best"
    equal = compare([0.3, 1.3, 2.3], [0.1, 1.1, 2.1])
    assert equal is not None and math.isnan(equal.t_p) and equal.difference.std == 0.0
    same = compare([1.0, 2.0], [1.0, 2.0])
    assert same is not None and (same.ties, same.wins) == (2, 0) and math.isnan(same.t_p)


def test_wilcoxon_with_ties_against_all_signs() -> None:
    differences, ranks = [1.0, 1.0, 2.0, -1.0, 3.0, 4.0], [2.0, 2.0, 4.0, 2.0, 5.0, 6.0]
    found = compare(differences, [0.0] * 6)
    sums = [sum(r for r, on in zip(ranks, signs, strict=True) if on) for signs in itertools.product((0, 1), repeat=6)]
    expected = sum(abs(total - 10.5) >= abs(19.0 - 10.5) for total in sums) / 64
    assert found is not None and found.wilcoxon_p == pytest.approx(expected)
    many = compare([1.0, -0.5] * 20 + [2.0] * 20, [0.0] * 60)
    assert many is not None and many.wilcoxon_p < 0.001


def test_holm() -> None:
    assert holm([0.01, math.nan, 0.04, 0.03]) == pytest.approx([0.03, math.nan, 0.06, 0.06], nan_ok=True)
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []
