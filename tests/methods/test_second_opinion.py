"""The second opinion: who has a say in an answer, what is kept for it, and that the network is left as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import NUM_CLASSES, images_of, small_model, state_of
from torch import Tensor, nn

import driftgate
from driftgate import DriftgateError, SourceModel
from driftgate.methods.gmm import GMM
from driftgate.methods.second_opinion import SHARE, SecondOpinion, opinion_share
from driftgate.models.normalization import batch_statistics
from driftgate.models.source_model import ModelOutput


def make(model: SourceModel | None = None, **settings: Any) -> GMM:
    """The other opinions are silent unless they are asked for."""
    alone = {"neighbor_opinion": 0.0, "third_opinion": 0.0, **settings}
    method = driftgate.create("gmm", model or small_model(), **alone)
    assert isinstance(method, GMM)
    return method


def model_by(backbone_norm: str | None, *, pretrained: bool = True) -> SourceModel:
    """A small model that has seen something, so that its statistics are not those it was made with."""
    model = small_model()
    model.spec = model.spec.model_copy(update={"backbone_norm": backbone_norm, "pretrained": pretrained})
    with torch.no_grad(), batch_statistics(model, 32):
        for seed in range(9):
            model(3.0 * images_of(32, seed) - 1.0)
    return model


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_pool_is_the_product_of_powers_of_both() -> None:
    opinion = SecondOpinion(small_model(), 0.25, keeps_source=False)
    mine, other = 3.0 * noise(7, NUM_CLASSES, seed=1), 3.0 * noise(7, NUM_CLASSES, seed=2)
    features = noise(7, 4)
    pooled = opinion.pool(ModelOutput(features, mine), other)
    assert pooled.features is features
    for found, p, q in zip(pooled.logits.exp(), mine.softmax(dim=1), other.softmax(dim=1), strict=True):
        powers = [float(one) ** 0.75 * float(two) ** 0.25 for one, two in zip(p, q, strict=True)]
        assert found.tolist() == pytest.approx([value / sum(powers) for value in powers], rel=1e-5)


def test_who_is_undecided_has_no_say_and_who_is_sure_beyond_numbers_leaves_it_finite() -> None:
    opinion = SecondOpinion(small_model(), 0.5, keeps_source=False)
    mine, undecided = noise(5, NUM_CLASSES), torch.full((5, NUM_CLASSES), 2.0)
    pooled = opinion.pool(ModelOutput(mine, mine), undecided).logits
    assert torch.allclose(pooled, (0.5 * mine).log_softmax(dim=1), atol=1e-6)
    certain = torch.full((5, NUM_CLASSES), -1e30)
    certain[:, 0] = 1e30
    assert opinion.pool(ModelOutput(mine, mine), certain).logits.isfinite().all()
    assert opinion.pool(ModelOutput(mine, mine), None).logits is mine
    broken = undecided.clone()
    broken[0, 1], broken[1, 2] = math.nan, math.inf
    found = opinion.pool(ModelOutput(mine, mine), broken).logits
    assert torch.allclose(found[:2], mine[:2].log_softmax(dim=1), atol=1e-6) and torch.equal(found[2:], pooled[2:])


@pytest.mark.parametrize("backbone_norm", ["batch", "running"])
def test_an_answer_is_the_pool_of_both_statistics(backbone_norm: str) -> None:
    model, images = model_by(backbone_norm), images_of(40, 3)
    method = make(model, second_opinion=0.25)
    with torch.no_grad():
        by_running = model(model.prepare(images)).logits
        before = [buffer.clone() for buffer in model.buffers()]
        with batch_statistics(model, len(images)):
            by_batch = model(model.prepare(images)).logits
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
    first, second = (by_batch, by_running) if backbone_norm == "batch" else (by_running, by_batch)
    powers = first.softmax(dim=1) ** 0.75 * second.softmax(dim=1) ** 0.25
    expected = powers / powers.sum(dim=1, keepdim=True)
    kept = {name: value.clone() for name, value in state_of(method).items()}
    assert torch.allclose(method.predict(images).scores, expected, atol=1e-5)
    assert not torch.allclose(first.softmax(dim=1), expected, atol=1e-3)
    assert all(torch.equal(value, kept[name]) for name, value in state_of(method).items())


def test_the_pool_answers_but_the_first_opinion_consents() -> None:
    """By the other statistics a classifier that is at home would seem to be in doubt."""
    method = make(model_by("running"), second_opinion=0.99, doubt_above=0.5, certain_below=0.0)
    output = ModelOutput(noise(40, 16), torch.eye(NUM_CLASSES).repeat(8, 1) * 50.0)
    undecided = 0.1 * noise(40, NUM_CLASSES)
    prediction = method._assess(output, method.reducer(output.features), other=undecided).prediction
    assert float(prediction.novelty.min()) > 0.5 and driftgate.UNKNOWN in prediction.labels
    assert driftgate.UNKNOWN not in prediction.pseudo_labels
    alone = method._assess(ModelOutput(output.features, undecided), method.reducer(output.features)).prediction
    assert driftgate.UNKNOWN in alone.pseudo_labels


@pytest.mark.parametrize("backbone_norm", ["batch", "running"])
def test_few_samples_are_held_against_the_doubts_of_the_first_opinion_alone(backbone_norm: str) -> None:
    """They have no second opinion; by the pool, which doubts more, too few of them would be rejected."""
    method, alone = (
        make(model_by(backbone_norm), adapt_layers="norm", lr=1e-9, **kept) for kept in ({}, {"second_opinion": 0.0})
    )
    for seed in range(6):
        both = method.step(images_of(40, seed)).thresholds, alone.step(images_of(40, seed)).thresholds
    few = method.predict(images_of(8, 7)).thresholds
    assert few.prediction == pytest.approx(both[1].prediction, abs=1e-4)
    assert abs(few.prediction - both[0].prediction) > 1e-3
    assert method.frozen().threshold == pytest.approx(few.prediction)
    assert "gate_alone.quantiles" in state_of(method) and "gate_alone.quantiles" not in state_of(alone)


def test_after_many_steps_the_source_s_statistics_still_are_the_source_s() -> None:
    """By the batch the network's own running statistics follow the stream; a copy is asked, which is saved too."""
    model = model_by("batch")
    running = [layer.running_mean.clone() for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    method = make(model)
    start = method.second_opinion.statistics.clone()
    assert torch.equal(start[: len(running[0])], running[0])
    for seed in range(4):
        method.step(images_of(32, seed))
    assert torch.equal(method.second_opinion.statistics, start)
    assert not torch.equal(
        next(layer.running_mean for layer in model.modules() if hasattr(layer, "running_mean")), running[0]
    )
    assert "second_opinion.statistics" in state_of(method)


@pytest.mark.parametrize(
    ("pretrained", "piece_size", "asked", "share"),
    [(True, None, None, SHARE), (False, None, None, 0.0), (True, 4, None, 0.0), (False, None, 0.5, 0.5)],
)
def test_by_default_a_pretrained_network_has_one(
    pretrained: bool, piece_size: int | None, asked: float | None, share: float
) -> None:
    model = model_by("running", pretrained=pretrained)
    model.piece_size = piece_size
    assert opinion_share(asked, model) == share
    assert SHARE == 0.25  # docs/gmm.md has the table that chose it


def test_a_backbone_without_batch_norm_has_none() -> None:
    model = model_by("running")
    model.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
    assert any(isinstance(layer, nn.BatchNorm1d) for layer in model.modules())
    assert opinion_share(None, model) == 0.0


def test_what_is_kept_is_counted_and_only_where_the_network_goes_by_the_batch() -> None:
    channels = sum(
        layer.num_features for layer in small_model().modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    )
    without = make(model_by("batch"), second_opinion=0.0).num_bytes
    assert make(model_by("batch")).num_bytes - without == 4 * 2 * channels + 24  # and the second gate
    assert make(model_by("running")).num_bytes == without + 24


def test_a_step_that_fails_in_it_leaves_the_network_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(model_by("batch"))
    kept = {name: value.clone() for name, value in state_of(method).items()}

    def fail(images: Tensor) -> ModelOutput:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(method.model, "_run", fail)
        method.step(images_of(32, 0))
    assert all(torch.equal(value, kept[name]) for name, value in state_of(method).items())


def test_a_share_beyond_one_is_refused() -> None:
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(DriftgateError, match="second_opinion"):
            make(second_opinion=wrong)
    with pytest.raises(DriftgateError, match="second_opinion"):
        driftgate.create("gmm-comet", small_model(), second_opinion=0.25)


@pytest.mark.parametrize("effort", ["light", "frozen"])
def test_cheap_efforts_do_without(effort: str) -> None:
    assert make(model_by("running"), effort=effort).second_opinion.share == 0.0
    assert make(model_by("running"), effort=effort, second_opinion=0.1).second_opinion.share == 0.1
