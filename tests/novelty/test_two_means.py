"""The exact 2-means cut against every possible cut."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from driftgate.novelty.two_means import two_means_threshold


def squares(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def cost_of(values: list[float], threshold: float) -> float:
    low, high = [v for v in values if v <= threshold], [v for v in values if v > threshold]
    assert low and high
    return squares(low) + squares(high)


def best_cost(values: list[float]) -> float:
    ordered = sorted(values)
    return min(squares(ordered[:cut]) + squares(ordered[cut:]) for cut in range(1, len(ordered)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=2, max_size=30))
def test_no_cut_is_better(values: list[float]) -> None:
    threshold = two_means_threshold(torch.tensor(values, dtype=torch.float64))
    if len(set(values)) == 1:
        assert threshold == math.inf
    else:
        assert math.isclose(cost_of(values, threshold), best_cost(values), rel_tol=1e-9, abs_tol=1e-12)


def test_the_threshold_is_half_way_between_the_means() -> None:
    values = torch.tensor([0.1, 0.2, 0.3, 0.9, 0.7], dtype=torch.float64)
    assert math.isclose(two_means_threshold(values), (0.2 + 0.8) / 2)


@pytest.mark.parametrize(
    "values",
    [torch.tensor([0.4]), torch.full((6,), 0.3), torch.zeros(2), 0.3 + 1e-8 * torch.arange(5, dtype=torch.float64)],
)
def test_without_two_different_scores_nobody_is_cut_off(values: Tensor) -> None:
    assert two_means_threshold(values) == math.inf
