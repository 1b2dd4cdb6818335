"""The entropies with a gradient against plain sums."""

from __future__ import annotations

import math

import pytest
import torch

from driftgate.losses import mean_entropy, negative_marginal_entropy


def probabilities_by_hand(logits: torch.Tensor) -> list[list[float]]:
    rows = []
    for row in logits.double().tolist():
        exponentials = [math.exp(value - max(row)) for value in row]
        rows.append([value / sum(exponentials) for value in exponentials])
    return rows


@pytest.mark.parametrize("shape", [(9, 4), (1, 4), (9, 1)])
def test_equal_the_sums_by_hand(shape: tuple[int, int]) -> None:
    logits = 2.0 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    rows = probabilities_by_hand(logits)
    entropies = [-sum(value * math.log(value) for value in row) for row in rows]
    assert float(mean_entropy(logits)) == pytest.approx(sum(entropies) / len(rows), rel=1e-5, abs=1e-7)
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    marginal = sum(value * math.log(value) for value in means)
    assert float(negative_marginal_entropy(logits)) == pytest.approx(marginal, rel=1e-5, abs=1e-6)


def test_gradients_are_the_numerical_ones() -> None:
    logits = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(mean_entropy, (logits,))
    assert torch.autograd.gradcheck(negative_marginal_entropy, (logits,))


def test_sure_predictions_stay_finite() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4], [1e4, 0.0, -1e4]]).requires_grad_()
    loss = mean_entropy(logits) + negative_marginal_entropy(logits)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None and logits.grad.isfinite().all()
