"""The agreement of gmm's second view with what was answered: of whom it is asked, and what it moves."""

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
from driftgate.methods.gmm import GMM


def make(*, backbone_norm: str = "running", **settings: Any) -> GMM:
    model = small_model()
    model.spec = model.spec.model_copy(update={"backbone_norm": backbone_norm, "pretrained": True})
    method = driftgate.create("gmm", model, **{"teach_share": 1.0, **settings})
    assert isinstance(method, GMM)
    return method


def test_it_is_there_where_it_is_asked_for() -> None:
    assert set(make().step(images_of(40, 1)).losses) == {"kl", "contrastive"}
    assert set(make(agreement_weight=1.0).step(images_of(40, 1)).losses) == {"kl", "contrastive", "agreement"}
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
    plain, sparing = (
        make(backbone_norm="batch", agreement_weight=10.0, memory=mode, lr=0.01) for mode in ("fast", memory)
    )
    for seed in range(3):
        for method in (plain, sparing):
            method.step(images_of(40, seed))
    for one, other in zip(plain.model.parameters(), sparing.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
