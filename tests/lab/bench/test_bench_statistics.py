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


def as_units(values: list[float]) -> dict[object, float]:
    return dict(enumerate(values))


def test_summary_against_a_reference() -> None:
    values = [61.2, 58.9, 63.4, 60.0]
    summary = summarise(values)
    assert summary.mean == pytest.approx(plain.mean(values))
    assert summary.std == pytest.approx(plain.stdev(values))
    low, high = stats.t.interval(0.95, 3, loc=plain.mean(values), scale=stats.sem(values))
    assert (summary.low, summary.high) == pytest.approx((low, high))
    assert summary.half_width == pytest.approx((high - low) / 2)


def test_the_interval_covers_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for row in random.normal(50.0, 3.0, (2000, 4)):
        summary = summarise(row.tolist())
        assert summary.low is not None and summary.high is not None
        covered += summary.low <= 50.0 <= summary.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_one_value_has_no_spread() -> None:
    summary = summarise([50.0])
    assert (summary.n, summary.mean, summary.std, summary.low, summary.half_width) == (1, 50.0, None, None, None)


def test_equal_values_have_a_point_as_interval() -> None:
    summary = summarise([0.1 + 0.2, 0.3, 0.3])  # equal but for rounding
    assert summary.std == 0.0 and summary.low == summary.high == summary.mean


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_refuses_what_has_no_mean(values: list[float]) -> None:
    with pytest.raises(DriftgateError, match="at least one value, all finite"):
        summarise(values)


def test_comparison_against_scipy() -> None:
    random = np.random.default_rng(1)
    first, second = random.normal(60, 4, 12), random.normal(58, 4, 12)
    found = compare(as_units(first.tolist()), as_units(second.tolist()))
    assert found is not None
    expected = stats.ttest_rel(first, second)
    assert found.t_p == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))
    assert found.wilcoxon_p == pytest.approx(stats.wilcoxon(first, second, method="exact").pvalue)
    assert found.wins == int((first > second).sum())


def test_pairing_sees_what_the_spread_of_the_pairs_hides() -> None:
    """Pairs differ by tens of points, the methods by one: unpaired, nothing could be said."""
    base = [20.0, 35.0, 50.0, 65.0, 80.0]
    second = as_units(base)
    first = as_units([value + 1.0 + 0.1 * place for place, value in enumerate(base)])
    found = compare(first, second)
    assert found is not None and found.t_p is not None
    assert found.t_p < 0.001 < stats.ttest_ind(list(first.values()), base).pvalue


def test_only_shared_units_count() -> None:
    found = compare({"a": 3.0, "b": 9.0, "c": 1.0}, {"a": 1.0, "c": 2.0, "d": 50.0})
    assert found is not None
    assert (found.difference.n, found.difference.mean, found.wins) == (2, 0.5, 1)
    assert compare({"a": 1.0}, {"b": 1.0}) is None


def test_one_unit_proves_nothing() -> None:
    found = compare({"a": 3.0}, {"a": 1.0})
    assert found is not None
    assert (found.difference.mean, found.difference.low, found.t_p) == (2.0, None, None)
    assert found.wilcoxon_p == 1.0


def test_equal_differences_have_no_t_test() -> None:
    found = compare(as_units([0.3, 1.3, 2.3]), as_units([0.1, 1.1, 2.1]))
    assert found is not None
    assert found.t_p is None and found.difference.std == 0.0
    assert found.wilcoxon_p == pytest.approx(0.25)


def test_equal_methods() -> None:
    found = compare(as_units([1.0, 2.0]), as_units([1.0, 2.0]))
    assert found is not None
    assert (found.ties, found.wins, found.t_p, found.wilcoxon_p) == (2, 0, None, None)


def test_wilcoxon_with_ties_against_all_signs() -> None:
    differences = [1.0, 1.0, 2.0, -1.0, 3.0]
    found = compare(as_units(differences), as_units([0.0] * 5))
    ranks = [2.0, 2.0, 4.0, 2.0, 5.0]
    sums = [
        sum(r for r, sign in zip(ranks, signs, strict=True) if sign) for signs in itertools.product((0, 1), repeat=5)
    ]
    expected = sum(abs(total - 7.5) >= abs(13.0 - 7.5) for total in sums) / 32
    assert found is not None and found.wilcoxon_p == pytest.approx(expected)


def test_many_units_with_ties() -> None:
    differences = [1.0, -0.5] * 20 + [2.0] * 20
    found = compare(as_units(differences), as_units([0.0] * 60))
    assert found is not None and found.wilcoxon_p is not None and found.wilcoxon_p < 0.001


def test_holm() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
