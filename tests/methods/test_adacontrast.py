"""AdaContrast: a step by hand, the order of its parts, its edges, and that it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import images_of, small_model, state_of
from synthetic import score, source_model, target_batches
from torch import Tensor
from torch.nn import functional as F

import driftgate
from driftgate import UNKNOWN, DivergedError
from driftgate.methods.adacontrast import AdaContrast, refine_labels
from driftgate.models.normalization import batch_statistics
from driftgate.models.source_model import SourceModel


def make(model: SourceModel | None = None, **settings: object) -> AdaContrast:
    method = driftgate.create("adacontrast", model or small_model(), **settings)
    assert isinstance(method, AdaContrast)
    return method


def test_neighbours_vote_as_loops_say() -> None:
    rng = np.random.default_rng(0)
    features, bank, probabilities = rng.normal(size=(9, 6)), rng.normal(size=(30, 6)), rng.dirichlet(np.ones(4), 30)
    expected = []
    for feature in features:
        cosines = [feature @ row / (np.linalg.norm(feature) * np.linalg.norm(row)) for row in bank]
        nearest = sorted(range(30), key=lambda index: -cosines[index])[:10]
        expected.append(int(np.argmax(sum(probabilities[index] for index in nearest))))
    found = refine_labels(*(torch.from_numpy(part) for part in (features, bank, probabilities)), 10)
    assert found.tolist() == expected


def loss_by_hand(
    features: Tensor, logits: Tensor, keys: Tensor, labels: list[int], past: Tensor, past_labels: list[int]
) -> Tensor:
    """Cross-entropy + InfoNCE - entropy of the mean, a sample at a time."""
    terms, mean = [], torch.zeros(logits.shape[1], dtype=logits.dtype)
    for index, label in enumerate(labels):
        probabilities = logits[index].softmax(dim=0)
        mean = mean + probabilities / len(labels)
        anchor = features[index] / features[index].norm()
        positive = (anchor @ keys[index] / 0.07).exp()
        negatives = [
            (anchor @ key / 0.07).exp() for key, other in zip(past, past_labels, strict=True) if other != label
        ]
        total = positive + sum(negatives, torch.zeros((), dtype=logits.dtype))
        terms.append(-probabilities[label].log() - (positive / total).log())
    return torch.stack(terms).mean() + (mean * mean.log()).sum()


def test_second_step_by_hand() -> None:
    """All of the second step: refined labels, both views, loss, weights, queues and the momentum encoder."""
    settings = {
        "refine_after": 10,
        "lr": 0.01,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "neighbors": 3,
        "teacher_momentum": 0.25,
    }
    method = make(**settings)
    method.step(images_of(12, 0))
    before = state_of(method)
    student, teacher = small_model(), small_model()
    for network, prefix in ((student, "model."), (teacher, "teacher.weights.")):
        found = {name.removeprefix(prefix): value for name, value in before.items() if name.startswith(prefix)}
        network.load_state_dict(student.state_dict() | found)
    bank, bank_probabilities = before["bank.features"][:12], before["bank.probabilities"][:12]
    past, past_labels = before["keys.features"][:12], before["keys.labels"][:12].int().tolist()

    images = images_of(12, 1)
    generator = torch.Generator()
    generator.set_state(before["rng"])
    query_view, key_view = (method.views.strong(images, generator) for _ in range(2))
    with torch.no_grad(), batch_statistics(student, 12):
        plain = student(images)
    similarity = F.cosine_similarity(plain.features[:, None], bank[None], dim=2)
    labels = bank_probabilities[similarity.topk(3, dim=1).indices].mean(dim=1).argmax(dim=1)
    with batch_statistics(student, 12):
        query = student(query_view)
    with torch.no_grad(), batch_statistics(teacher, 12):
        keys = F.normalize(teacher(key_view).features, dim=1)
        slow = teacher(images)
    loss_by_hand(query.features, query.logits, keys, labels.tolist(), past, past_labels).backward()
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            assert parameter.grad is not None, name
            parameter.sub_((0.001 if name.startswith("backbone") else 0.01) * parameter.grad)
        logits = student(images).logits.double()

    prediction = method.step(images)
    assert torch.equal(prediction.pseudo_labels, labels)
    novelty = -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1) / math.log(5)
    assert torch.allclose(prediction.novelty, novelty, atol=1e-5)
    assert torch.equal(prediction.labels, torch.where(novelty > 0.5, UNKNOWN, logits.argmax(dim=1)))
    for name, expected in student.state_dict().items():
        assert torch.allclose(method.model.state_dict()[name], expected, atol=1e-6), name
    assert torch.allclose(method.bank["features"][12:], slow.features, atol=1e-5)
    assert torch.allclose(method.bank["probabilities"][12:], slow.logits.softmax(dim=1), atol=1e-6)
    assert torch.allclose(method.keys["features"][12:], keys, atol=1e-6)
    assert torch.equal(method.keys["labels"][12:], labels.float())
    for name, parameter in teacher.named_parameters():
        expected = 0.25 * parameter + 0.75 * dict(student.named_parameters())[name]
        assert torch.allclose(method.teacher.tensors[name], expected, atol=1e-6), name
    for name, buffer in teacher.named_buffers():
        if name in method.teacher.tensors:
            assert torch.allclose(method.teacher.tensors[name].float(), buffer.float(), atol=1e-6), name


def test_no_refinement_before_enough_samples_were_seen() -> None:
    method = make(refine_after=20, predict_after_update=False, neighbors=1)
    method.step(images_of(12, 0))
    early = method.predict(images_of(12, 1))
    assert torch.equal(early.pseudo_labels, early.scores.argmax(dim=1))
    method.step(images_of(12, 1))
    # A bank of one opinion: every neighbour says class 3, whatever the network says.
    method.bank.columns["probabilities"][:] = F.one_hot(torch.tensor(3), 5)
    late = method.predict(images_of(12, 2))
    assert (late.pseudo_labels == 3).all()
    assert not (late.scores.argmax(dim=1) == 3).all()


def test_prediction_after_the_step_differs_from_the_one_before() -> None:
    after, before = make(lr=0.1), make(lr=0.1, predict_after_update=False)
    images = images_of(16, 0)
    answers = [method.step(images) for method in (after, before)]
    assert torch.equal(answers[0].pseudo_labels, answers[1].pseudo_labels)
    assert not torch.allclose(answers[0].scores, answers[1].scores, atol=1e-3)
    one, two = state_of(after), state_of(before)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_queues_hold_the_newest_and_never_grow() -> None:
    method = make(queue_size=10)
    size = method.num_bytes
    for seed in range(3):
        method.step(images_of(4, seed))
    assert len(method.bank) == len(method.keys) == 10 and int(method.bank.pushed) == 12
    method.step(images_of(25, 9))  # more than fit
    assert method.num_bytes == size
    weights = sum(tensor.numel() * tensor.element_size() for tensor in method.teacher.tensors.values())
    assert size == 4 * 10 * (16 + 5) + 4 * 10 * (16 + 1) + 2 * 8 + weights


def test_a_step_that_fails_changes_no_memory() -> None:
    method = make()
    method.step(images_of(8, 0))
    with torch.no_grad():
        method.model.bottleneck[0].weight.fill_(math.nan)
    before = state_of(method)
    with pytest.raises(DivergedError, match="diverged after 1 steps"):
        method.step(images_of(8, 1))
    after = state_of(method)
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)


def test_a_teacher_that_fails_leaves_its_statistics() -> None:
    method = make()
    method.step(images_of(8, 0))
    method.teacher.tensors["bottleneck.0.weight"].fill_(math.inf)
    before = state_of(method)
    with pytest.raises(DivergedError):
        method.step(images_of(8, 1))
    after = state_of(method)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


def test_running_statistics_on_request() -> None:
    method = make(batch_norm="running")
    before = {name: buffer.clone() for name, buffer in method.model.named_buffers()}
    for seed in range(3):
        method.step(images_of(8, seed))
    assert all(torch.equal(before[name], buffer) for name, buffer in method.model.named_buffers())
    assert all(
        torch.equal(before[name], method.teacher.tensors[name]) for name in before.keys() & method.teacher.tensors
    )


def test_it_learns() -> None:
    stream = target_batches(40, angle=0.9)
    targets = [labels for _, labels in stream]

    def run(name: str, **settings: object) -> tuple[float, float]:
        method = driftgate.create(name, source_model(), **settings)
        answers = [method.step(images).labels for images, _ in stream]
        return score(answers, targets)[0], score(answers[20:], targets[20:])[0]

    whole, second_half = run("adacontrast", lr=0.01, backbone_lr_scale=1.0, refine_after=256)
    assert whole > run("source-only")[0] + 0.25
    assert second_half > run("bn-stats")[1] + 0.05


def test_defaults_and_presets_are_the_published_ones() -> None:
    for preset in (None, "visda", "domainnet", "office-home"):
        chosen = make(preset=preset).settings
        assert (chosen.lr, chosen.backbone_lr_scale, chosen.momentum) == (0.002, 0.1, 0.9)
        assert (chosen.nesterov, chosen.weight_decay) == (True, 1e-4)
        assert (chosen.queue_size, chosen.neighbors, chosen.refine_after) == (16_384, 10, 1024)
        assert (chosen.temperature, chosen.teacher_momentum, chosen.threshold) == (0.07, 0.999, 0.5)
        assert (chosen.class_weight, chosen.instance_weight, chosen.diversity_weight) == (1.0, 1.0, 1.0)
    assert not AdaContrast.universal and AdaContrast.source_free
