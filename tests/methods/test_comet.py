"""COMET in both variants: a step by hand, its edges, and that it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import NUM_CLASSES, images_of, small_model, state_of
from synthetic import score, source_model, target_batches
from torch import Tensor
from torch.nn import functional as F

import driftgate
from driftgate import UNKNOWN, UNLABELED, DivergedError, DriftgateError
from driftgate.memory import RunningPrototypes
from driftgate.methods.comet import COMET, COMETF, COMETP

VARIANTS = ["comet-p", "comet-f"]
OPEN = {"tau_known": 0.991, "tau_unknown": 0.9935, "threshold": 0.9923}
"""Thresholds that split the predictions of the untrained small model into known, unknown and neither."""


def make(name: str, **settings: object) -> COMET:
    method = driftgate.create(name, small_model(), **settings)
    assert isinstance(method, COMET)
    return method


def normalised_entropy(logits: Tensor) -> list[float]:
    """Row by row in float64, the plainest way."""
    rows = []
    for row in logits.detach().double().numpy():
        shares = np.exp(row - row.max())
        shares /= shares.sum()
        rows.append(float(-(shares * np.log(shares)).sum() / math.log(len(row))))
    return rows


@pytest.mark.parametrize("name", VARIANTS)
def test_labels_and_predictions_by_hand(name: str) -> None:
    """Student and teacher differ: the one predicts, the other labels."""
    method = make(name, **OPEN)
    with torch.no_grad():
        for parameter in method.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    images = images_of(40, 0)
    with torch.no_grad():
        student, teacher = method.model(images).logits, small_model()(images).logits
    expected_labels = [
        int(row.argmax()) if value <= OPEN["threshold"] else UNKNOWN
        for row, value in zip(student, normalised_entropy(student), strict=True)
    ]
    expected_pseudo = []
    for row, value in zip(teacher, normalised_entropy(teacher), strict=True):
        known, unknown = value <= OPEN["tau_known"], value >= OPEN["tau_unknown"]
        expected_pseudo.append(int(row.argmax()) if known else UNKNOWN if unknown else UNLABELED)
    assert len(set(expected_pseudo) & {UNKNOWN, UNLABELED}) == 2 and max(expected_pseudo) >= 0
    prediction = method.predict(images)
    assert prediction.labels.tolist() == expected_labels
    assert prediction.pseudo_labels.tolist() == expected_pseudo
    assert torch.allclose(prediction.scores, student.softmax(dim=1))
    assert prediction.novelty.tolist() == pytest.approx(normalised_entropy(student), abs=1e-6)
    assert prediction.thresholds == (OPEN["tau_known"], OPEN["tau_unknown"], OPEN["threshold"])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_is_one_step_of_sgd_on_the_loss_by_hand(name: str) -> None:
    images = images_of(24, 1)
    settings = {**OPEN, "lr": 0.1, "momentum": 0.0, "entropy_weight": 0.3, "teacher_momentum": 0.9, "seed": 4}
    method, twin, model = make(name, **settings), make(name, **settings), small_model()
    labels = method.predict(images).pseudo_labels
    known, unknown = labels >= 0, labels == UNKNOWN
    assert known.any() and unknown.any()
    output, view = model(images), model(twin.views.weak(images, twin.generator))
    if name == "comet-p":
        assert model.statistics is not None
        prototypes = model.statistics.prototypes
    else:
        prototypes = torch.zeros(NUM_CLASSES, 16)
        for label in set(labels[known].tolist()):
            prototypes[label] = output.features[labels == label].detach().mean(dim=0)
    # Anchor by anchor, with torch for nothing but the gradient.
    projected, augmented = twin.projector(output.features), twin.projector(view.features)
    centers = twin.projector(prototypes)
    own = labels[known]
    views = F.normalize(torch.cat([centers[own], projected[known], augmented[known]]), dim=1)
    outside = F.normalize(torch.cat([projected[unknown], augmented[unknown]]), dim=1)
    terms = []
    names = own.repeat(3).tolist()
    for i in range(len(views)):
        others = torch.stack([views[j] for j in range(len(views)) if j != i])
        total = (torch.cat([others, outside]) @ views[i] / 0.1).logsumexp(dim=0)
        same = [views[j] @ views[i] / 0.1 - total for j in range(len(views)) if j != i and names[j] == names[i]]
        terms.append(-torch.stack(same).mean())
    contrastive = torch.stack(terms).mean()
    probabilities = output.logits.softmax(dim=1)
    doubt = -(probabilities * probabilities.log()).sum(dim=1) / math.log(NUM_CLASSES)
    (contrastive + 0.3 * (doubt[known].mean() - doubt[unknown].mean())).backward()

    method.step(images)
    source = dict(small_model().named_parameters())
    for path, parameter in model.named_parameters():
        # The contrastive loss says nothing to the classifier, the entropy loss to every layer.
        assert parameter.grad is not None
        rate = 0.01 if path.startswith("backbone") else 0.1
        expected = parameter - rate * parameter.grad
        assert torch.allclose(method.model.get_parameter(path), expected, atol=1e-6), path
        follows = 0.9 * source[path] + 0.1 * expected
        assert torch.allclose(method.teacher.tensors[path], follows, atol=1e-6), path
    for mine, reference in zip(method.projector.parameters(), twin.projector.parameters(), strict=True):
        assert reference.grad is not None
        assert torch.allclose(mine, reference - 0.1 * reference.grad, atol=1e-6)
    for path, buffer in small_model().named_buffers():
        assert torch.equal(method.model.get_buffer(path), buffer)  # eval mode: the source's statistics stay


def test_the_stream_s_prototypes_are_means_of_all_labelled_samples() -> None:
    method = make("comet-f", **OPEN, lr=1e-12)
    sums, counts = np.zeros((NUM_CLASSES, 16)), np.zeros(NUM_CLASSES)
    for seed in range(4):
        images = images_of(24, seed)
        with torch.no_grad():
            features = method.model(images).features.double().numpy()
        for row, label in zip(features, method.step(images).pseudo_labels.tolist(), strict=True):
            if label >= 0:
                sums[label] += row
                counts[label] += 1
    seen = counts > 0
    assert seen.any() and counts.max() > 1
    found = method.prototypes.means.numpy()
    assert np.allclose(found[seen], sums[seen] / counts[seen, None], atol=1e-5)
    assert (found[~seen] == 0).all()


def test_the_source_s_prototypes_never_move() -> None:
    method = make("comet-p", **OPEN)
    assert method.model.statistics is not None
    before = method.model.statistics.prototypes.clone()
    for seed in range(3):
        method.step(images_of(16, seed))
    assert torch.equal(method.prototypes.means, before)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    ("case", "taus"),
    [
        ("nobody known", {"tau_known": 0.0, "tau_unknown": 0.0}),
        ("nobody labelled", {"tau_known": 0.0, "tau_unknown": 1.0}),
        ("nobody unknown", {"tau_known": 0.992, "tau_unknown": 1.0}),
        ("all known", {"tau_known": 1.0, "tau_unknown": 1.0}),
    ],
)
def test_empty_sets(name: str, case: str, taus: dict[str, float]) -> None:
    method = make(name, **taus, entropy_weight=1.0)
    before = [parameter.detach().clone() for parameter in method.model.parameters()]
    labels = torch.cat([method.step(images_of(12, seed)).pseudo_labels for seed in range(3)])
    same = all(torch.equal(old, new) for old, new in zip(before, method.model.parameters(), strict=True))
    assert same is (case in ("nobody known", "nobody labelled"))
    assert bool((labels == UNKNOWN).all()) is (case == "nobody known")
    assert bool((labels == UNLABELED).all()) is (case == "nobody labelled")
    assert bool((labels >= 0).all()) is (case == "all known")
    assert all(tensor.isfinite().all() for tensor in state_of(method).values() if tensor.is_floating_point())


@pytest.mark.parametrize("name", VARIANTS)
def test_it_learns_on_an_easy_stream(name: str) -> None:
    """A small model needs a larger rate than a ResNet-50; everything else as published."""
    scores = {}
    for method in (driftgate.create("source-only", source_model()), driftgate.create(name, source_model(), lr=0.03)):
        stream = target_batches(40, angle=0.9)
        scores[method.name] = score([method.step(images).labels for images, _ in stream], [true for _, true in stream])
    assert scores[name][0] > scores["source-only"][0] + 0.12
    assert scores[name][1] > scores["source-only"][1] + 0.2


def test_nothing_is_learned_where_the_teacher_is_never_sure() -> None:
    """Thresholds of 0.25 and 0.75 are fixed: once the shift leaves nobody below, COMET stays what the source was."""
    scores = []
    for name in ("source-only", "comet-f"):
        method, stream = driftgate.create(name, source_model()), target_batches(20, angle=1.2)
        scores.append(score([method.step(images).labels for images, _ in stream], [true for _, true in stream])[0])
    assert scores[1] == pytest.approx(scores[0], abs=0.02)


def test_what_they_need_and_carry() -> None:
    teacher = small_model().num_bytes
    assert make("comet-p").num_bytes == teacher + 4 * NUM_CLASSES * 16
    assert make("comet-f").num_bytes == teacher + 4 * (NUM_CLASSES * 16 + NUM_CLASSES)
    assert (COMETP.source_free, COMETF.source_free) == (False, True)
    bare = small_model()
    bare.statistics = None
    with pytest.raises(DriftgateError, match="source prototypes, which 'comet-p' needs"):
        driftgate.create("comet-p", bare)
    driftgate.create("comet-f", bare).step(images_of(4, 0))


@pytest.mark.parametrize("name", VARIANTS)
def test_presets_and_settings(name: str) -> None:
    for preset, rate, weight in (("visda", 1e-3, 0.01), ("domainnet", 1e-4, 0.1), ("office-home", 1e-4, 0.1)):
        chosen = make(name, preset=preset).settings
        assert (chosen.lr, chosen.entropy_weight, chosen.backbone_lr_scale) == (rate, weight, 0.1)
        assert (chosen.tau_known, chosen.tau_unknown, chosen.threshold) == (0.25, 0.75, 0.5)
        assert (chosen.teacher_momentum, chosen.temperature, chosen.batch_norm) == (0.999, 0.1, "running")
    released = make(name, preset="released").settings
    assert (released.unknown_pairs, make(name).settings.unknown_pairs) == ("all", "own")
    layers = [tuple(parameter.shape) for parameter in make(name).projector.parameters()]
    assert layers == [(128, 16), (128,), (128, 128), (128,)]
    with pytest.raises(DriftgateError, match="tau_known must not lie above tau_unknown"):
        make(name, tau_known=0.8)


def test_only_the_released_prototypes_of_comet_f_lose_samples() -> None:
    for preset, last_only in ((None, False), ("released", True)):
        prototypes = make("comet-f", preset=preset).prototypes
        assert isinstance(prototypes, RunningPrototypes) and prototypes.last_only is last_only
    with pytest.raises(DriftgateError, match="no setting 'prototype_samples'"):
        make("comet-p", prototype_samples="last")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_diverged_teacher_is_refused_and_changes_nothing(name: str) -> None:
    method = make(name, **OPEN)
    method.step(images_of(8, 0))
    method.teacher.tensors["bottleneck.0.weight"].fill_(math.nan)
    before = state_of(method)
    with pytest.raises(DivergedError, match="diverged after 1 steps"):
        method.step(images_of(8, 1))
    after = state_of(method)
    assert all(torch.equal(before[key], after[key]) for key in before if not key.endswith("bottleneck.0.weight"))
