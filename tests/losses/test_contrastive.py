from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from driftgate.losses import MeanTerm, Reduction, contrastive_loss
from driftgate.types import UNKNOWN, UNLABELED

OPTIONS = list(itertools.product(get_args(Reduction), (True, False), get_args(MeanTerm)))
LABELS = {
    "mixed": [0, 1, UNKNOWN, 0, UNLABELED, 2, 1, 0, UNKNOWN, UNLABELED],
    "one class": [1] * 10,
    "each alone": [0, 1, 2, UNKNOWN, UNKNOWN, UNKNOWN, UNLABELED, UNKNOWN, UNKNOWN, UNKNOWN],
    "one known": [UNKNOWN] * 9 + [2],
}


def cosine(one: list[float], two: list[float]) -> float:
    lengths = math.sqrt(sum(a * a for a in one)) * math.sqrt(sum(b * b for b in two))
    return sum(a * b for a, b in zip(one, two, strict=True)) / lengths


def slow_loss(
    reduced: Tensor, labels: list[int], means: Tensor, temperature: float, reduction: str, self_pairs: bool, over: str
) -> float:
    """Eq. 5 sum by sum: anchors i, partners j, denominators l."""
    views, centers = reduced.double().tolist(), means.double().tolist()
    pair_terms: list[list[float]] = []
    mean_terms: list[float] = []
    for i, label in enumerate(labels):
        if label < 0:
            continue
        terms = []
        for j, other in enumerate(labels):
            if other != label or (j == i and not self_pairs):
                continue
            denominator = 0.0
            for k in range(len(labels)):
                if k != i or self_pairs:
                    denominator += math.exp(cosine(views[k], views[i]) / temperature)
            terms.append(-math.log(math.exp(cosine(views[j], views[i]) / temperature) / denominator))
        pair_terms.append(terms)
        numerator = math.exp(cosine(centers[label], views[i]) / temperature)
        if over == "samples":
            total = sum(math.exp(cosine(centers[label], view) / temperature) for view in views)
        else:
            total = sum(math.exp(cosine(center, views[i]) / temperature) for center in centers)
        mean_terms.append(-math.log(numerator / total))
    if reduction == "sum":
        return sum(sum(terms) for terms in pair_terms) + sum(mean_terms)
    averages = [sum(terms) / len(terms) for terms in pair_terms if terms]
    return (sum(averages) / len(averages) if averages else 0.0) + sum(mean_terms) / len(mean_terms)


def features(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    reduced = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    return reduced, torch.randn(3, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("case", sorted(LABELS))
@pytest.mark.parametrize(("reduction", "self_pairs", "mean_term"), OPTIONS)
def test_agrees_with_a_triple_loop(case: str, reduction: Reduction, self_pairs: bool, mean_term: MeanTerm) -> None:
    (reduced, means), labels = features(), LABELS[case]
    found = contrastive_loss(
        reduced, torch.tensor(labels), means, reduction=reduction, self_pairs=self_pairs, mean_term=mean_term
    )
    expected = slow_loss(reduced, labels, means, 0.1, reduction, self_pairs, mean_term)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_the_defaults_are_the_papers_equation() -> None:
    reduced, means = features(1)
    labels = LABELS["mixed"]
    found = contrastive_loss(reduced, torch.tensor(labels), means)
    assert float(found) == pytest.approx(slow_loss(reduced, labels, means, 0.1, "sum", True, "samples"), rel=1e-9)


def test_temperature_is_used() -> None:
    reduced, means = features(2)
    labels = LABELS["mixed"]
    found = contrastive_loss(reduced, torch.tensor(labels), means, temperature=0.7)
    assert float(found) == pytest.approx(slow_loss(reduced, labels, means, 0.7, "sum", True, "samples"), rel=1e-9)


@pytest.mark.parametrize("case", sorted(LABELS))
@pytest.mark.parametrize(("reduction", "self_pairs", "mean_term"), OPTIONS)
def test_gradient_is_that_of_the_loss(case: str, reduction: Reduction, self_pairs: bool, mean_term: MeanTerm) -> None:
    reduced, means = features()
    labels = torch.tensor(LABELS[case])

    def loss(values: Tensor) -> Tensor:
        return contrastive_loss(
            values, labels, means, temperature=0.5, reduction=reduction, self_pairs=self_pairs, mean_term=mean_term
        )

    assert torch.autograd.gradcheck(loss, (reduced.requires_grad_(),))


def test_the_means_are_constants() -> None:
    reduced, means = features()
    means.requires_grad_()
    contrastive_loss(reduced.requires_grad_(), torch.tensor(LABELS["mixed"]), means).backward()
    assert means.grad is None
    assert reduced.grad is not None
    assert float(reduced.grad.abs().max()) > 0.0


@pytest.mark.parametrize(("reduction", "self_pairs", "mean_term"), OPTIONS)
@pytest.mark.parametrize("label", [UNKNOWN, UNLABELED])
def test_without_a_known_sample_loss_and_gradient_are_zero(
    reduction: Reduction, self_pairs: bool, mean_term: MeanTerm, label: int
) -> None:
    reduced, means = features()
    loss = contrastive_loss(
        reduced.requires_grad_(),
        torch.full((10,), label),
        means,
        reduction=reduction,
        self_pairs=self_pairs,
        mean_term=mean_term,
    )
    assert float(loss.detach()) == 0.0
    loss.backward()
    assert reduced.grad is not None
    assert float(reduced.grad.abs().max()) == 0.0


@pytest.mark.parametrize(("reduction", "self_pairs", "mean_term"), OPTIONS)
def test_a_single_sample_gives_a_finite_loss_and_gradient(
    reduction: Reduction, self_pairs: bool, mean_term: MeanTerm
) -> None:
    reduced = torch.tensor([[1.0, 2.0]], requires_grad=True)
    loss = contrastive_loss(
        reduced,
        torch.tensor([0]),
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        reduction=reduction,
        self_pairs=self_pairs,
        mean_term=mean_term,
    )
    loss.backward()
    # Alone, a sample has only itself to find; only the means of several classes say anything.
    expected = math.log(1.0 + math.exp(10.0 / math.sqrt(5.0))) if mean_term == "classes" else 0.0
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-5)
    assert reduced.grad is not None
    assert bool(reduced.grad.isfinite().all())


@pytest.mark.parametrize(("reduction", "self_pairs", "mean_term"), OPTIONS)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e15])
def test_features_of_any_size_give_finite_loss_and_gradient(
    reduction: Reduction, self_pairs: bool, mean_term: MeanTerm, scale: float
) -> None:
    base, means = features()
    reduced = (base.float() * scale).requires_grad_()
    loss = contrastive_loss(
        reduced,
        torch.tensor(LABELS["mixed"]),
        means.float() * scale,
        reduction=reduction,
        self_pairs=self_pairs,
        mean_term=mean_term,
    )
    loss.backward()
    assert reduced.grad is not None
    assert math.isfinite(float(loss.detach()))
    assert bool(reduced.grad.isfinite().all())


def test_a_vector_of_almost_no_length_has_almost_no_direction() -> None:
    """Below a millionth a direction is rounding: neither it nor its gradient may grow to that of a whole vector."""
    reduced, means = features()
    labels = torch.tensor(LABELS["mixed"])
    for scales in ((0.0, 1.0), (1.0, 0.0)):
        none = contrastive_loss(reduced * scales[0], labels, means * scales[1])
        tiny = contrastive_loss(reduced * max(scales[0], 1e-10), labels, means * max(scales[1], 1e-10))
        assert float(tiny) == pytest.approx(float(none), rel=1e-3)


def test_moving_a_known_sample_to_its_class_lowers_the_loss() -> None:
    means = torch.eye(2, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, UNKNOWN])
    apart = torch.tensor([[1.0, 0.1], [0.2, 1.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    together = apart.clone()
    together[1] = torch.tensor([1.0, 0.2])
    for reduction, self_pairs, mean_term in OPTIONS:
        near, far = (
            float(contrastive_loss(x, labels, means, reduction=reduction, self_pairs=self_pairs, mean_term=mean_term))
            for x in (together, apart)
        )
        assert near < far


@pytest.mark.parametrize("length", [1e-5, 2e-6])
def test_the_length_of_means_and_features_makes_no_difference(length: float) -> None:
    generator = torch.Generator().manual_seed(0)
    reduced, means = torch.randn(10, 4, generator=generator), torch.randn(3, 4, generator=generator)
    labels = torch.tensor(LABELS["mixed"])
    expected = contrastive_loss(reduced, labels, means)
    shortest = length / torch.cat([reduced, means]).norm(dim=1).min()
    assert torch.allclose(contrastive_loss(shortest * reduced, labels, means), expected, rtol=1e-5)
    assert torch.allclose(contrastive_loss(reduced, labels, shortest * means), expected, rtol=1e-5)
