"""The consent of the classifier as it came, sample by sample against the same written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from driftgate import UNKNOWN, UNLABELED
from driftgate.methods.consent import Consent
from driftgate.models.source_model import ModelOutput

LABELS = torch.tensor([0, 1, 2, UNKNOWN, UNLABELED] * 6)


def some(*shape: int, seed: int) -> Tensor:
    return 2.0 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_hand(logits: Tensor, veto_below: float, doubt_above: float) -> list[bool]:
    vetoed = []
    for row, label in zip(logits.double().softmax(dim=1).tolist(), LABELS.tolist(), strict=True):
        doubt = sum(-share * math.log(share) for share in row) / math.log(len(row))
        against_class = label >= 0 and veto_below > 0 and row[label] <= veto_below
        vetoed.append(against_class or (label == UNKNOWN and doubt_above > 0 and doubt <= doubt_above))
    return vetoed


@pytest.mark.parametrize(("veto_below", "doubt_above"), [(0.2, 0.5), (0.2, 0.0), (0.0, 0.5), (0.9, 0.9), (0.0, 0.0)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_classifier_that_learns_is_asked_as_it_came(veto_below: float, doubt_above: float, bias: bool) -> None:
    classifier, features = nn.Linear(4, 3, bias=bias), some(30, 4, seed=1)
    with torch.no_grad():
        classifier.weight.copy_(some(3, 4, seed=2))
        as_it_came = classifier(features)
    consent = Consent(classifier, veto_below=veto_below, doubt_above=doubt_above, learns=True)
    with torch.no_grad():
        classifier.weight.mul_(-3.0)
        output = ModelOutput(features, classifier(features))
    expected = by_hand(as_it_came, veto_below, doubt_above)
    assert consent.vetoed(output, LABELS).tolist() == expected
    assert consent.num_bytes == (4 * 3 * (4 + 1) if veto_below or doubt_above else 0)
    if veto_below or doubt_above:
        assert torch.allclose(consent.logs(output), as_it_came.log_softmax(dim=1), atol=1e-5)
        assert True in expected and False in expected
        assert expected != by_hand(output.logits, veto_below, doubt_above)


@pytest.mark.parametrize(("classifier", "learns"), [(nn.Linear(4, 3), False), (nn.Sequential(nn.Linear(4, 3)), True)])
def test_one_that_stays_or_is_no_linear_layer_is_asked_itself(classifier: nn.Module, learns: bool) -> None:
    consent = Consent(classifier, veto_below=0.2, doubt_above=0.5, learns=learns)
    output = ModelOutput(some(30, 4, seed=1), some(30, 3, seed=3))
    assert consent.vetoed(output, LABELS).tolist() == by_hand(output.logits, 0.2, 0.5)
    assert consent.num_bytes == 0


def test_a_probability_at_the_limit_is_not_believed_and_no_gradient_passes() -> None:
    output = ModelOutput(some(1, 4, seed=1).requires_grad_(), torch.zeros(1, 2, requires_grad=True))
    for learns in (True, False):
        consent = Consent(nn.Linear(4, 2), veto_below=0.5, doubt_above=0.0, learns=learns)
        assert not consent.logs(output).requires_grad
    assert consent.vetoed(output, torch.tensor([1])).tolist() == [True]
