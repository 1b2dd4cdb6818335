"""The agreement of gmm's second view with what was answered: who is asked, of whom, and what it moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import images_of, small_model
from torch import Tensor

import driftgate
from driftgate import DriftgateError
from driftgate.losses import agreement_loss, mean_entropy
from driftgate.methods import gmm as module
from driftgate.methods.gmm import AGREEMENT, GMM


def make(*, pretrained: bool = True, backbone_norm: str = "running", **settings: Any) -> GMM:
    model = small_model()
    model.spec = model.spec.model_copy(update={"backbone_norm": backbone_norm, "pretrained": pretrained})
    method = driftgate.create("gmm", model, **settings)
    assert isinstance(method, GMM)
    return method


def weight(**settings: Any) -> float:
    method = make(**settings)
    return method.agreement_weight(by_batch=method.by_batch == 1)


def test_it_is_asked_for_where_a_network_by_the_batch_has_a_second_opinion() -> None:
    assert weight(backbone_norm="batch") == AGREEMENT
    assert weight(backbone_norm="running") == 0.0
    assert weight(backbone_norm="running", batch_norm="batch") == AGREEMENT
    assert weight(backbone_norm="batch", pretrained=False) == 0.0
    assert weight(backbone_norm="batch", second_opinion=0.0) == 0.0
    assert weight(backbone_norm="running", agreement_weight=2.0) == 2.0
    for preset in ("paper", "released"):
        assert weight(backbone_norm="batch", preset=preset) == 0.0
    assert set(make(backbone_norm="running").step(images_of(40, 1)).losses) == {"kl", "contrastive"}
    assert set(make(backbone_norm="batch").step(images_of(40, 1)).losses) == {"kl", "contrastive", "agreement"}
    with pytest.raises(DriftgateError, match="agreement_weight"):
        make(agreement_weight=-1.0)
    with pytest.raises(DriftgateError, match="agreement_weight"):
        driftgate.create("gmm-comet", small_model(), agreement_weight=1.0)


@pytest.mark.parametrize("backbone_norm", ["batch", "running"])
def test_the_view_is_held_against_the_answer_to_the_same_samples(
    backbone_norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def watched(logits: Tensor, answers: Tensor) -> Tensor:
        seen.append((logits.detach(), answers))
        return agreement_loss(logits, answers)

    monkeypatch.setattr(module, "agreement_loss", watched)
    method = make(backbone_norm=backbone_norm, agreement_weight=3.0)
    prediction = method.step(images_of(40, 1))
    ((logits, answers),) = seen
    assert torch.equal(answers.argmax(dim=1), prediction.scores.argmax(dim=1))  # those of the pool, surer
    assert float(mean_entropy(answers.log())) <= float(mean_entropy(prediction.scores.log())) + 1e-6
    expected = 3.0 * float(agreement_loss(logits, answers))
    # A classifier that is at home learns the less, in all its losses alike.
    assert float(prediction.losses["agreement"]) == pytest.approx(expected * float(module.need(method.doubt)), rel=1e-5)


def test_it_alone_moves_the_network() -> None:
    still, moved = (
        make(contrastive_weight=0.0, kl_weight=0.0, agreement_weight=weight, lr=0.01) for weight in (0.0, 5.0)
    )
    before = [parameter.clone() for parameter in moved.model.backbone.parameters()]
    for method in (still, moved):
        method.step(images_of(40, 1))

    def distance(method: GMM) -> float:
        pairs = zip(method.model.backbone.parameters(), before, strict=True)
        return sum((parameter - value).abs().max().item() for parameter, value in pairs)

    assert distance(still) == 0.0 and distance(moved) > 0.0


def test_a_view_of_few_and_no_view_at_all() -> None:
    """Where samples go backward apart, it is those with a label whose view is taken; without a view nothing is lost."""
    method = make(backward="apart", agreement_weight=1.0)
    assert float(method.step(images_of(40, 1)).losses["agreement"]) > 0.0
    without = make(second_view="none", agreement_weight=1.0).step(images_of(40, 1)).losses
    assert float(without["agreement"]) == 0.0


@pytest.mark.parametrize("memory", ["balanced", "low"])
def test_less_memory_gives_the_same_weights(memory: str) -> None:
    plain, sparing = (make(backbone_norm="batch", memory=mode, lr=0.01) for mode in ("fast", memory))
    for seed in range(3):
        for method in (plain, sparing):
            method.step(images_of(40, seed))
    for one, other in zip(plain.model.parameters(), sparing.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
