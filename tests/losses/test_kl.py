from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from driftgate.losses import KLForm, Reduction, kl_from_uniform, kl_loss
from driftgate.types import UNKNOWN, UNLABELED

FORMS, REDUCTIONS = get_args(KLForm), get_args(Reduction)
LABELS = [0, 3, UNKNOWN, UNLABELED, 2, UNKNOWN, 0]
CLASSES = 4


def make_logits(seed: int = 0, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(len(LABELS), CLASSES, generator=generator, dtype=torch.float64)


def softmax(values: list[float]) -> list[float]:
    exponentials = [math.exp(value) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def kl(uniform_to: list[float]) -> float:
    """KL(u || p) = sum of u log(u / p)."""
    return sum(1.0 / len(uniform_to) * math.log(1.0 / len(uniform_to) / p) for p in uniform_to)


def slow_loss(logits: Tensor, labels: list[int], form: str, reduction: str, temperature: float) -> float:
    known, unknown = [], []
    for row, label in zip(logits.tolist(), labels, strict=True):
        p = softmax(row)
        entropy = -sum(value * math.log(value) for value in p) / math.log(len(p))
        if label >= 0:
            known.append(
                {
                    "paper": -kl(p),
                    "bounded": -kl(softmax([value / temperature for value in p])),
                    "cross_entropy": -math.log(p[label]),
                    "comet": entropy,
                }[form]
            )
        elif label == UNKNOWN:
            unknown.append(
                {
                    "paper": kl(p),
                    "bounded": kl(softmax([value / temperature for value in p])),
                    "cross_entropy": kl(p),
                    "comet": -entropy,
                }[form]
            )
    if reduction == "sum":
        return sum(known) + sum(unknown)
    return sum(known) / max(len(known), 1) + sum(unknown) / max(len(unknown), 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("labels", [LABELS, [1] * 7, [UNKNOWN] * 7, [UNLABELED] * 6 + [2]])
def test_agrees_with_the_written_formula(
    form: KLForm, reduction: Reduction, temperature: float, labels: list[int]
) -> None:
    logits = make_logits()
    found = kl_loss(logits, torch.tensor(labels), form=form, reduction=reduction, temperature=temperature)
    assert float(found) == pytest.approx(slow_loss(logits, labels, form, reduction, temperature), rel=1e-10)


def test_the_default_is_eq_6() -> None:
    logits = make_logits(1)
    assert float(kl_loss(logits, torch.tensor(LABELS))) == pytest.approx(slow_loss(logits, LABELS, "paper", "sum", 0.1))


def test_kl_from_uniform_is_zero_only_at_the_uniform_distribution() -> None:
    torch.testing.assert_close(
        kl_from_uniform(torch.full((2, 9), 3.0, dtype=torch.float64)), torch.zeros(2, dtype=torch.float64)
    )
    assert float(kl_from_uniform(make_logits()).min()) > 0.0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradient_is_that_of_the_loss(form: KLForm, reduction: Reduction) -> None:
    labels = torch.tensor(LABELS)

    def loss(values: Tensor) -> Tensor:
        return kl_loss(values, labels, form=form, reduction=reduction)

    assert torch.autograd.gradcheck(loss, (make_logits().requires_grad_(),))


@pytest.mark.parametrize("num_classes", [2, 9, 200])
def test_the_bounded_form_is_what_the_released_code_optimises_up_to_a_constant(num_classes: int) -> None:
    """+-logsumexp(p / 0.1): minus on known, plus on unknown; KL = logsumexp - log C - 10 / C for each sample."""
    generator = torch.Generator().manual_seed(0)
    logits = 3.0 * torch.randn(6, num_classes, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, UNKNOWN, 1, UNLABELED, UNKNOWN, UNKNOWN])
    released = (logits.softmax(dim=1) / 0.1).logsumexp(dim=1)
    expected = released[labels == UNKNOWN].sum() - released[labels >= 0].sum()
    constant = (math.log(num_classes) + 10.0 / num_classes) * (3 - 2)
    found = kl_loss(logits, labels, form="bounded", reduction="sum", temperature=0.1)
    torch.testing.assert_close(found, expected - constant)


@pytest.mark.parametrize(("num_classes", "lowest", "highest"), [(9, 3.31, 10.00), (200, 5.35, 10.01)])
def test_the_bounded_form_is_bounded_as_measured(num_classes: int, lowest: float, highest: float) -> None:
    constant = math.log(num_classes) + 10.0 / num_classes
    undecided, sure = torch.zeros(1, num_classes), torch.zeros(1, num_classes)
    sure[0, 0] = 1e4
    label = torch.tensor([UNKNOWN])
    assert float(kl_loss(undecided, label, form="bounded")) + constant == pytest.approx(lowest, abs=0.01)
    assert float(kl_loss(sure, label, form="bounded")) + constant == pytest.approx(highest, abs=0.01)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_finite_at_huge_logits(form: KLForm, reduction: Reduction, dtype: torch.dtype) -> None:
    logits = (1e4 * make_logits().sign()).to(dtype).requires_grad_()
    loss = kl_loss(logits, torch.tensor(LABELS), form=form, reduction=reduction)
    loss.backward()
    assert logits.grad is not None
    assert math.isfinite(float(loss.detach()))
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_samples_without_a_label_contribute_nothing(form: KLForm, reduction: Reduction) -> None:
    logits = make_logits().requires_grad_()
    loss = kl_loss(logits, torch.full((len(LABELS),), UNLABELED), form=form, reduction=reduction)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) == 0.0
    both = torch.tensor(LABELS)
    without = both != UNLABELED
    torch.testing.assert_close(
        kl_loss(logits, both, form=form, reduction=reduction),
        kl_loss(logits[without], both[without], form=form, reduction=reduction),
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("label", [0, UNKNOWN])
def test_a_step_makes_known_samples_surer_and_unknown_ones_less_sure(
    form: KLForm, reduction: Reduction, label: int
) -> None:
    logits = torch.tensor([[0.6, 0.0, -0.2]], dtype=torch.float64, requires_grad=True)
    kl_loss(logits, torch.tensor([label]), form=form, reduction=reduction).backward()
    assert logits.grad is not None
    stepped = logits.detach() - 0.01 * logits.grad
    before, after = (float(kl_from_uniform(values.detach())[0]) for values in (logits, stepped))
    assert (after > before) == (label >= 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("label", [0, UNKNOWN])
def test_one_sample_and_one_class_are_finite(form: KLForm, label: int) -> None:
    logits = torch.tensor([[2.0]], requires_grad=True)
    loss = kl_loss(logits, torch.tensor([label]), form=form, reduction="mean")
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-6)
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


def test_mean_weighs_known_and_unknown_samples_alike_however_many_there_are() -> None:
    logits = torch.tensor([[2.0, 0.0]] * 3 + [[1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, UNKNOWN])
    found = kl_loss(logits, labels, form="paper", reduction="mean")
    torch.testing.assert_close(found, kl_from_uniform(logits[3:])[0] - kl_from_uniform(logits[:1])[0])
