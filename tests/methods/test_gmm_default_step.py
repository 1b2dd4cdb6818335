"""The assembled default step of ``gmm`` against the same step by hand, over several batches.

The settings are frozen here, so that the step stays held when the defaults change, and each of them is changed once: a
step that forgets to hand one on is noticed.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from gmm_by_hand import RULES, Answer, GMMByHand
from support import NUM_CLASSES, SIZE, small_model
from torch import Tensor, nn

import driftgate
from driftgate import UNKNOWN, UNLABELED, SourceModel
from driftgate.losses import contrastive_loss
from driftgate.memory import StreamingGMM
from driftgate.methods import gmm
from driftgate.methods.gmm import GMM, GMMSettings

FROZEN: dict[str, Any] = {
    **RULES,
    "seed": 0,
    "effort": "full",
    "teach_share": 1.0,
    "backward_share": 1.0,
    "second_view": "full",
    "min_sure": 0.0,
    "answer": "classifier",
    "lr": 0.001,
    "backbone_lr_scale": 1.0,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 0.0,
    "max_grad_norm": None,
    "batch_norm": "batch",
    "memory": "fast",
    "piece_size": None,
    "reduced_dim": 64,
    "decay": 0.999,
    "covariance_floor": 1e-6,
    "covariance_shrinkage": 300.0,
    "mean_shift": False,
    "class_prior": 1.0,
    "likelihood_temperature": 1.0,
    "second_opinion": 0.0,
    "neighbor_opinion": 0.0,
    "third_opinion": 0.0,
    "novelty": "likelihood_entropy",
    "gate": "tracking",
    "veto_below": 0.2,
    "doubt_above": 0.5,
    "skip_unusual": True,
    "min_batch": 16,
    "p_reject": 0.25,
    "init_batches": 30,
    "certain_below": 0.01,
    "quantile_rule": "interpolated",
    "gate_window": 1024,
    "refit_every": 5,
    "contrastive_weight": 1.0,
    "temperature": 0.1,
    "reduction": "mean",
    "self_pairs": False,
    "mean_term": "samples",
    "kl_weight": 1.0,
    "kl_temperature": 0.1,
    "agreement_weight": 0.0,
}

CHANGED: dict[str, Any] = {
    "seed": 1,
    "teach_share": 0.5,
    "second_view": "none",
    "min_sure": 0.6,
    "answer": "both",
    "lr": 0.003,
    "backbone_lr_scale": 0.1,
    "momentum": 0.5,
    "nesterov": False,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
    "batch_norm": "running",
    "reduced_dim": 5,
    "decay": 0.9,
    "covariance_floor": 0.1,
    "covariance_shrinkage": 30.0,
    "mean_shift": True,
    "class_prior": 0.5,
    "likelihood_temperature": 4.0,
    "second_opinion": 0.25,
    "neighbor_opinion": 0.6,
    "third_opinion": 0.7,
    "novelty": "prediction_entropy",
    "gate": "level",
    "veto_below": 0.9,
    "doubt_above": 0.9,
    "p_reject": 0.5,
    "init_batches": 2,
    "certain_below": 0.0,
    "contrastive_weight": 0.3,
    "temperature": 0.2,
    "reduction": "sum",
    "self_pairs": True,
    "mean_term": "classes",
    "kl_weight": 0.3,
    "agreement_weight": 5.0,
}
"""Another value of each setting that the default step depends on."""

BESIDE: dict[str, dict[str, Any]] = {
    "reduction": {"lr": 1e-4},
    "piece_size": {"batch_norm": "running"},
    "agreement_weight": {"second_opinion": 0.25},
}
"""What goes with it: a sum has as many terms as pairs, and a step that long carries every rounding away with it; the
pieces of a batch have no statistics in common."""

UNUSED: dict[str, Any] = {
    "effort": "light",
    "backward_share": 0.5,
    "memory": "low",
    "piece_size": 5,
    "skip_unusual": False,
    "min_batch": 21,
    "quantile_rule": "released",
    "gate_window": 64,
    "refit_every": 1,
    "kl_temperature": 0.5,
}
"""Settings of memory, of rules that the default step does not follow, and of batches that this stream does not have:
they change nothing."""

SIZES, NOISE = (32, 28, 32, 21), (0.1, 0.1, 0.3, 0.5)
MIXTURE = ("weights", "means", "covariances")
Outcome = tuple[list[Answer], dict[str, Tensor]]


def network() -> SourceModel:
    """The small model, surer of its predictions than at random; smooth, for at a kink the gradient is a matter of
    the last bit, and processors round differently."""
    model = small_model()
    model.backbone[2] = nn.Softplus(beta=4)
    with torch.no_grad():
        model.get_parameter("classifier.parametrizations.weight.original0").mul_(4.0)
    return model


def stream() -> list[Tensor]:
    """Five patterns under noise that grows: at first most samples are certain, then there is doubt."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.rand(NUM_CLASSES, 3, SIZE, SIZE, generator=generator)
    batches = []
    for size, noise in zip(SIZES, NOISE, strict=True):
        chosen = torch.randint(NUM_CLASSES, (size,), generator=generator)
        batches.append((patterns[chosen] + noise * torch.randn(size, 3, SIZE, SIZE, generator=generator)).clamp(0, 1))
    return batches


def make(settings: dict[str, Any]) -> GMM:
    method = driftgate.create("gmm", network(), **settings)
    assert isinstance(method, GMM)
    return method


@cache
def frozen_by_hand() -> Outcome:
    return by_hand(FROZEN)


def by_hand(settings: dict[str, Any]) -> Outcome:
    """Every answer, and how far every parameter has moved, or what a statistic has become."""
    # A twin lends what is random: the reducer, and the draws of the second view.
    twin = make(settings)
    start = parameters_of(twin)
    reference = GMMByHand(twin.model, twin.reducer, settings)
    answers = [reference.step(images, partial(twin.views.weak, generator=twin.generator)) for images in stream()]
    moves = {name: value.detach() - start[name] for name, value in reference.parameters.items()}
    mixture = {name: torch.from_numpy(getattr(reference.mixture, name)) for name in MIXTURE}
    return answers, moves | reference.statistics | mixture


def by_method(settings: dict[str, Any]) -> Outcome:
    method = make(settings)
    start = parameters_of(method)
    predictions = [method.step(images) for images in stream()]
    answers = [
        Answer(
            prediction.labels.tolist(),
            prediction.scores.double(),
            prediction.novelty.tolist(),
            prediction.pseudo_labels.tolist(),
            tuple(prediction.thresholds),
        )
        for prediction in predictions
    ]
    moves = {name: value - start[name] for name, value in parameters_of(method).items()}
    buffers = {name: value.double() for name, value in method.model.named_buffers() if "running" in name}
    return answers, moves | buffers | {name: getattr(method.mixture, name).double() for name in MIXTURE}


def parameters_of(method: GMM) -> dict[str, Tensor]:
    named = [*method.model.named_parameters(), *method.reducer.named_parameters(prefix="reducer")]
    return {name: value.detach().double().clone() for name, value in named}


def assert_same(found: Outcome, expected: Outcome) -> None:
    for step, (one, two) in enumerate(zip(found[0], expected[0], strict=True)):
        assert one.labels == two.labels, f"labels of step {step}"
        assert one.pseudo_labels == two.pseudo_labels, f"pseudo-labels of step {step}"
        assert one.thresholds == pytest.approx(two.thresholds, rel=5e-3, abs=1e-6), f"thresholds of step {step}"
        assert one.novelty == pytest.approx(two.novelty, rel=5e-3, abs=1e-6), f"novelty of step {step}"
        assert torch.allclose(one.scores, two.scores, atol=1e-4), f"scores of step {step}"
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        # A bias before a batch norm moves by rounding alone: hence not only a relative tolerance.
        assert (found[1][name] - value).norm() <= 1e-3 * value.norm() + 2e-5, name


def test_the_step_is_the_one_by_hand() -> None:
    answers, _ = expected = frozen_by_hand()
    assert_same(by_method(FROZEN), expected)
    # The stream asks every question: all kinds of labels in each step, thresholds with and without the certain ones'.
    for answer in answers:
        assert {UNKNOWN, UNLABELED} < {*answer.pseudo_labels} and len({*answer.pseudo_labels}) > 3
        assert UNKNOWN in answer.labels and len({*answer.labels}) > 3
    assert answers[0].thresholds[1:] == (0.01, 0.01) and answers[1].thresholds[2] > 0.01


def test_every_setting_is_looked_at() -> None:
    assert FROZEN.keys() == GMMSettings.model_fields.keys()
    assert sorted([*RULES, *CHANGED, *UNUSED]) == sorted(FROZEN)


@pytest.mark.parametrize("setting", CHANGED)
def test_a_changed_setting_changes_the_step_as_it_does_by_hand(setting: str) -> None:
    unchanged = BESIDE.get(setting, {})
    changed = {**unchanged, setting: CHANGED[setting]}
    found = by_method({**FROZEN, **changed})
    assert_same(found, by_hand({**FROZEN, **changed}))
    with pytest.raises(AssertionError):
        assert_same(found, by_hand({**FROZEN, **unchanged}) if unchanged else frozen_by_hand())


@pytest.mark.parametrize("other", [{"second_view": "half"}, {"answer": "mixture"}])
def test_third_values_do_as_by_hand(other: dict[str, Any]) -> None:
    settings = {**FROZEN, **other}
    found = by_method(settings)
    assert_same(found, by_hand(settings))
    with pytest.raises(AssertionError):
        assert_same(found, by_hand({**FROZEN, **{name: CHANGED[name] for name in other}}))


def test_by_the_source_s_statistics_the_batch_s_are_the_second_opinion() -> None:
    settings = {**FROZEN, "batch_norm": "running", "second_opinion": 0.4}
    found = by_method(settings)
    assert_same(found, by_hand(settings))
    with pytest.raises(AssertionError):
        assert_same(found, by_hand({**settings, "second_opinion": 0.25}))


def test_all_opinions_and_the_level_together_do_as_by_hand() -> None:
    """As a pretrained network whose classifier stays is answered by default."""
    opinions = ("second_opinion", "neighbor_opinion", "third_opinion", "novelty", "gate")
    settings = {**FROZEN, **{name: CHANGED[name] for name in opinions}}
    found = by_method(settings)
    assert_same(found, by_hand(settings))
    for name in opinions[:3]:
        with pytest.raises(AssertionError):
            assert_same(found, by_hand({**settings, name: FROZEN[name]}))


@pytest.mark.parametrize("setting", UNUSED)
def test_a_setting_of_another_rule_changes_nothing(setting: str) -> None:
    unchanged = BESIDE.get(setting, {})
    expected = by_hand({**FROZEN, **unchanged}) if unchanged else frozen_by_hand()
    assert_same(by_method({**FROZEN, **unchanged, setting: UNUSED[setting]}), expected)


def test_a_step_that_forgets_the_class_prior_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, whole = frozen_by_hand(), StreamingGMM.evaluate_unseen
    monkeypatch.setattr(StreamingGMM, "evaluate_unseen", lambda mixture, features, **_: whole(mixture, features))
    with pytest.raises(AssertionError):
        assert_same(by_method(FROZEN), expected)


def test_a_contrastive_loss_without_the_augmented_view_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_images(views: Tensor, labels: Tensor, means: Tensor, **settings: Any) -> Tensor:
        return contrastive_loss(views[: len(views) // 2], labels[: len(labels) // 2], means, **settings)

    expected = frozen_by_hand()
    monkeypatch.setattr(gmm, "contrastive_loss", only_images)
    with pytest.raises(AssertionError):
        assert_same(by_method(FROZEN), expected)


def test_a_step_that_ignores_the_contrastive_weight_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**FROZEN, "contrastive_weight": CHANGED["contrastive_weight"]}

    def unweighted(*inputs: Tensor, **keywords: Any) -> Tensor:
        return contrastive_loss(*inputs, **keywords) / settings["contrastive_weight"]

    monkeypatch.setattr(gmm, "contrastive_loss", unweighted)
    with pytest.raises(AssertionError):
        assert_same(by_method(settings), by_hand(settings))
