"""SHOT-O and SHOT-P: labels and one step by hand, edges, that they learn, and how SHOT-P fails."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support import NUM_CLASSES, images_of, loss_of, small_model
from synthetic import score, source_model, target_batches
from torch import Tensor
from torch.nn import functional as F

import driftgate
from driftgate import UNKNOWN
from driftgate.methods.shot import Shot, centroid_labels


def make(name: str, **settings: object) -> Shot:
    method = driftgate.create(name, small_model(), **settings)
    assert isinstance(method, Shot)
    return method


def slow_labels(features: Tensor, probabilities: Tensor, candidate_count: int) -> list[int]:
    """Two rounds of nearest centroids, sample by sample."""
    points = [torch.cat([row.double(), torch.ones(1, dtype=torch.float64)]) for row in features]
    points = [point / point.norm() for point in points]
    samples, num_classes = probabilities.shape
    predicted = [int(row.argmax()) for row in probabilities]
    candidates = [label for label in range(num_classes) if predicted.count(label) > candidate_count]
    candidates = candidates or sorted(set(predicted))
    centroids = {
        label: sum(float(probabilities[i, label]) * points[i] for i in range(samples))
        / sum(float(probabilities[i, label]) for i in range(samples))
        for label in candidates
    }
    for _ in range(2):
        labels = [
            max(centroids, key=lambda label: float(point @ centroids[label] / centroids[label].norm()))
            for point in points
        ]
        centroids = {
            label: sum(points[i] for i in range(samples) if labels[i] == label) / labels.count(label)
            for label in sorted(set(labels))
        }
    return labels


@pytest.mark.parametrize("candidate_count", [0, 3, 50])
@pytest.mark.parametrize("seed", range(3))
def test_centroid_labels_equal_the_slow_ones(seed: int, candidate_count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(30, 6, generator=generator)
    probabilities = (2 * torch.randn(30, 7, generator=generator)).softmax(dim=1)
    found = centroid_labels(features, probabilities, candidate_count)
    assert found.tolist() == slow_labels(features, probabilities, candidate_count)


def test_a_class_nobody_is_predicted_as_is_no_candidate() -> None:
    probabilities = torch.tensor([[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.1, 0.4, 0.5]])
    # The third sample lies with the first two; class 1 is nobody's first choice.
    labels = centroid_labels(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.0]]), probabilities)
    assert 1 not in labels.tolist()


def test_centroid_labels_of_none_one_and_equal_samples() -> None:
    assert centroid_labels(torch.zeros(0, 4), torch.zeros(0, 3)).tolist() == []
    assert centroid_labels(torch.ones(1, 4), torch.tensor([[0.2, 0.5, 0.3]])).tolist() == [1]
    assert len(set(centroid_labels(torch.ones(5, 4), torch.eye(3)[[0, 0, 1, 2, 2]]).tolist())) == 1
    assert centroid_labels(torch.zeros(4, 2), torch.full((4, 1), 1.0)).tolist() == [0] * 4


def normalised_entropy(probabilities: Tensor) -> Tensor:
    return -(probabilities * probabilities.log()).sum(dim=1) / math.log(probabilities.shape[1])


def expected_step(method: Shot, images: Tensor, pseudo_labels: Tensor, *, diversity: bool) -> dict[str, Tensor]:
    """Weights after one plain SGD step on SHOT's loss, written out."""
    model = small_model()
    probabilities = model(images).logits.softmax(dim=1)
    known = [row for row in range(len(images)) if int(pseudo_labels[row]) != UNKNOWN]
    loss = torch.zeros(())
    for row in known:
        own = probabilities[row]
        loss = loss - 0.3 * own[pseudo_labels[row]].log() / len(known)
        loss = loss - (own * own.log()).sum() / len(known)
    if diversity:
        marginal = probabilities.mean(dim=0)
        loss = loss + (marginal * marginal.log()).sum()
    loss.backward()
    rates = {name: method.settings.lr * (0.1 if name.startswith("backbone") else 1.0) for name in model.state_dict()}
    return {
        name: parameter.detach()
        if name.startswith("classifier")
        else parameter - rates[name] * (parameter.grad + 1e-3 * parameter)
        for name, parameter in model.named_parameters()
    }


@pytest.mark.parametrize(("name", "diversity"), [("shot-o", True), ("shot-p", False)])
def test_one_step_by_hand(name: str, diversity: bool) -> None:
    images = images_of(24, 0)
    method = make(name, batch_norm="running", momentum=0.0, lr=0.1)
    with torch.no_grad():
        output = small_model()(images)
    probabilities = output.logits.double().softmax(dim=1)
    novelty = normalised_entropy(probabilities)
    known = torch.ones(24, dtype=torch.bool)
    if name == "shot-o":
        ordered = sorted(novelty.tolist())
        costs = [
            sum((value - sum(part) / len(part)) ** 2 for part in (ordered[:cut], ordered[cut:]) for value in part)
            for cut in range(1, 24)
        ]
        known = novelty < ordered[costs.index(min(costs)) + 1] - 1e-12
        assert known.any() and not known.all()
    pseudo_labels = torch.full((24,), UNKNOWN)
    pseudo_labels[known] = torch.tensor(slow_labels(output.features[known], probabilities[known], 0))
    expected = expected_step(method, images, pseudo_labels, diversity=diversity)

    prediction = method.step(images)
    assert torch.allclose(prediction.novelty, novelty, atol=1e-6)
    assert torch.equal(prediction.pseudo_labels, pseudo_labels)
    assert torch.equal(prediction.labels, torch.where(known, output.logits.argmax(dim=1), UNKNOWN))
    for path, parameter in method.model.named_parameters():
        assert torch.allclose(parameter, expected[path], atol=1e-6), path


@pytest.mark.parametrize("name", ["shot-o", "shot-p"])
def test_the_classifier_is_frozen_and_nothing_is_remembered(name: str) -> None:
    method = make(name, lr=0.1)
    before = {path: tensor.clone() for path, tensor in method.model.state_dict().items()}
    method.step(images_of(16, 0))
    after = method.model.state_dict()
    changed = {path.split(".")[0] for path in before if not torch.equal(before[path], after[path])}
    assert changed == {"backbone", "bottleneck"}
    assert method.num_bytes == 0


def test_equal_entropies_leave_nobody_unknown() -> None:
    prediction = make("shot-o").step(images_of(1, 0).repeat(6, 1, 1, 1))
    assert (prediction.labels >= 0).all() and (prediction.pseudo_labels >= 0).all()
    assert prediction.thresholds == (math.inf, math.inf, math.inf)


def test_shot_p_rejects_nobody_unless_told() -> None:
    images = images_of(32, 0)
    assert (make("shot-p").predict(images).labels >= 0).all()
    told = make("shot-p", reject=True, threshold=0.9).predict(images)
    assert torch.equal(told.labels == UNKNOWN, told.novelty > 0.9)
    assert (told.labels == UNKNOWN).any()
    assert (told.pseudo_labels >= 0).all()


def test_shot_o_may_predict_by_a_fixed_threshold_and_still_learns_from_the_split() -> None:
    images = images_of(32, 0)
    own, fixed = make("shot-o").predict(images), make("shot-o", rejection="fixed", threshold=0.9).predict(images)
    assert torch.equal(own.pseudo_labels, fixed.pseudo_labels)
    assert torch.equal(fixed.labels == UNKNOWN, fixed.novelty > 0.9)
    assert not torch.equal(own.labels, fixed.labels)


def test_without_known_samples_nothing_is_learned() -> None:
    """Cannot come from the 2-means split, which always leaves a lower part; the loss must bear it all the same."""
    method = make("shot-o")
    prediction = replace(method.predict(images_of(4, 0)), pseudo_labels=torch.full((4,), UNKNOWN))
    assert method.loss(method.model(images_of(4, 0)), prediction) == {}


def run(name: str, *, angle: float, unknown: float, **settings: object) -> tuple[float, float, float]:
    """Scores on the second half of 60 batches."""
    method = driftgate.create(name, source_model(), **settings)
    stream = target_batches(60, angle=angle, unknown=unknown)
    labels = [method.step(images).labels for images, _ in stream]
    return score(labels[30:], [truth for _, truth in stream[30:]])


def test_shot_o_learns() -> None:
    source = run("source-only", angle=1.2, unknown=0.3)[0]
    statistics = run("shot-o", angle=1.2, unknown=0.3, lr=1e-9)[0]
    learned = run("shot-o", angle=1.2, unknown=0.3, lr=0.01)[0]
    assert learned > source + 0.3
    assert learned > statistics + 0.1  # not only batch norm and the 2-means split
    assert learned > 0.85


def test_shot_p_learns_where_classes_are_plain() -> None:
    statistics = run("shot-p", angle=1.4, unknown=0.0, lr=1e-9)[1]
    learned = run("shot-p", angle=1.4, unknown=0.0, lr=0.01)[1]
    assert learned > statistics + 0.15
    assert learned > 0.95


def test_shot_p_collapses_to_one_class_where_they_are_not() -> None:
    """The paper's finding: nothing counteracts the minimised entropy. On pictures without classes, one class is left;
    with SHOT-O's diversity term there are several."""
    left = {}
    for diversity in (False, True):
        method = make("shot-p", lr=0.1, diversity=diversity)
        for seed in range(60):
            method.step(images_of(64, seed))
        left[diversity] = torch.bincount(method.predict(images_of(256, 99)).labels, minlength=NUM_CLASSES) / 256
    assert left[False].max() > 0.95
    assert left[True].max() < 0.7


@pytest.mark.parametrize("name", ["shot-o", "shot-p"])
def test_presets(name: str) -> None:
    rates = {preset: make(name, preset=preset).settings.lr for preset in ("visda", "office-home", "domainnet")}
    assert rates == {"visda": 1e-3, "office-home": 1e-2, "domainnet": 1e-3}
    chosen = make(name, preset="office-home").settings
    assert (chosen.pseudo_label_weight, chosen.entropy_weight, chosen.candidate_count) == (0.3, 1.0, 0)
    assert (chosen.weight_decay, chosen.momentum, chosen.nesterov, chosen.backbone_lr_scale) == (1e-3, 0.9, True, 0.1)
    assert chosen.diversity is (name == "shot-o")
    assert not driftgate.available()[name].universal


def test_cross_entropy_is_on_known_samples_only() -> None:
    method = make("shot-o", entropy_weight=0.0, pseudo_label_weight=1.0)
    output = method.model(images_of(4, 0))
    loss = loss_of(method, output, torch.tensor([1, UNKNOWN, 3, UNKNOWN]))
    assert torch.allclose(loss, F.cross_entropy(output.logits[[0, 2]], torch.tensor([1, 3])))
