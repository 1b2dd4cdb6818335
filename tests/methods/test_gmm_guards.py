"""What keeps the default of gmm from harm: layers, statistics, vetoes, unusual batches, samples that wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import NUM_CLASSES, SIZE, small_model, state_of
from torch import Tensor

import driftgate
from driftgate import UNKNOWN, UNLABELED, SourceModel
from driftgate.methods.gmm import GMM, PAPER, RELEASED
from driftgate.models.normalization import (
    batch_is_steadier,
    batch_mean_shift,
    batch_statistics,
    last_statistics,
    restate_statistics,
)
from driftgate.models.source_model import ModelOutput


def images_of(count: int, seed: int) -> Tensor:
    """Noisy copies of a pattern a class."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.rand(NUM_CLASSES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(99))
    chosen = torch.randint(NUM_CLASSES, (count,), generator=generator)
    return (patterns[chosen] + 0.2 * torch.randn(count, 3, SIZE, SIZE, generator=generator)).clamp(0, 1)


def make(model: SourceModel | None = None, **settings: Any) -> GMM:
    method = driftgate.create("gmm", model or small_model(), **settings)
    assert isinstance(method, GMM)
    return method


def with_spec(**facts: Any) -> SourceModel:
    model = small_model()
    model.spec = model.spec.model_copy(update=facts)
    return model


def weights_of(method: GMM) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in method.model.state_dict().items()}


def test_a_pretrained_network_keeps_its_head_and_moves_its_backbone_slowly() -> None:
    for pretrained in (True, False):
        method = make(with_spec(pretrained=pretrained))
        learning = {name.split(".")[0] for name, value in method.model.named_parameters() if value.requires_grad}
        assert learning == ({"backbone"} if pretrained else {"backbone", "bottleneck", "classifier"})
        rates = [group["lr"] for group in method.optimizer.param_groups]
        assert rates == [pytest.approx(1e-4 if pretrained else 1e-3), pytest.approx(1e-3)]


def test_nobody_is_taught_to_be_unknown_whom_the_classifier_as_it_came_knows() -> None:
    logits = torch.tensor([[9.0, 0.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0, 0.0]])
    labels = torch.tensor([UNKNOWN, UNKNOWN, 0])
    output = ModelOutput(torch.zeros(3, small_model().spec.feature_dim), logits)
    for settings, vetoed in (
        ({}, [True, False, False]),
        ({"veto_below": 0.0}, [True, False, False]),
        ({"doubt_above": 0.0}, [False, False, False]),
        ({"doubt_above": 0.9999}, [True, True, False]),
    ):
        method = make(with_spec(pretrained=True), **settings)
        assert method.consent.vetoed(output, labels).tolist() == vetoed


@pytest.mark.parametrize(
    ("backbone_norm", "pretrained", "by_batch"),
    [("batch", True, 1), ("running", True, 0), ("running", False, 0), (None, False, 1), (None, True, -1)],
)
def test_statistics_are_those_of_source_training(backbone_norm: str | None, pretrained: bool, by_batch: int) -> None:
    model = with_spec(backbone_norm=backbone_norm, pretrained=pretrained)
    assert int(make(model).by_batch) == by_batch
    assert int(make(model, batch_norm="running").by_batch) == 0


def test_where_nobody_knows_the_first_batch_tells_and_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in (True, False):
        method = make(with_spec(backbone_norm=None, pretrained=True))
        monkeypatch.setattr("driftgate.methods.gmm.batch_is_steadier", lambda *_, chosen=answer: chosen)
        before = weights_of(method)
        method.predict(images_of(32, 0))
        assert int(method.by_batch) == -1
        method.step(images_of(32, 0))
        assert int(method.by_batch) == int(answer)
        moved = not torch.equal(before["bottleneck.1.running_mean"], weights_of(method)["bottleneck.1.running_mean"])
        assert moved == answer
        monkeypatch.setattr("driftgate.methods.gmm.batch_is_steadier", lambda *_: pytest.fail("asked again"))
        method.step(images_of(32, 1))


def test_the_steadier_statistics_by_hand() -> None:
    model, images, view = small_model(), images_of(24, 0), images_of(24, 1)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    kept = []
    for training in (True, False):
        for layer in (model.backbone[1], model.bottleneck[1]):  # type: ignore[index]
            layer.train(training)
        with torch.no_grad():
            kept.append(float((model(images).logits.argmax(1) == model(view).logits.argmax(1)).double().mean()))
        model.load_state_dict(state)
        model.eval()
    assert batch_is_steadier(model, images, view) == (kept[0] > kept[1])
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_the_shift_of_a_batch_by_hand() -> None:
    model, images = small_model(), images_of(20, 0)
    before = last_statistics(model)
    assert before is not None
    with torch.no_grad():
        model.backbone[1].train()  # type: ignore[index]
        model.bottleneck[1].train()  # type: ignore[index]
        inputs: list[Tensor] = []
        handle = model.bottleneck[1].register_forward_pre_hook(lambda _, given: inputs.append(given[0]))  # type: ignore[index]
        model(images)
        handle.remove()
    expected = ((inputs[0].mean(dim=0) - before.mean).square() / (before.variance + 1e-5)).mean()
    torch.testing.assert_close(batch_mean_shift(model, before), expected, rtol=1e-4, atol=1e-6)


def test_the_source_classifier_vetoes_labels_it_does_not_believe() -> None:
    alone = {"neighbor_opinion": 0.0, "third_opinion": 0.0, "teach_share": 1.0}
    free, strict = (make(veto_below=below, **alone) for below in (0.0, 0.9))
    free_labels, labels = (method.step(images_of(32, 0)).pseudo_labels for method in (free, strict))
    assert (free_labels >= 0).any() and (labels >= 0).sum() < (free_labels >= 0).sum()
    changed = free_labels != labels
    assert (labels[changed] == UNLABELED).all() and (free_labels[changed] >= 0).all()
    assert torch.equal(free_labels == UNKNOWN, labels == UNKNOWN)


def test_the_veto_is_of_the_classifier_as_it_came() -> None:
    method = make(lr=0.05, adapt_layers="all")
    head = method.consent.head.clone()
    for seed in range(3):
        method.step(images_of(32, seed))
    assert torch.equal(method.consent.head, head)
    learned = method.model.classifier.weight.detach()
    assert not torch.allclose(learned, head[:, :-1])


def test_an_unusual_batch_is_predicted_and_changes_nothing_but_a_counter() -> None:
    method = make()
    for seed in range(14):
        method.step(images_of(32, seed))
    taught = int(method.calm.taught)
    assert taught >= 12
    before, memory = weights_of(method), state_of(method)
    for hostile in (torch.zeros(32, 3, SIZE, SIZE), images_of(1, 0).repeat(32, 1, 1, 1)):
        prediction = method.step(hostile)
        assert (prediction.pseudo_labels == UNLABELED).all() and len(prediction.labels) == 32
    assert all(torch.equal(value, before[name]) for name, value in weights_of(method).items())
    changed = {name for name, value in state_of(method).items() if not torch.equal(value, memory[name])}
    assert changed <= {"calm.refused", "calm.rise", "steps"} and int(method.calm.refused) == 2
    method.step(images_of(32, 50))
    assert int(method.calm.taught) == taught + 1 and int(method.calm.refused) == 0


def test_few_samples_are_answered_at_once_and_learned_from_together() -> None:
    alone = {"neighbor_opinion": 0.0, "third_opinion": 0.0}
    method, together = (make(min_batch=16, batch_norm="batch", **alone) for _ in range(2))
    images = images_of(16, 3)
    source = driftgate.create("source-only", small_model())
    before = weights_of(method)
    for start in range(0, 16, 4):
        assert int(method.calm.taught) == 0
        part = images[start : start + 4]
        assert torch.equal(method.step(part).labels, source.predict(part).labels)  # nothing learned yet
        if start < 12:
            assert len(method.waiting) == start + 4
            assert all(torch.equal(value, before[name]) for name, value in weights_of(method).items())
    assert len(method.waiting) == 0 and int(method.calm.taught) == 1
    together.step(images)
    # What the network is now makes of these samples, half and half with the statistics that followed the step.
    expected = weights_of(together)
    with batch_statistics(together.model, 16), torch.no_grad():
        for layer in (together.model.backbone[1], together.model.bottleneck[1]):  # type: ignore[index]
            layer.momentum = 1.0
        together.model(images)
    for name, value in weights_of(together).items():
        if name.endswith(("running_mean", "running_var")):
            expected[name] = (expected[name] + value) / 2
    after = weights_of(method)
    for name, value in expected.items():
        assert "tracked" in name or torch.allclose(after[name], value, rtol=1e-4, atol=1e-6), name
    assert torch.equal(method.mixture.means, together.mixture.means)
    # From now on the mixture answers.
    few, expected_logits = images_of(5, 8), method.model(images_of(5, 8)).logits
    prediction = method.predict(few)
    assert torch.equal(prediction.scores.argmax(dim=1), expected_logits.argmax(dim=1))
    assert method.gate_alone is not None  # which few samples are held against
    assert prediction.thresholds.prediction == pytest.approx(max(method.gate_alone.thresholds.prediction, 0.01))


def test_gathered_samples_that_look_like_none_before_leave_the_statistics() -> None:
    method = make(min_batch=16, batch_norm="batch")
    for seed in range(12):
        method.step(images_of(16, seed))
    before = weights_of(method)
    for _ in range(4):
        method.step(torch.zeros(4, 3, SIZE, SIZE))
    assert int(method.calm.refused) == 1 and len(method.waiting) == 0
    assert all(torch.equal(value, before[name]) for name, value in weights_of(method).items())


def test_statistics_of_a_network_that_diverged_stay() -> None:
    model = small_model().eval()
    with torch.no_grad():
        model.bottleneck[0].weight.fill_(torch.inf)  # type: ignore[index]
    before = {name: value.clone() for name, value in model.named_buffers()}
    restate_statistics(model, images_of(8, 0))
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert all(not layer.training and layer.momentum == 0.1 for layer in (model.backbone[1], model.bottleneck[1]))  # type: ignore[index]


def test_waiting_samples_survive_a_restart(tmp_path: Path) -> None:
    method = make()
    for seed in range(3):
        method.step(images_of(7, seed))
    method.save(tmp_path / "method.safetensors")
    again = driftgate.load(tmp_path / "method.safetensors", model=small_model())
    for seed in range(3, 8):
        one, two = method.step(images_of(7, seed)), again.step(images_of(7, seed))
        assert torch.equal(one.labels, two.labels) and torch.equal(one.novelty, two.novelty)


def test_the_presets_have_none_of_it() -> None:
    for preset in (PAPER, RELEASED):
        settings = driftgate.create("gmm", small_model(), **preset).settings.model_dump()
        off = {"adapt_layers": "all", "batch_norm": "batch", "veto_below": 0.0, "skip_unusual": False, "min_batch": 1}
        assert {name: settings[name] for name in off} == off
        assert settings["likelihood_temperature"] == 1.0 and settings["unknown_share"] == "auto"
