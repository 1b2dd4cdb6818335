from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from driftgate.losses import agreement_loss, as_sure_as, mean_entropy


def drawn(seed: int, count: int = 6, classes: int = 4, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)


def slow_loss(logits: list[list[float]], answers: list[list[float]]) -> float:
    """The sum over q log(q / p), sample by sample, in plain numbers."""
    total = 0.0
    for row, answer in zip(logits, answers, strict=True):
        highest = max(row)
        sum_of_powers = sum(math.exp(value - highest) for value in row)
        for value, q in zip(row, answer, strict=True):
            if q > 0:
                total += q * (math.log(q) - (value - highest - math.log(sum_of_powers)))
    return total / max(len(logits), 1)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(1, 5), st.floats(0.01, 200.0))
def test_it_is_the_mean_divergence(seed: int, count: int, classes: int, scale: float) -> None:
    logits, answers = drawn(seed, count, classes, scale), drawn(seed + 1, count, classes, scale).softmax(dim=1)
    expected = slow_loss(logits.tolist(), answers.tolist())
    assert float(agreement_loss(logits, answers)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(2, 6), st.floats(0.3, 3.0))
def test_answers_become_as_sure_as_asked_but_never_less_sure(
    seed: int, count: int, classes: int, temperature: float
) -> None:
    """Of a softmax at any temperature the one at 1 comes back, where that is a step towards more certainty."""
    logits = drawn(seed, count, classes)
    found = as_sure_as((logits / temperature).softmax(dim=1), logits)
    expected = logits if temperature >= 1.0 else logits / temperature  # sure enough already
    torch.testing.assert_close(found, expected.softmax(dim=1), rtol=1e-4, atol=1e-5)
    if temperature >= 1.0:
        assert float(mean_entropy(found.log())) == pytest.approx(float(mean_entropy(logits)), rel=1e-4, abs=1e-5)


def test_answers_with_zeros_undecided_ones_and_none_at_all() -> None:
    certain = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    torch.testing.assert_close(as_sure_as(certain, torch.zeros(2, 3)), certain)
    undecided = torch.full((2, 3), 1.0 / 3.0)
    torch.testing.assert_close(as_sure_as(undecided, 100.0 * certain), undecided)
    assert as_sure_as(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0, 3)


def test_its_gradient_pulls_the_view_to_the_answer_and_leaves_the_answer_alone() -> None:
    logits, answers = drawn(0).requires_grad_(), drawn(1).softmax(dim=1).requires_grad_()
    agreement_loss(logits, answers).backward()
    assert answers.grad is None and logits.grad is not None
    torch.testing.assert_close(logits.grad, (logits.softmax(dim=1) - answers).detach() / len(logits))


def test_nothing_is_lost_where_both_agree() -> None:
    logits = drawn(2).requires_grad_()
    loss = agreement_loss(logits, logits.softmax(dim=1))
    loss.backward()
    assert abs(loss.item()) < 1e-12 and logits.grad is not None and float(logits.grad.abs().max()) < 1e-12


def test_an_undecided_answer_teaches_to_be_undecided() -> None:
    """Every known class loses by the same answer: a new class is taught none."""
    logits = torch.tensor([[3.0, 0.0, 0.0, 0.0]], requires_grad=True)
    agreement_loss(logits, torch.full((1, 4), 0.25)).backward()
    assert logits.grad is not None and logits.grad[0, 0] > 0 and bool((logits.grad[0, 1:] < 0).all())


def test_its_edges_are_finite() -> None:
    far = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    loss = agreement_loss(far, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    loss.backward()
    assert loss.item() == pytest.approx((2e4 + math.log(2)) / 2)
    assert far.grad is not None and bool(far.grad.isfinite().all())
    empty = torch.zeros(0, 3, requires_grad=True)
    assert agreement_loss(empty, torch.zeros(0, 3)).item() == 0.0
