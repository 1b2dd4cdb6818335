"""OWTTT against a slow reference in float64, its edges, and that it learns."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import NUM_CLASSES, images_of, small_model, state_of
from synthetic import score, source_model, target_batches
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn import functional as F

import driftgate
from driftgate import UNKNOWN, UNLABELED, DriftgateError, SourceModel
from driftgate.memory import RingQueue
from driftgate.methods.owttt import OWTTT, choose_prototypes, grow_pool, surer_halves
from driftgate.models.statistics import SourceStatistics

STILL = {"lr": 1e-12, "batch_norm": "running"}
"""Settings under which features stay as they are, so that labels can be followed over many batches."""


def make(model: SourceModel | None = None, **settings: object) -> OWTTT:
    method = driftgate.create("owttt", model or small_model(), **settings)
    assert isinstance(method, OWTTT)
    return method


def plain_otsu(values: list[float], one_group: float) -> float:
    best, chosen = float("inf"), one_group
    for step in range(100):
        low = [v for v in values if v < step / 100]
        high = [v for v in values if v >= step / 100]
        if low and high:
            within = (len(low) * float(np.var(low)) + len(high) * float(np.var(high))) / len(values)
            if within < best - 1e-14:
                best, chosen = within, step / 100
    return chosen


class Reference:
    """Steps 1 to 4 and 8 as loops over samples."""

    def __init__(self, prototypes: Tensor, queue: int, pool: int) -> None:
        self.prototypes = [row / row.norm() for row in prototypes.double()]
        self.learning: deque[float] = deque(maxlen=queue)
        self.answering: deque[float] = deque(maxlen=queue)
        self.pool: deque[Tensor] = deque(maxlen=pool)

    def label(self, features: Tensor) -> tuple[list[int], list[int], float, float]:
        """Labels, pseudo-labels and both thresholds of a batch."""
        unit = [row / row.norm() for row in features.double()]
        cosines = [[float(z @ p) for p in self.prototypes] for z in unit]
        novelty = [1 - max(row) for row in cosines]
        classes = [int(np.argmax(row)) for row in cosines]
        self.learning.extend(novelty)
        threshold = plain_otsu(list(self.learning), 1.0)
        seen = [i for i, o in enumerate(novelty) if o < threshold]
        unseen = [i for i, o in enumerate(novelty) if o >= threshold]
        pseudo = [UNLABELED] * len(unit)
        if self.pool:
            both = bool(seen and unseen)
            for i in sorted(seen, key=lambda i: novelty[i])[: max(0, len(seen) // 2 - 1) if both else None]:
                pseudo[i] = classes[i]
            for i in sorted(unseen, key=lambda i: -novelty[i])[: len(unseen) // 2 if both else None]:
                pseudo[i] = UNKNOWN
        if unseen:
            distances = [1 - max([max(cosines[i]), *(float(unit[i] @ p) for p in self.pool)]) for i in unseen]
            far = plain_otsu(distances, 0.0)
            for i in sorted(unseen, key=lambda i: -novelty[i]):
                if novelty[i] <= threshold:
                    break
                if 1 - max([max(cosines[i]), *(float(unit[i] @ p) for p in self.pool)]) > far:
                    self.pool.append(unit[i])
        self.answering.extend(novelty)
        rejecting = plain_otsu(list(self.answering), 1.0)
        labels = [c if o <= rejecting else UNKNOWN for c, o in zip(classes, novelty, strict=True)]
        return labels, pseudo, threshold, rejecting


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize(("queue", "pool"), [(512, 100), (40, 6)])
def test_labels_follow_the_reference(after: bool, queue: int, pool: int) -> None:
    method = make(predict_after_update=after, queue_length=queue, pool_size=pool, **STILL)
    reference = Reference(method.source.prototypes, queue, pool)
    for seed in range(8):
        images = images_of(1 + 5 * seed, seed)
        with torch.no_grad():
            features = small_model().features(images)
        labels, pseudo, threshold, rejecting = reference.label(features)
        prediction = method.step(images)
        assert prediction.pseudo_labels.tolist() == pseudo
        assert prediction.labels.tolist() == labels
        assert prediction.thresholds == (threshold, threshold, rejecting)
        kept = sorted(method.memory.pool["feature"].double().tolist())
        assert np.allclose(kept, sorted(row.tolist() for row in reference.pool), atol=1e-5)
    assert len(reference.pool) >= min(pool, 6)


@pytest.mark.parametrize("batch_norm", ["batch", "running"])
def test_a_step_moves_the_weights_as_the_equations_say(batch_norm: str) -> None:
    """The second step (the first has no pool): cross-entropy and alignment written out, one step of plain SGD."""
    lr, images = 0.02, images_of(24, 1)
    method = make(lr=lr, momentum=0.0, batch_norm=batch_norm, alignment_weight=1.0, prototype_weight=0.2)
    method.step(images_of(24, 0))
    pool, before = method.memory.pool["feature"].clone(), method.memory.gaussian.clone()
    model = small_model()
    model.load_state_dict(method.model.state_dict())
    prediction = method.step(images)

    source = method.source
    assert source.feature_mean is not None and source.feature_covariance is not None
    features = F.normalize(model.features(images), dim=1)
    cosines = features @ F.normalize(source.prototypes, dim=1).T
    new = (features @ pool.T).amax(dim=1, keepdim=True)
    logits = torch.cat([cosines, new], dim=1) / 0.1
    known, unknown = prediction.pseudo_labels >= 0, prediction.pseudo_labels == UNKNOWN
    seen = 1 - cosines.detach().amax(dim=1).double() < prediction.thresholds.known
    assert known.sum() == seen.sum() // 2 - 1 > 0 and unknown.sum() == (~seen).sum() // 2 > 0
    seen_loss = -logits[known, :NUM_CLASSES].log_softmax(dim=1)[
        range(int(known.sum())), prediction.pseudo_labels[known]
    ]
    unseen_loss = -logits[unknown].log_softmax(dim=1)[:, NUM_CLASSES]
    (0.2 * 0.5 * (seen_loss.mean() + unseen_loss.mean())).backward()
    if batch_norm == "batch":
        for layer in (model.backbone[1], model.bottleneck[1]):  # type: ignore[index]
            layer.train()
    aligned = model.features(images[seen]).double()
    model.eval()
    share = 1 / (int(before.count) + len(aligned))
    offsets = aligned - before.mean
    delta = share * offsets.sum(dim=0)
    covariance = before.covariance + share * (offsets.T @ offsets - len(aligned) * before.covariance.double())
    bias = source.feature_covariance.max().double() / 30 * torch.eye(16)
    one = MultivariateNormal(source.feature_mean.double(), source.feature_covariance.double() + bias)
    two = MultivariateNormal(before.mean + delta, covariance - torch.outer(delta, delta) + bias)
    (0.05 * (kl_divergence(one, two) + kl_divergence(two, one))).backward()

    found = dict(method.model.named_parameters())
    moved = 0
    for name, parameter in model.named_parameters():
        if name.startswith("classifier"):
            assert torch.equal(found[name], parameter)
            continue
        assert parameter.grad is not None
        assert torch.allclose(found[name], parameter - lr * parameter.grad, atol=1e-5, rtol=1e-4), name
        moved += int(parameter.grad.abs().max() > 1e-4)
    assert moved >= 4
    for name, buffer in model.named_buffers():
        assert torch.allclose(dict(method.model.named_buffers())[name].float(), buffer.float(), atol=1e-6), name
    # The answer is that of the network after the step.
    with torch.no_grad():
        answer = F.normalize(method.model.features(images), dim=1) @ F.normalize(source.prototypes, dim=1).T
    assert torch.allclose(prediction.novelty, (1 - answer.amax(dim=1)).double(), atol=1e-6)
    assert torch.allclose(prediction.scores, (answer / 0.1).softmax(dim=1), atol=1e-5)


def test_before_the_update_the_answer_is_the_old_network_s() -> None:
    images, answers = images_of(20, 5), {}
    for after in (True, False):
        method = make(lr=0.05, predict_after_update=after)
        for seed in range(3):
            method.step(images_of(20, seed))
        with torch.no_grad():
            features = F.normalize(method.model.features(images), dim=1)
        old = 1 - (features @ F.normalize(method.source.prototypes, dim=1).T).amax(dim=1).double()
        answers[after] = (method.step(images).novelty, old)
    assert torch.allclose(*answers[False], atol=1e-6)
    assert not torch.allclose(*answers[True], atol=1e-3)


def test_nobody_learns_a_label_before_there_is_a_pool() -> None:
    method = make()
    assert (method.step(images_of(16, 0)).pseudo_labels == UNLABELED).all()
    assert len(method.memory.pool) > 0
    later = method.step(images_of(16, 1)).pseudo_labels
    assert (later >= 0).any() and (later == UNKNOWN).any()


def test_one_sample_at_a_time() -> None:
    method = make(**STILL)
    first = method.step(images_of(1, 0))
    # One score has no second group: known while its cosine is positive.
    assert first.thresholds == (1.0, 1.0, 1.0)
    kinds = {int(method.step(images_of(1, seed)).pseudo_labels) for seed in range(1, 30)}
    assert UNKNOWN in kinds and any(kind >= 0 for kind in kinds)


@pytest.mark.parametrize(
    ("seen", "unseen", "kept_seen", "kept_unseen"),
    [(8, 5, 3, 2), (3, 3, 0, 1), (2, 2, 0, 1), (1, 1, 0, 0), (4, 1, 1, 0), (1, 4, 0, 2), (6, 0, 6, 0), (0, 5, 0, 5)],
)
def test_surer_halves(seen: int, unseen: int, kept_seen: int, kept_unseen: int) -> None:
    novelty = torch.linspace(0, 1, seen + unseen).double()
    order = torch.randperm(seen + unseen, generator=torch.Generator().manual_seed(0))
    known, unknown = surer_halves(novelty[order], (torch.arange(seen + unseen) < seen)[order])
    assert sorted(order[known].tolist()) == list(range(kept_seen))
    assert sorted(order[unknown].tolist()) == list(range(seen + unseen - kept_unseen, seen + unseen))


def test_scores_equal_to_the_edge_of_a_half_are_left_out() -> None:
    novelty, seen = torch.tensor([0.1, 0.2, 0.2, 0.2, 0.8, 0.9, 0.9, 0.9]), torch.arange(8) < 4
    known, unknown = surer_halves(novelty, seen)
    assert known.nonzero().squeeze(1).tolist() == [0] and not unknown.any()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("distance", [0.0, 0.3, 0.6])
def test_greedy_choice_with_a_pool_that_overflows(seed: int, distance: float) -> None:
    random = np.random.default_rng(seed)
    unit = random.normal(size=(30, 3))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    candidates, old, to_source = unit[:20], unit[20:24], random.uniform(-1, 0.5, size=20)
    pool = deque(old, maxlen=4)
    expected = []
    for i, candidate in enumerate(candidates):
        if 1 - max([to_source[i], *(float(candidate @ member) for member in pool)]) > distance:
            pool.append(candidate)
            expected.append(i)
    chosen = choose_prototypes(to_source, candidates @ old.T, candidates @ candidates.T, 4, distance)
    assert chosen == expected and len(expected) > 0


def test_pool_edges() -> None:
    features, pool = torch.eye(4), RingQueue(3, feature=4)
    grow_pool(pool, features, torch.full((4,), 0.2).double(), 0.5)  # nobody unseen
    assert len(pool) == 0
    grow_pool(pool, features, torch.full((4,), 0.5).double(), 0.5)  # on the threshold: unseen, but not far
    assert len(pool) == 0
    grow_pool(pool, features[:1].repeat(4, 1), torch.full((4,), 0.9).double(), 0.5)  # duplicates: one is enough
    assert len(pool) == 1 and torch.equal(pool["feature"][0], features[0])
    grow_pool(pool, torch.zeros(2, 4), torch.full((2,), 1.0).double(), 0.5)
    assert pool["feature"].isfinite().all()


def test_nobody_seen_nobody_aligned() -> None:
    """Features opposite to every prototype: the cross-entropy alone teaches, and nothing breaks."""
    model = small_model()
    assert model.statistics is not None
    with torch.no_grad():
        direction = model.features(images_of(16, 0)).mean(dim=0)
    model.statistics = replace(model.statistics, prototypes=-direction.repeat(NUM_CLASSES, 1))
    method = make(model, queue_length=4, **STILL)
    images = images_of(1, 0).repeat(6, 1, 1, 1)
    for _ in range(3):
        prediction = method.step(images)
        assert (prediction.labels == UNKNOWN).all()
    assert int(method.memory.gaussian.count) == 0
    assert all(tensor.isfinite().all() for tensor in state_of(method).values() if tensor.is_floating_point())


def test_singular_source_statistics() -> None:
    model = small_model()
    model.statistics = SourceStatistics(torch.zeros(NUM_CLASSES, 16), torch.zeros(16), torch.zeros(16, 16))
    method = make(model)
    for seed in range(3):
        method.step(images_of(8, seed))
    assert all(tensor.isfinite().all() for tensor in state_of(method).values() if tensor.is_floating_point())


def test_state_is_the_formula_s() -> None:
    method = make()
    dim = method.model.spec.feature_dim
    stream, source = 100 * dim + 2 * 512 + dim + dim**2, NUM_CLASSES * dim + dim + dim**2
    assert method.num_bytes == 4 * (stream + source) + 8 * 4  # and four counters


def test_alignment_off_leaves_the_gaussian_alone() -> None:
    method = make(alignment_weight=0.0)
    before = method.model.state_dict()["bottleneck.1.running_mean"].clone()
    for seed in range(3):
        method.step(images_of(16, seed))
    assert int(method.memory.gaussian.count) == 0
    assert torch.equal(before, method.model.state_dict()["bottleneck.1.running_mean"])


def run(name: str, **settings: object) -> tuple[float, float, float]:
    method = driftgate.create(name, source_model(), **settings)
    stream = target_batches(30, angle=0.9)
    return score([method.step(images).labels for images, _ in stream], [labels for _, labels in stream])


def test_it_learns() -> None:
    """CIFAR-10's published weights and rate, for a network as small; the same method at rest is the second measure."""
    source, still, learned = run("source-only"), run("owttt", lr=1e-12), run("owttt", preset="cifar-10")
    assert learned[0] > source[0] + 0.1
    assert learned[0] > still[0] + 0.03
    assert learned[1] > still[1] + 0.05


def test_refuses_a_model_without_source_statistics() -> None:
    model = small_model()
    assert model.statistics is not None
    model.statistics = SourceStatistics(model.statistics.prototypes)
    with pytest.raises(DriftgateError, match="source feature_moments, which 'owttt' needs"):
        make(model)
    model.statistics = None
    with pytest.raises(DriftgateError, match="source feature_moments and prototypes, which 'owttt' needs"):
        make(model)


def test_presets_and_defaults() -> None:
    for preset, expected in {
        "visda": (1e-3, 0.1, 0.05),
        "domainnet": (1e-3, 0.1, 0.05),
        "office-home": (1e-3, 0.1, 0.05),
        "imagenet-c": (1e-3, 0.1, 0.05),
        "cifar-10": (1e-2, 1.0, 0.2),
        "cifar-100": (1e-3, 1.0, 0.2),
    }.items():
        chosen = make(preset=preset).settings
        assert (chosen.lr, chosen.alignment_weight, chosen.prototype_weight) == expected
    chosen = make().settings
    assert (chosen.momentum, chosen.nesterov, chosen.weight_decay, chosen.backbone_lr_scale) == (0.9, False, 0.0, 1.0)
    assert (chosen.queue_length, chosen.pool_size, chosen.temperature) == (512, 100, 0.1)
    assert not OWTTT.source_free
