from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from driftgate.losses import UnknownPairs, supcon_loss
from driftgate.types import UNKNOWN, UNLABELED

LABELS = {
    "mixed": [0, 1, UNKNOWN, 0, UNLABELED, 2, 1, 0, UNKNOWN, UNLABELED],
    "one class": [1] * 10,
    "nobody unknown": [0, 1, 2, UNLABELED, 0, 0, UNLABELED, 1, 1, 2],
    "one known": [UNKNOWN] * 9 + [2],
    "one known alone": [UNLABELED] * 9 + [0],
}


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def slow_loss(
    projected: Tensor,
    augmented: Tensor,
    prototypes: Tensor,
    labels: list[int],
    temperature: float,
    unknown_pairs: UnknownPairs,
) -> float:
    """Anchor by anchor: every view of a known sample against every other view."""
    anchors: list[tuple[int, list[float]]] = []
    unknown: list[list[float]] = []
    for row, label in enumerate(labels):
        pair = [unit(projected[row].tolist()), unit(augmented[row].tolist())]
        if label >= 0:
            anchors += [(label, unit(prototypes[label].tolist())), *((label, view) for view in pair)]
        elif label == UNKNOWN:
            unknown += pair

    def likeness(one: list[float], two: list[float]) -> float:
        return math.exp(sum(a * b for a, b in zip(one, two, strict=True)) / temperature)

    losses = []
    for i, (label, anchor) in enumerate(anchors):
        denominator = sum(likeness(anchor, other) for j, (_, other) in enumerate(anchors) if j != i)
        meeting = [anchor] if unknown_pairs == "own" else [view for _, view in anchors]
        denominator += sum(likeness(view, other) for other in unknown for view in meeting)
        terms = [
            -math.log(likeness(anchor, other) / denominator)
            for j, (other_label, other) in enumerate(anchors)
            if j != i and other_label == label
        ]
        losses.append(sum(terms) / len(terms))
    return sum(losses) / len(losses)


def vectors(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(10, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    return first, second, torch.randn(3, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("case", sorted(LABELS))
@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("unknown_pairs", ["own", "all"])
def test_agrees_with_loops(case: str, temperature: float, unknown_pairs: UnknownPairs) -> None:
    parts, labels = vectors(), LABELS[case]
    found = supcon_loss(*parts, torch.tensor(labels), temperature=temperature, unknown_pairs=unknown_pairs)
    assert float(found) == pytest.approx(slow_loss(*parts, labels, temperature, unknown_pairs), rel=1e-9)


@pytest.mark.parametrize("unknown_pairs", ["own", "all"])
@pytest.mark.parametrize("case", ["mixed", "nobody unknown"])
def test_the_gradient_is_that_of_finite_differences(case: str, unknown_pairs: UnknownPairs) -> None:
    inputs, labels = tuple(part.requires_grad_() for part in vectors(1)), torch.tensor(LABELS[case])
    assert torch.autograd.gradcheck(
        lambda *parts: supcon_loss(*parts, labels, temperature=0.5, unknown_pairs=unknown_pairs), inputs
    )


def test_nobody_known_is_zero_and_has_no_graph() -> None:
    projected, augmented, prototypes = (part.requires_grad_() for part in vectors())
    for labels in ([UNKNOWN] * 10, [UNLABELED] * 10, [UNKNOWN, UNLABELED] * 5):
        loss = supcon_loss(projected, augmented, prototypes, torch.tensor(labels))
        assert float(loss) == 0.0 and loss.ndim == 0 and not loss.requires_grad


def test_samples_without_a_label_take_no_part() -> None:
    projected, augmented, prototypes = vectors()
    labels = torch.tensor(LABELS["mixed"])
    before = supcon_loss(projected, augmented, prototypes, labels)
    without = labels == UNLABELED
    projected[without], augmented[without] = 7.0, -3.0
    assert torch.equal(before, supcon_loss(projected, augmented, prototypes, labels))


def test_an_unknown_sample_pushes_only_the_anchors_it_lies_near() -> None:
    """The per-anchor form: an unknown sample on top of class 0 leaves the anchors of class 1 alone."""
    prototypes = torch.eye(2, 4, dtype=torch.float64)
    noise = 0.1 * torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradients = []
    for third in (UNKNOWN, UNLABELED):
        projected = torch.stack([prototypes[0], prototypes[1], prototypes[0]]).requires_grad_()
        supcon_loss(projected, projected.detach() + noise, prototypes, torch.tensor([0, 1, third])).backward()
        assert projected.grad is not None
        gradients.append(projected.grad)
    near, far, _ = (gradients[0] - gradients[1]).norm(dim=1)
    assert near > 0.05 and near > 500 * far


def test_a_vector_of_almost_no_length_has_almost_no_direction() -> None:
    labels = torch.tensor(LABELS["mixed"])
    # The anchors of known samples, then the unknown ones.
    for rows in (labels >= 0, labels == UNKNOWN):
        projected, augmented, prototypes = vectors()
        losses = []
        for scale in (0.0, 1e-10):
            scales = torch.where(rows, scale, 1.0)[:, None]
            losses.append(float(supcon_loss(projected * scales, augmented * scales, prototypes, labels)))
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e18])
def test_equal_and_extreme_vectors_stay_finite(value: float) -> None:
    projected, augmented = (torch.full((6, 4), value, requires_grad=True) for _ in range(2))
    loss = supcon_loss(projected, augmented, torch.full((2, 4), value), torch.tensor([0, 1, UNKNOWN, 0, 0, UNLABELED]))
    loss.backward()
    assert loss.isfinite()
    assert projected.grad is not None and projected.grad.isfinite().all()


def test_it_falls_when_views_and_prototypes_come_together() -> None:
    projected, augmented, prototypes = vectors(2)
    labels = torch.tensor(LABELS["nobody unknown"])
    known = labels >= 0
    for part in (projected, augmented):
        part[known] = 0.2 * part[known] + prototypes[labels[known]]
    near = supcon_loss(projected, augmented, prototypes, labels)
    assert near < supcon_loss(*vectors(2), labels)
