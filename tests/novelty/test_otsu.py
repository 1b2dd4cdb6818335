"""Otsu's threshold against the plain search over the grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftgate.novelty.otsu import otsu_threshold

ONE_GROUP = 7.0


def within_variance(values: list[float], threshold: float) -> float:
    """n0/Q var(v < t) + n1/Q var(v >= t); infinite where one side is empty."""
    low, high = [v for v in values if v < threshold], [v for v in values if v >= threshold]
    if not low or not high:
        return math.inf
    return (len(low) * float(np.var(low)) + len(high) * float(np.var(high))) / len(values)


@pytest.mark.parametrize("size", [2, 3, 10, 64, 512])
@pytest.mark.parametrize("seed", range(4))
def test_is_the_best_of_the_grid(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.where(random.random(size) < 0.4, random.normal(0.7, 0.1, size), random.normal(0.3, 0.1, size))
    numbers = values.astype(np.float32).astype(np.float64).tolist()
    variances = [within_variance(numbers, step / 100) for step in range(100)]
    found = otsu_threshold(torch.tensor(numbers), one_group=ONE_GROUP)
    # Rounding may order equal candidates differently, so the variances are compared, then the tie is checked.
    assert within_variance(numbers, found) == pytest.approx(min(variances), rel=1e-9, abs=1e-15)
    first = next(step / 100 for step in range(100) if variances[step] <= min(variances) * (1 + 1e-9) + 1e-15)
    assert found == first


@given(st.lists(st.floats(0, 2, width=32), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_never_worse_than_any_candidate(values: list[float]) -> None:
    found = otsu_threshold(torch.tensor(values, dtype=torch.float64), one_group=ONE_GROUP)
    best = min(within_variance(values, step / 100) for step in range(100))
    if math.isinf(best):
        assert found == ONE_GROUP
    else:
        assert within_variance(values, found) <= best + 1e-12


def test_order_does_not_matter() -> None:
    values = torch.rand(100, generator=torch.Generator().manual_seed(0))
    assert otsu_threshold(values, one_group=0.0) == otsu_threshold(values.flip(0), one_group=0.0)


@pytest.mark.parametrize("values", [[0.5], [0.3, 0.3, 0.3], [1.2, 1.9], [0.501, 0.509], [-0.5, -0.1]])
def test_one_group(values: list[float]) -> None:
    assert otsu_threshold(torch.tensor(values), one_group=ONE_GROUP) == ONE_GROUP


def test_smallest_of_equal_thresholds() -> None:
    assert otsu_threshold(torch.tensor([0.1, 0.1, 0.8]), one_group=ONE_GROUP) == pytest.approx(0.11)
    # A value on the threshold belongs above it.
    assert otsu_threshold(torch.tensor([0.0, 0.5], dtype=torch.float64), one_group=ONE_GROUP) == 0.01


def test_far_from_the_origin_the_squares_do_not_cancel() -> None:
    values = torch.tensor([0.2, 0.21, 0.2, 1e6, 1e6 + 1], dtype=torch.float64)
    found = otsu_threshold(values, one_group=ONE_GROUP)
    assert 0.21 < found <= 0.99
