"""LEAD against a slow reference, its edges, what it does well and where it fails when applied batch-wise."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from support import NUM_CLASSES, images_of, small_model
from synthetic import score, source_model, target_batches
from torch import Tensor, nn
from torch.nn import functional as F

import driftgate
from driftgate import UNKNOWN, DriftgateError, Prediction, SourceModel
from driftgate.methods.batchwise import SoftTargets
from driftgate.methods.lead import LEAD, boundary_weights, known_rank, split_space, upper_mean
from driftgate.methods.target_classes import TargetClasses
from driftgate.models.source_model import ModelOutput


def make(model: SourceModel | None = None, **settings: object) -> LEAD:
    method = driftgate.create("lead", model or small_model(), **settings)
    assert isinstance(method, LEAD)
    return method


def effective_weight(model: SourceModel) -> np.ndarray:
    """(C, D): g v / ||v||, from the parameters of the weight norm."""
    state = model.state_dict()
    length, direction = (
        state[f"classifier.parametrizations.weight.original{part}"].double().numpy() for part in (0, 1)
    )
    return length * direction / np.linalg.norm(direction, axis=1, keepdims=True)


def random_batch(count: int, seed: int, dim: int = 16) -> tuple[Tensor, Tensor]:
    """Unit features and probabilities."""
    generator = torch.Generator().manual_seed(seed)
    features = F.normalize(torch.randn(count, dim, generator=generator), dim=1)
    return features, (2 * torch.randn(count, NUM_CLASSES, generator=generator)).softmax(dim=1)


def residual(weight: np.ndarray, sample: np.ndarray) -> float:
    """Length of what least squares cannot explain of the sample by the rows of the weight."""
    coefficients, *_ = np.linalg.lstsq(weight.T, sample, rcond=None)
    return float(np.linalg.norm(sample - weight.T @ coefficients))


def plain_labels(weight: np.ndarray, features: Tensor, probabilities: Tensor, classes: int) -> tuple[list[int], list]:
    """Steps 3 to 5, sample by sample."""
    z, p = features.double().numpy(), probabilities.double().numpy()
    b = [residual(weight, row) for row in z]
    upper = max(GaussianMixture(2, random_state=0).fit(np.array(b)[:, None]).means_[:, 0])
    count = max(len(z) // classes, 1)
    labels, weights = [], []
    surest = [sorted(range(len(z)), key=lambda i: -p[i, c])[:count] for c in range(len(weight))]
    for i in range(len(z)):
        scores, boundaries = [], []
        for c in range(len(weight)):
            prototype = np.mean([z[j] for j in surest[c]], axis=0)
            to_target = max(float(z[i] @ prototype) / np.linalg.norm(prototype), 0.0)
            to_source = max(float(z[i] @ weight[c]) / np.linalg.norm(weight[c]), 0.0)
            scores.append(math.sqrt((1 - math.exp(-to_target)) * math.exp(to_source - 1)))
            typical = float(np.mean([b[j] for j in surest[c]]))
            boundaries.append(typical + scores[-1] * max(upper - typical, 0.0))
        best = int(np.argmax(scores))
        labels.append(UNKNOWN if b[i] >= boundaries[best] else best)
        weights.append(1 - (1 + (b[i] - boundaries[best]) ** 2 / 1e-4) ** (-(1e-4 + 1) / 2))
    return labels, weights


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
@pytest.mark.parametrize(("count", "seed"), [(64, 0), (64, 1), (9, 2), (2, 3)])
def test_pseudo_labels_follow_the_reference(ratio: float, count: int, seed: int) -> None:
    method = make()
    features, probabilities = random_batch(count, seed)
    guess = TargetClasses(ratio, 0.5)
    labels, weights = method._pseudo_label(features, probabilities, guess)
    expected, expected_weights = plain_labels(
        effective_weight(method.model), features, probabilities, max(int(NUM_CLASSES * ratio), 2)
    )
    assert labels.tolist() == expected
    assert weights is not None
    assert np.allclose(weights.numpy(), expected_weights, atol=2e-3)
    if count == 64:
        assert UNKNOWN in expected and max(expected) >= 0


def lesson_of(labels: Tensor, weights: Tensor, neighbor_targets: Tensor) -> SoftTargets:
    """What the loss looks at; it needs no features, and of the neighbours only what they say."""
    size = len(labels)
    bank = torch.zeros(size, 16), torch.zeros(size, NUM_CLASSES)
    return SoftTargets(labels, weights, *bank, torch.zeros(size, 0).long(), neighbor_targets, TargetClasses())


def test_loss_follows_the_reference() -> None:
    method = make(pseudo_label_weight=1.3, neighbor_weight=0.7, subspace_weight=0.4)
    generator = torch.Generator().manual_seed(0)
    features, logits = torch.randn(6, 16, generator=generator), torch.randn(6, NUM_CLASSES, generator=generator)
    labels, weights = torch.tensor([0, UNKNOWN, 3, 3, UNKNOWN, 1]), torch.rand(6, generator=generator)
    neighbors = torch.rand(6, NUM_CLASSES, generator=generator).softmax(dim=1)
    lesson = lesson_of(labels, weights, neighbors)
    weight, total = effective_weight(method.model), 0.0
    for i in range(6):
        p = [math.exp(float(v)) for v in logits[i]]
        p = [v / sum(p) for v in p]
        unknown = int(labels[i]) == UNKNOWN
        q = [1 / NUM_CLASSES] * NUM_CLASSES if unknown else [float(c == int(labels[i])) for c in range(NUM_CLASSES)]
        z = features[i].double().numpy() / np.linalg.norm(features[i].double().numpy())
        b = residual(weight, z)
        a = math.sqrt(1 - b**2)
        side = math.exp(b if unknown else a) / (math.exp(a) + math.exp(b))
        pseudo = -sum(target * math.log(v + 1e-5) for target, v in zip(q, p, strict=True))
        agreement = -sum(float(n) * math.log(v + 1e-5) for n, v in zip(neighbors[i], p, strict=True))
        total += float(weights[i]) * (1.3 * pseudo - 0.4 * math.log(side + 1e-5)) + 0.7 * agreement
    found = sum(method.terms(ModelOutput(features, logits), lesson).values())
    assert float(found) == pytest.approx(total / 6, rel=1e-4)


def test_subspace_loss_turns_features_towards_their_side() -> None:
    """With the other terms off, a step of gradient shortens b of known and lengthens b of unknown samples."""
    method = make(pseudo_label_weight=0.0, neighbor_weight=0.0)
    features, _ = random_batch(8, 0)
    labels = torch.tensor([0, 1, 2, 3, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN])
    lesson = lesson_of(labels, torch.ones(8), torch.zeros(8, NUM_CLASSES))
    features.requires_grad_()
    sum(method.terms(ModelOutput(features, torch.zeros(8, NUM_CLASSES)), lesson).values()).backward()
    assert features.grad is not None
    before = method._subspaces().lengths(features.detach())[:, 1]
    after = method._subspaces().lengths(features.detach() - 0.5 * features.grad)[:, 1]
    assert (after[:4] < before[:4]).all() and (after[4:] > before[4:]).all()


@pytest.mark.parametrize(
    ("num_classes", "dim"), [(5, 16), (1, 4), (15, 16), (16, 16), (40, 16), (3, 2), (2, 1), (1, 1)]
)
def test_subspaces_share_the_space(num_classes: int, dim: int) -> None:
    weight = torch.randn(num_classes, dim, generator=torch.Generator().manual_seed(0))
    known, unknown = split_space(weight)
    assert known.shape[1] + unknown.shape[1] == dim and known.shape[1] == known_rank(num_classes, dim)
    assert torch.allclose(known.T @ unknown, torch.zeros(known.shape[1], unknown.shape[1]), atol=1e-6)
    if num_classes < dim:
        assert torch.allclose(weight @ unknown, torch.zeros(num_classes, dim - num_classes), atol=1e-5)


def test_no_more_directions_than_classes_is_said_once_and_works(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        method = make(small_model(num_classes=20))
        for seed in range(3):
            prediction = method.step(images_of(24, seed))
    told = [record for record in caplog.records if "more feature dimensions than classes" in record.message]
    assert len(told) == 1 and "16 and 20" in told[0].message and "its 8 strongest" in told[0].message
    assert (prediction.pseudo_labels == UNKNOWN).any() and (prediction.pseudo_labels >= 0).any()
    caplog.clear()
    make()
    assert not caplog.records


@pytest.mark.parametrize("linear", [True, False])
def test_needs_a_linear_classifier(linear: bool) -> None:
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 12))
    classifier = nn.Linear(12, 4) if linear else nn.Sequential(nn.Linear(12, 4), nn.Tanh())
    model = SourceModel(backbone, classifier, class_names=list("abcd"), input_size=(8, 8))
    if linear:
        assert len(make(model).step(images_of(8, 0))) == 8
        return
    with pytest.raises(DriftgateError, match=r"Expected a linear classifier.*got Sequential; pass an nn\.Linear"):
        make(model)


def test_split_follows_the_classifier_that_is_there() -> None:
    """Kept between steps, made again after other weights were loaded; never part of the state."""
    method = make()
    first = method._subspaces()
    assert method._subspaces() is first
    method.step(images_of(8, 0))
    assert method._subspaces() is first  # the classifier is frozen
    method.model.load_state_dict(small_model(seed=1).state_dict())
    assert not torch.equal(method._subspaces().known, first.known)
    assert torch.equal(method._subspaces().known, make(small_model(seed=1))._subspaces().known)
    assert method._numbers().keys() == {"target_classes"} and method.num_bytes == 16


def test_boundary_weights() -> None:
    weights = boundary_weights(torch.tensor([0.0, 0.01, -0.01, 1.0]), 1e-4)
    assert weights[0] == 0 and torch.allclose(weights[1], weights[2])
    assert float(weights[1]) == pytest.approx(1 - 1 / math.sqrt(2), abs=1e-3)
    assert float(weights[3]) == pytest.approx(1 - 1 / math.sqrt(1 + 1e4), abs=1e-3)


@pytest.mark.parametrize("values", [[0.4], [0.4, 0.4, 0.4], [0.4, 0.4 + 1e-7]])
def test_upper_mean_without_two_groups(values: list[float]) -> None:
    assert upper_mean(torch.tensor(values)) == pytest.approx(0.4, abs=1e-5)


def test_upper_mean_of_two_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    low, high = 0.2 + 0.02 * torch.randn(40, generator=generator), 0.8 + 0.02 * torch.randn(20, generator=generator)
    assert upper_mean(torch.cat([high, low])) == pytest.approx(float(high.mean()), abs=1e-3)


def test_a_mixture_that_cannot_be_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("ill-defined empirical covariance")

    monkeypatch.setattr(GaussianMixture, "fit", fail)
    assert upper_mean(torch.tensor([0.2, 0.6])) == pytest.approx(0.4)


def run(name: str, angle: float, unknown: float, **settings: object) -> tuple[list[Prediction], list[Tensor]]:
    method = driftgate.create(name, source_model(), threshold=0.55, **settings)
    stream = target_batches(40, angle=angle, unknown=unknown)
    return [method.step(images) for images, _ in stream], [labels for _, labels in stream]


def scored(predictions: list[Prediction], targets: list[Tensor]) -> tuple[float, float, float]:
    return score([prediction.labels for prediction in predictions], targets)


def share_unknown(labels: list[Tensor]) -> float:
    return float((torch.cat(labels) == UNKNOWN).float().mean())


def test_at_the_published_rate_batch_norm_does_the_work() -> None:
    """It beats the source model clearly, and so it does without learning: the statistics that follow are the gain."""
    source, still, published = (
        scored(*run(name, 0.9, 0.3, **settings))[0]
        for name, settings in (("source-only", {}), ("lead", {"lr": 1e-12}), ("lead", {}))
    )
    assert published > source + 0.1
    assert published == pytest.approx(still, abs=0.02)


def test_batchwise_it_finds_unknown_samples_where_there_are_none() -> None:
    """The failure the paper reports: with a batch as the whole target, some samples always count as unknown.

    No sample of this stream is. At a rate high enough to learn within 40 batches, it rejects ever more of them.
    """
    predictions, targets = run("lead", 0.5, 0.0, lr=0.01)
    assert share_unknown([prediction.pseudo_labels for prediction in predictions]) > 0.15
    labels = [prediction.labels for prediction in predictions]
    assert share_unknown(labels[:5]) < 0.05
    assert share_unknown(labels[-5:]) > 0.1
    assert scored(predictions[-5:], targets[-5:])[1] < scored(predictions[:5], targets[:5])[1] - 0.1


def test_presets_and_defaults() -> None:
    for preset, expected in {"visda": (1e-4, 1.0), "domainnet": (1e-4, 2.0), "office-home": (1e-3, 2.0)}.items():
        chosen = make(preset=preset).settings
        assert (chosen.lr, chosen.pseudo_label_weight) == expected
    chosen = make().settings
    assert (chosen.neighbors, chosen.threshold, chosen.subspace_weight, chosen.neighbor_weight) == (4, 0.55, 1.0, 1.0)
    assert chosen.class_ratios == (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)
    assert (chosen.weight_decay, chosen.adapt_layers, chosen.backbone_lr_scale) == (1e-3, "features", 0.1)
