"""The third opinion: what the mixture's directions say, who hears them and the neighbours, and the level they allow."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import NUM_CLASSES, images_of, small_model, state_of
from torch import Tensor

import driftgate
from driftgate import UNKNOWN, DriftgateError
from driftgate.memory import StreamingGMM
from driftgate.methods.gmm import GMM
from driftgate.methods.third_opinion import TEMPERATURE, ThirdOpinion
from driftgate.models.source_model import ModelOutput
from driftgate.novelty.gate import LevelGate, TrackingGate

OFF = {"second_opinion": 0.0, "neighbor_opinion": 0.0, "third_opinion": 0.0}


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(**settings: Any) -> GMM:
    method = driftgate.create("gmm", small_model(), **settings)
    assert isinstance(method, GMM)
    return method


def filled_mixture() -> StreamingGMM:
    mixture = StreamingGMM(NUM_CLASSES, 4)
    mixture.update(noise(60, 4, seed=1) + 3.0, noise(60, NUM_CLASSES, seed=2).mul(3.0).softmax(dim=1))
    return mixture


def test_the_answer_is_the_product_with_the_tempered_cosines() -> None:
    mixture, logits, reduced = filled_mixture(), noise(9, NUM_CLASSES), noise(9, 4, seed=5) + 3.0
    third = ThirdOpinion(mixture, 0.5)
    odds = [[math.exp(cosine / TEMPERATURE) for cosine in row] for row in third.directions(reduced).tolist()]
    for own, row, found in zip(logits.softmax(dim=1), odds, third(logits, reduced).exp(), strict=True):
        powers = [float(p) * (q / sum(row)) ** 0.5 for p, q in zip(own, row, strict=True)]
        assert found.tolist() == pytest.approx([value / sum(powers) for value in powers], rel=1e-5)
    # Logits of fewer digits are not rounded again.
    rough, exact = third(logits.bfloat16(), reduced), third(logits.bfloat16().float(), reduced)
    assert rough.dtype == torch.float32 and torch.equal(rough, exact)


def test_an_empty_mixture_and_one_class_say_nothing() -> None:
    logits = noise(5, NUM_CLASSES)
    found = ThirdOpinion(StreamingGMM(NUM_CLASSES, 4), 1.0)(logits, noise(5, 4))
    assert torch.allclose(found, logits.log_softmax(dim=1), atol=1e-6)
    single = StreamingGMM(1, 4)
    single.update(noise(8, 4), torch.ones(8, 1))
    assert torch.equal(ThirdOpinion(single, 1.0)(noise(5, 1), noise(5, 4)), torch.zeros(5, 1))


def test_logits_beyond_numbers_stay_finite() -> None:
    logits = torch.zeros(4, NUM_CLASSES)
    logits[:, 0], logits[:, 1] = 1e30, -1e30
    assert bool(ThirdOpinion(filled_mixture(), 1.0)(logits, noise(4, 4)).isfinite().all())


# In the method


@pytest.mark.parametrize(
    ("pretrained", "settings", "share", "weight", "gate"),
    [
        (True, {}, 0.3, 1.0, LevelGate),
        (False, {}, 0.0, 0.0, TrackingGate),
        (True, {"adapt_layers": "all"}, 0.0, 0.0, TrackingGate),
        (True, {"adapt_layers": "all", "third_opinion": 0.5, "neighbor_opinion": 0.1}, 0.1, 0.5, TrackingGate),
        (True, {"novelty": "likelihood_entropy"}, 0.3, 1.0, TrackingGate),
        (True, {"novelty": "prediction_entropy"}, 0.3, 1.0, LevelGate),
        (True, {"third_opinion": 0.0}, 0.3, 0.0, TrackingGate),
        (True, {"gate": "tracking"}, 0.3, 1.0, TrackingGate),
        (True, {"third_opinion": 0.0, "gate": "level"}, 0.3, 0.0, LevelGate),
        (True, {"effort": "frozen"}, 0.3, 1.0, LevelGate),
        (True, {"effort": "light"}, 0.3, 1.0, LevelGate),
    ],
)
def test_a_pretrained_network_whose_classifier_stays_has_them(
    pretrained: bool, settings: dict[str, Any], share: float, weight: float, gate: type
) -> None:
    model = small_model()
    model.spec = model.spec.model_copy(update={"pretrained": pretrained})
    method = driftgate.create("gmm", model, **settings)
    assert isinstance(method, GMM)
    assert (method.neighbor_share, method.third_weight) == (share, weight)
    assert type(method.gate) is gate


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_presets_and_gmm_comet_have_none(preset: str) -> None:
    method = make(preset=preset)
    assert (method.neighbor_share, method.third_weight) == (0.0, 0.0)
    for setting in ("neighbor_opinion", "third_opinion"):
        with pytest.raises(DriftgateError, match=setting):
            driftgate.create("gmm-comet", small_model(), **{setting: 0.3})


@pytest.mark.parametrize(("setting", "wrong"), [("neighbor_opinion", 1.5), ("third_opinion", -1.0)])
def test_shares_out_of_range_are_refused(setting: str, wrong: float) -> None:
    for value in (wrong, float("nan")):
        with pytest.raises(DriftgateError, match=setting):
            make(**{setting: value})


def test_they_remember_nothing() -> None:
    with_level, without = make(second_opinion=0.0), make(**OFF)
    assert state_of(with_level).keys() == state_of(without).keys()
    assert with_level.num_bytes == without.num_bytes


def test_the_mixture_takes_in_what_it_had_no_say_in() -> None:
    """Or it would confirm itself."""
    asked, silent = make(third_opinion=5.0), make(third_opinion=0.0, gate="level")
    for method in (asked, silent):
        method.step(images_of(40, 0))
    assert torch.equal(asked.mixture.means, silent.mixture.means)
    assert torch.equal(asked.mixture.weights, silent.mixture.weights)


def test_few_samples_hear_the_mixture_but_no_neighbours() -> None:
    method = make(second_opinion=0.0)
    for seed in range(3):
        method.step(images_of(40, seed))
    few = images_of(6, 9)
    with torch.no_grad():
        output = method.model(method.model.prepare(few))
        expected = ThirdOpinion(method.mixture, 1.0)(output.logits, method.reducer(output.features))
    found = method.predict(few)
    assert torch.allclose(found.scores, expected.exp(), atol=1e-5)
    assert torch.allclose(method.predict(few[:1]).scores, found.scores[:1], atol=1e-5)
    assert found.thresholds.prediction == 0.5


def test_the_exported_network_answers_as_few_samples_are_answered() -> None:
    method = make()
    for seed in range(3):
        method.step(images_of(40, seed))
    frozen, few = method.frozen(), images_of(8, 9)
    labels, scores, novelty = frozen(method.model.prepare(few))
    expected = method.predict(few)
    assert torch.equal(labels, expected.labels) and frozen.threshold == 0.5
    assert torch.allclose(scores, expected.scores, atol=1e-5)
    assert torch.allclose(novelty, expected.novelty, atol=1e-4)
    assert "second opinion" in frozen.approximation and "neighbours" in frozen.approximation


def test_a_level_rejects_nobody_or_all_where_quantiles_reject_their_share() -> None:
    rejected = {}
    for name, logits in (("sure", 30.0 * torch.eye(NUM_CLASSES)), ("in doubt", torch.zeros(NUM_CLASSES, NUM_CLASSES))):
        for gate in ("level", "tracking"):
            method = make(**OFF, gate=gate, certain_below=0.0)
            output = ModelOutput(noise(40, 16), logits.repeat(8, 1) + 0.01 * noise(40, NUM_CLASSES))
            prediction = method._assess(output, method.reducer(output.features)).prediction
            rejected[name, gate] = float((prediction.labels == UNKNOWN).double().mean())
    assert rejected["sure", "level"] == 0.0 and rejected["in doubt", "level"] == 1.0
    assert 0.3 < rejected["sure", "tracking"] < 0.7 and 0.3 < rejected["in doubt", "tracking"] < 0.7
