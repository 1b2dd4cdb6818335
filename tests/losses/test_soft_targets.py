"""Soft cross-entropy and affinity against plain loops, and where they must stay finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.losses.affinity import affinity_loss
from driftgate.losses.soft_targets import class_or_uniform, soft_cross_entropy
from driftgate.types import UNKNOWN, UNLABELED


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_soft_cross_entropy_equals_the_sum_by_hand() -> None:
    logits, weights = random(7, 4), random(7, seed=2).abs()
    targets = random(7, 4, seed=1).softmax(dim=1)
    plain, weighted = 0.0, 0.0
    for row in range(7):
        exponentials = [math.exp(value) for value in logits[row].tolist()]
        loss = 0.0
        for label in range(4):
            loss -= float(targets[row, label]) * math.log(exponentials[label] / sum(exponentials) + 1e-5)
        plain += loss / 7
        weighted += float(weights[row]) * loss / 7
    assert math.isclose(float(soft_cross_entropy(logits, targets)), plain, rel_tol=1e-5)
    assert math.isclose(float(soft_cross_entropy(logits, targets, weights)), weighted, rel_tol=1e-5)


def test_soft_cross_entropy_is_bounded_and_its_gradient_finite_for_extreme_logits() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]], requires_grad=True)
    loss = soft_cross_entropy(logits, torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
    assert math.isclose(loss.item(), -math.log(1e-5), rel_tol=1e-4)
    loss.backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_targets_and_weights_get_no_gradient_and_rows_of_zeros_contribute_nothing() -> None:
    logits = random(3, 4).requires_grad_()
    targets, weights = torch.ones(3, 4, requires_grad=True), torch.ones(3, requires_grad=True)
    soft_cross_entropy(logits, targets, weights).backward()
    assert targets.grad is None and weights.grad is None
    assert soft_cross_entropy(logits, torch.zeros(3, 4)).item() == 0.0


def test_class_or_uniform() -> None:
    targets = class_or_uniform(torch.tensor([2, UNKNOWN, 0, UNLABELED]), 4)
    expected = [[0, 0, 1, 0], [0.25] * 4, [1, 0, 0, 0], [0] * 4]
    assert torch.equal(targets, torch.tensor(expected))


def slow_affinity(features: Tensor, neighbors: Tensor, skip: int) -> float:
    """Sort the other samples by similarity, one sample after the other."""
    units = [F.normalize(row.double(), dim=0) for row in features]
    count, total = neighbors.shape[1], 0.0
    for row, unit in enumerate(units):
        others = sorted((float(unit @ other) for place, other in enumerate(units) if place != row), reverse=True)
        start = max(min(skip, len(others) - count), 0)
        positive = sum(float(unit @ units[place]) for place in neighbors[row].tolist())
        total += sum(others[start : start + count]) - positive
    return total / len(units)


def test_affinity_equals_the_slow_one_also_where_the_batch_ends_too_early() -> None:
    features = random(12, 5)
    neighbors = torch.stack([torch.tensor([(row + 1) % 12, (row + 5) % 12, (row + 7) % 12]) for row in range(12)])
    for skip in (0, 1, 4, 8, 9, 100):
        expected = slow_affinity(features, neighbors, skip)
        assert math.isclose(float(affinity_loss(features, neighbors, skip)), expected, abs_tol=1e-5), skip


def test_affinity_has_a_gradient_through_the_sample_alone() -> None:
    features = random(6, 4).requires_grad_()
    neighbors = torch.tensor([[1], [0], [3], [2], [5], [4]])
    affinity_loss(features, neighbors, 2).backward()
    fixed = F.normalize(features.detach(), dim=1)
    again = features.detach().clone().requires_grad_()
    similarity = F.normalize(again, dim=1) @ fixed.T
    loss = torch.zeros(())
    for row in range(6):
        others = [place for place in similarity[row].argsort(descending=True).tolist() if place != row]
        loss = loss + (similarity[row, others[2]] - similarity[row, int(neighbors[row])]) / 6
    loss.backward()
    assert features.grad is not None and again.grad is not None
    assert torch.allclose(features.grad, again.grad, atol=1e-6)


def test_affinity_of_tiny_batches() -> None:
    for size in (1, 2, 3):
        features = random(size, 4).requires_grad_()
        neighbors = torch.stack([torch.tensor([other for other in range(size) if other != row]) for row in range(size)])
        loss = affinity_loss(features, neighbors.long().reshape(size, size - 1), 3)
        loss.backward()
        # All others are neighbours and all others are negatives.
        assert abs(loss.item()) < 1e-6
        assert features.grad is not None and features.grad.isfinite().all()


def test_affinity_of_equal_samples_leaves_the_sample_itself_out() -> None:
    features = torch.ones(5, 4)
    neighbors = torch.tensor([[(row + 1) % 5, (row + 2) % 5] for row in range(5)])
    assert abs(float(affinity_loss(features, neighbors, 1))) < 1e-6
