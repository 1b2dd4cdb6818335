"""Tent: one step by hand, what moves and what does not, and what it gains and loses."""

from __future__ import annotations

import math

import pytest
import torch
from support import images_of, small_model
from synthetic import score, source_model, target_batches
from torch import Tensor, nn

import driftgate
from driftgate import UNKNOWN, UNLABELED, DriftgateError
from driftgate.methods.tent import Tent


def make(**settings: object) -> Tent:
    method = driftgate.create("tent", small_model(), **settings)
    assert isinstance(method, Tent)
    return method


def normalise(values: Tensor, layer: nn.Module, dims: tuple[int, ...]) -> Tensor:
    """Batch norm as it is written in books: by mean and biased variance of the batch, then scale and shift."""
    assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
    mean = values.mean(dim=dims, keepdim=True)
    variance = ((values - mean) ** 2).mean(dim=dims, keepdim=True)
    shape = [1, -1] + [1] * (values.ndim - 2)
    return (values - mean) / (variance + layer.eps).sqrt() * layer.weight.view(shape) + layer.bias.view(shape)


@pytest.mark.parametrize(
    ("settings", "moved"),
    [
        ({}, {"backbone.1.weight", "backbone.1.bias"}),
        (
            {"adapt_layers": "norm"},
            {"backbone.1.weight", "backbone.1.bias", "bottleneck.1.weight", "bottleneck.1.bias"},
        ),
    ],
    ids=["as published", "all norm layers"],
)
def test_one_step_by_hand(settings: dict[str, str], moved: set[str]) -> None:
    """Network, entropy and one step of Nesterov SGD written out, in float64; every norm layer sees the batch."""
    images, model = images_of(16, 0), small_model().double()
    convolution, norm, bottleneck = model.backbone[0], model.backbone[1], model.bottleneck
    hidden = normalise(convolution(images.double()), norm, (0, 2, 3)).relu()
    pooled = nn.functional.adaptive_avg_pool2d(hidden, 2).flatten(1)
    logits = model.classifier(normalise(bottleneck[0](pooled), bottleneck[1], (0,)))
    probabilities = logits.softmax(dim=1)
    entropies = -(probabilities * probabilities.log()).sum(dim=1)
    entropies.mean().backward()

    method = make(lr=0.1, **settings)
    prediction = method.step(images)
    novelty = (entropies / math.log(5)).detach()
    assert torch.allclose(prediction.novelty, novelty, atol=1e-5)
    assert torch.allclose(prediction.scores.double(), probabilities.detach(), atol=1e-5)
    assert torch.equal(prediction.labels, torch.where(novelty > 0.5, UNKNOWN, logits.argmax(dim=1)))
    assert (prediction.pseudo_labels == UNLABELED).all()
    for (name, before), after in zip(model.named_parameters(), method.model.parameters(), strict=True):
        # The first step of Nesterov momentum 0.9 is (1 + 0.9) times the gradient.
        step = 0.1 * 1.9 * before.grad if name in moved and before.grad is not None else 0.0
        assert torch.allclose(after.double(), before - step, atol=1e-6), name
        assert (name in moved) == bool((after.double() - before).abs().max() > 1e-5), name


def test_prediction_depends_on_the_present_batch_alone() -> None:
    """Running statistics follow the stream, but nobody with more than one image reads them."""
    one, two = make(), make()
    for layer in two.model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.running_mean.fill_(7.0)
            layer.running_var.fill_(9.0)
    assert torch.equal(one.predict(images_of(8, 0)).scores, two.predict(images_of(8, 0)).scores)
    assert not torch.equal(one.predict(images_of(1, 0)).scores, two.predict(images_of(1, 0)).scores)


def test_entropy_falls_on_a_batch_seen_again() -> None:
    method = make(lr=0.5)
    images = images_of(32, 0)
    first = method.step(images).novelty.mean()
    for _ in range(10):
        method.step(images)
    assert method.predict(images).novelty.mean() < first - 0.02


def test_it_learns_and_grows_sure_of_new_classes_too() -> None:
    """Known accuracy rises above batch statistics alone; the price is that rejection of new classes falls.

    The only norm layer of this network is the bottleneck's, which the public code would leave alone.
    """
    stream = target_batches(40, angle=0.9)
    targets = [labels for _, labels in stream]

    def run(name: str, **settings: object) -> list[Tensor]:
        method = driftgate.create(name, source_model(), **settings)
        return [method.step(images).labels for images, _ in stream]

    answers = run("tent", lr=0.01, adapt_layers="norm")
    h_score, known, _ = score(answers, targets)
    assert h_score > score(run("source-only"), targets)[0] + 0.2
    assert known > score(run("bn-stats"), targets)[1] + 0.03
    assert score(answers[20:], targets[20:])[2] < score(answers[:20], targets[:20])[2] - 0.03


def test_a_network_without_batch_norm_over_pictures_is_refused_with_what_to_do() -> None:
    with pytest.raises(DriftgateError, match=r"adapt_layers='norm2d' but this model has none; take another of .*norm"):
        driftgate.create("tent", source_model())
    driftgate.create("tent", source_model(), adapt_layers="norm")


def test_defaults_are_the_published_ones() -> None:
    for chosen in (make().settings, make(preset="imagenet").settings):
        assert (chosen.lr, chosen.backbone_lr_scale, chosen.momentum, chosen.nesterov) == (0.00025, 1.0, 0.9, True)
        assert (chosen.weight_decay, chosen.adapt_layers, chosen.threshold) == (0.0, "norm2d", 0.5)
    assert not Tent.universal and Tent.source_free
    assert make().num_bytes == 0
