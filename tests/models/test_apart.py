"""Samples that go backward apart: the whole batch's gradient where they are not tied, a piece's own where they are."""

from __future__ import annotations

import pytest
import torch
from support import images_of, residual_model
from torch import Tensor
from torch.nn import functional as F

from driftgate import SourceModel
from driftgate.models import apart
from driftgate.models.apart import ApartPasses
from driftgate.models.normalization import batch_statistics
from driftgate.models.passes import Passes

TARGETS = torch.arange(21) % 3


def model_with_statistics() -> SourceModel:
    """Running statistics that are those of no batch."""
    model = residual_model()
    with torch.no_grad(), batch_statistics(model, 64):
        model(images_of(64, seed=9))
    return model


def some_loss(features: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
    """One that ties the samples together, and leaves those of weight zero alone."""
    kept = features * weights[:, None]
    return (weights * F.cross_entropy(logits, TARGETS, reduction="none")).sum() + (kept @ kept.T).square().sum() / 100


def gradients(model: SourceModel, passes: Passes, weights: Tensor) -> dict[str, Tensor]:
    output = passes.forward(images_of(21, seed=1), last=True)
    passes.backward(some_loss(*output, weights))
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_it_is_the_gradient_of_the_batch_where_samples_are_not_tied(memory: apart.MemoryMode) -> None:
    weights = (torch.arange(21) % 2).float()
    one, two = model_with_statistics(), model_with_statistics()
    expected = gradients(one, Passes(one, follow=False), weights)
    found = gradients(two, ApartPasses(two, memory=memory, follow=False), weights)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-6), name


def test_only_samples_that_the_loss_moves_go_forward_again_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = model_with_statistics(), []
    passes = ApartPasses(model, follow=False)
    output = passes.forward(images_of(21, seed=1), last=True)
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    passes.backward(some_loss(*output, (torch.arange(21) < 10).float()))
    assert sum(sizes) == 10 and max(sizes) <= apart.PIECE

    sizes.clear()
    output = passes.forward(images_of(21, seed=1), last=True)
    passes.choose(torch.arange(21) < 4)
    sizes.clear()
    passes.backward(some_loss(*output, torch.ones(21)))
    assert sizes == [4]


def test_the_share_keeps_those_that_the_loss_moves_most() -> None:
    model, seen = model_with_statistics(), []
    passes, images = ApartPasses(model, follow=False, share=0.25), images_of(21, seed=1)
    logits = passes.forward(images, last=True).logits
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    passes.backward((torch.arange(21.0) * logits[:, 0]).sum())
    assert torch.equal(torch.cat(seen), images[16:])  # round(0.25 * 21) samples, those of the largest factor


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_tied_samples_are_normalised_by_their_piece(memory: apart.MemoryMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "PIECE_WITH_STATISTICS", 7)
    model, by_hand = model_with_statistics(), model_with_statistics()
    found = gradients(model, ApartPasses(model, memory=memory, follow=True), torch.ones(21))
    images = images_of(21, seed=1)
    with batch_statistics(by_hand, 21):
        outputs = [part.detach().requires_grad_() for part in by_hand(images)]
        slopes = torch.autograd.grad(some_loss(*outputs, torch.ones(21)), outputs)
        statistics = {name: value.clone() for name, value in by_hand.named_buffers()}
        for first in (0, 7, 14):
            rows = slice(first, first + 7)
            torch.autograd.backward(list(by_hand(images[rows])), [slope[rows] for slope in slopes])
    expected = {name: value.grad for name, value in by_hand.named_parameters() if value.grad is not None}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-3, atol=1e-5), name
    # The running statistics have seen the batch once, as a whole.
    for name, value in model.named_buffers():
        assert torch.allclose(value, statistics[name]), name


def test_without_gradient_it_only_predicts() -> None:
    model = model_with_statistics()
    passes = ApartPasses(model, follow=False)
    with torch.no_grad():
        output = passes.forward(images_of(4, seed=2), last=True)
    assert not output.logits.requires_grad and not passes.deferred
