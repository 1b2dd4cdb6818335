"""Class-aware InfoNCE against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.losses import class_aware_info_nce


def case(samples: int = 7, past: int = 23, num_classes: int = 3, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    queries = 3.0 * torch.randn(samples, 5, generator=generator)
    keys = F.normalize(torch.randn(samples, 5, generator=generator), dim=1)
    past_keys = F.normalize(torch.randn(past, 5, generator=generator), dim=1)
    labels = torch.randint(num_classes, (samples,), generator=generator)
    past_labels = torch.randint(num_classes, (past,), generator=generator)
    return queries, keys, labels, past_keys, past_labels


def slow(queries: Tensor, keys: Tensor, labels: Tensor, past: Tensor, past_labels: Tensor, temperature: float) -> float:
    losses = []
    for query, key, label in zip(queries.double().numpy(), keys.double().numpy(), labels.tolist(), strict=True):
        unit = query / np.linalg.norm(query)
        positive = math.exp(float(unit @ key) / temperature)
        negatives = 0.0
        for other, other_label in zip(past.double().numpy(), past_labels.tolist(), strict=True):
            if other_label != label:
                negatives += math.exp(float(unit @ other) / temperature)
        losses.append(-math.log(positive / (positive + negatives)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.07, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_sum_by_hand(temperature: float, seed: int) -> None:
    inputs = case(seed=seed)
    assert float(class_aware_info_nce(*inputs, temperature=temperature)) == pytest.approx(
        slow(*inputs, temperature), rel=1e-5
    )


def test_keys_of_the_same_label_change_nothing() -> None:
    queries, keys, labels, past, _ = case(num_classes=2)
    own = torch.zeros_like(labels)
    other_half = torch.cat([torch.ones(12), torch.zeros(11)]).long()
    masked = class_aware_info_nce(queries, keys, own, past, other_half)
    assert torch.equal(masked, class_aware_info_nce(queries, keys, own, past[:12], other_half[:12]))
    assert masked < class_aware_info_nce(queries, keys, own, past, torch.ones(23).long())


@pytest.mark.parametrize("past", [0, 6])
def test_without_negatives_there_is_no_loss_and_no_gradient(past: int) -> None:
    queries, keys, _, past_keys, _ = case(past=past)
    queries.requires_grad_()
    loss = class_aware_info_nce(queries, keys, torch.zeros(7).long(), past_keys, torch.zeros(past))
    loss.backward()
    assert loss.item() == 0.0
    assert queries.grad is not None and torch.equal(queries.grad, torch.zeros_like(queries))


def test_only_queries_get_a_gradient_and_it_is_the_numerical_one() -> None:
    queries, keys, labels, past, past_labels = case(samples=3, past=8)
    inputs = [tensor.double().requires_grad_() for tensor in (queries, keys, past)]
    loss = class_aware_info_nce(inputs[0], inputs[1], labels, inputs[2], past_labels)
    loss.backward()
    assert inputs[1].grad is None and inputs[2].grad is None

    def of_queries(values: Tensor) -> Tensor:
        return class_aware_info_nce(values, keys.double(), labels, past.double(), past_labels, temperature=0.5)

    assert torch.autograd.gradcheck(of_queries, (queries.double().requires_grad_(),))


def test_a_zero_feature_stays_finite() -> None:
    queries, keys, labels, past, past_labels = case()
    queries = torch.zeros_like(queries).requires_grad_()
    loss = class_aware_info_nce(queries, keys, labels, past, past_labels)
    loss.backward()
    assert loss.isfinite() and queries.grad is not None and queries.grad.isfinite().all()
