"""GLC and GLC++: clustering, labels and one step by hand, edges, and when they learn and when they reject everybody."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.cluster import KMeans
from support import NUM_CLASSES, images_of, small_model, state_of
from synthetic import score, source_model, target_batches
from torch import Tensor
from torch.nn import functional as F

import driftgate
from driftgate import UNKNOWN
from driftgate.methods import one_vs_all
from driftgate.methods.batchwise import SoftTargetMethod
from driftgate.methods.glc import one_vs_all_labels
from driftgate.methods.one_vs_all import group_means, negative_similarity
from driftgate.methods.target_classes import TargetClasses

BOTH = pytest.mark.parametrize("name", ["glc", "glc++"])


def make(name: str, **settings: object) -> SoftTargetMethod:
    method = driftgate.create(name, small_model(), **settings)
    assert isinstance(method, SoftTargetMethod)
    return method


def unit_vectors(samples: int, dim: int = 8, *, clusters: int = 0, spread: float = 0.1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(samples, dim, generator=generator)
    if clusters:
        points = torch.randn(clusters, dim, generator=generator)[torch.arange(samples) % clusters] + spread * points
    return F.normalize(points, dim=1)


# K-means of all groups at once


def inertia(points: Tensor, members: Tensor, shares: Tensor) -> float:
    centers = (shares @ points)[shares.sum(dim=1) > 0]
    return float(torch.cdist(points[members], centers).amin(dim=1).square().sum())


@pytest.mark.parametrize("clusters", [1, 2, 5, 12])
def test_clusters_are_as_tight_as_scikit_learn_s(clusters: int) -> None:
    points = unit_vectors(48, 16, clusters=8, spread=0.5).double()
    members = torch.rand(6, 48, generator=torch.Generator().manual_seed(1)).argsort(dim=1) < 40
    shares = group_means(points @ points.T, members, clusters)
    total, reference = 0.0, 0.0
    for group in range(6):
        total += inertia(points, members[group], shares[group])
        reference += KMeans(clusters, n_init=1, random_state=0).fit(points[members[group]].numpy()).inertia_
    assert total <= reference * 1.05


def test_plain_clusters_are_those_of_scikit_learn() -> None:
    points = unit_vectors(40, 16, clusters=4).double()
    members = torch.ones(3, 40, dtype=torch.bool)
    for group in range(3):
        members[group, group :: 5 + group] = False  # another number of samples in each
    found = negative_similarity(points, members, 4)
    for group in range(3):
        fitted = KMeans(4, n_init=5, random_state=0).fit(points[members[group]].numpy())
        centers = F.normalize(torch.from_numpy(fitted.cluster_centers_).double(), dim=1)
        assert torch.allclose(found[group], (points @ centers.T).amax(dim=1), atol=1e-6)


def test_centres_are_means_of_members_and_no_member_is_nearer_to_another() -> None:
    points = unit_vectors(30, seed=3).double()
    members = torch.zeros(2, 30, dtype=torch.bool)
    members[0, :20], members[1, 10:] = True, True
    shares = group_means(points @ points.T, members, 4)
    assert (shares[0, :, 20:] == 0).all() and (shares[1, :, :10] == 0).all()
    assert torch.allclose(shares.sum(dim=2), torch.ones(2, 4, dtype=torch.float64))
    for group in range(2):
        nearest = torch.cdist(points, shares[group] @ points).argmin(dim=1)
        belongs = shares[group].argmax(dim=0)
        assert torch.equal(nearest[members[group]], belongs[members[group]])


def test_as_many_clusters_as_samples_and_more() -> None:
    points = unit_vectors(6)
    members = torch.tensor([[False, True, True, True, True, True]])
    expected = (points @ points[1:].T).amax(dim=1)
    for clusters in (5, 6, 100):
        assert torch.allclose(negative_similarity(points, members, clusters)[0], expected, atol=1e-6)


def test_equal_samples_no_samples_and_opposite_ones() -> None:
    same = torch.ones(5, 3) / math.sqrt(3)
    shares = group_means(same @ same.T, torch.ones(1, 5, dtype=torch.bool), 3)
    assert shares.sum(dim=2).tolist() == [[1.0, 0.0, 0.0]]  # a cluster that nobody is in has no share of anybody
    assert torch.allclose(negative_similarity(same, torch.ones(1, 5, dtype=torch.bool), 3), torch.ones(1, 5))
    assert (negative_similarity(same, torch.zeros(2, 5, dtype=torch.bool), 3) == -math.inf).all()
    assert negative_similarity(same, torch.zeros(0, 5, dtype=torch.bool), 3).shape == (0, 5)
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert negative_similarity(opposite, torch.ones(1, 2, dtype=torch.bool), 1).isfinite().all()


def test_blocks_of_classes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = unit_vectors(20)
    members = torch.rand(7, 20, generator=torch.Generator().manual_seed(1)).argsort(dim=1) < 15
    whole = negative_similarity(points, members, 4)
    monkeypatch.setattr(one_vs_all, "LARGEST_BLOCK", 2 * 4 * 20)
    assert torch.equal(negative_similarity(points, members, 4), whole)


# Labels


def slow_labels(features: Tensor, probabilities: Tensor, target: TargetClasses, rho: float) -> list[int]:
    """Class by class and sample by sample, with scikit-learn's K-means."""
    points, chances = features.double(), probabilities.double()
    samples, num_classes = chances.shape
    count = max(int(samples / (num_classes * target.ratio)), 1)
    clusters = int(num_classes * target.ratio)
    prototypes, priors, negatives = [], [], []
    for label in range(num_classes):
        order = sorted(range(samples), key=lambda row: -float(chances[row, label]))
        positive, rest = order[:count], order[count:]
        mean = sum(points[row] for row in positive) / count
        prototypes.append(mean / mean.norm())
        priors.append(rho + (1 - rho) * sum(float(chances[row, label]) for row in positive) / count)
        fitted = KMeans(min(clusters, len(rest)), n_init=10, random_state=0).fit(points[rest].numpy())
        negatives.append([center / center.norm() for center in torch.from_numpy(fitted.cluster_centers_).double()])
    labels = []
    for point in points:
        label = max(range(num_classes), key=lambda label: float(point @ prototypes[label]))
        own = priors[label] * float(point @ prototypes[label])
        labels.append(label if all(own >= float(point @ other) for other in negatives[label]) else UNKNOWN)
    return labels


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_labels_equal_the_slow_ones(ratio: float, seed: int) -> None:
    """As many plain clusters as the estimate says, so that K-means has one answer."""
    features = unit_vectors(48, 16, clusters=int(4 * ratio), spread=0.05, seed=seed)
    logits = 4 * features @ features[:4].T  # a class for each of the first four clusters
    target = TargetClasses(ratio, 0.5)
    found = one_vs_all_labels(features, logits.softmax(dim=1), target, 0.75)
    assert (found >= 0).any() and (ratio == 1.0 or bool((found == UNKNOWN).any()))
    assert found.tolist() == slow_labels(features, logits.softmax(dim=1), target, 0.75)


def test_samples_of_a_cluster_without_class_are_unknown() -> None:
    centers = torch.eye(6)
    truth = torch.arange(48) % 6
    noise = 0.02 * torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    features = F.normalize(centers[truth] + noise, dim=1)
    logits = 8 * features[:, :4]
    # Six target classes for four source classes; eight samples of each.
    labels = one_vs_all_labels(features, logits.softmax(dim=1), TargetClasses(1.5, 0.9), 0.75)
    assert torch.equal(labels, torch.where(truth < 4, truth, UNKNOWN))


def test_labels_of_one_two_and_equal_samples() -> None:
    for samples in (1, 2, 3):
        chances = torch.rand(samples, 4, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
        labels = one_vs_all_labels(unit_vectors(samples), chances, TargetClasses(), 0.75)
        assert ((labels >= UNKNOWN) & (labels < 4)).all()
    alone = one_vs_all_labels(unit_vectors(1), torch.tensor([[0.1, 0.9]]), TargetClasses(), 0.75)
    assert int(alone[0]) >= 0  # nothing speaks against it
    equal = one_vs_all_labels(unit_vectors(1).repeat(8, 1), torch.full((8, 4), 0.25), TargetClasses(), 0.75)
    assert len(set(equal.tolist())) == 1


def test_more_classes_than_samples() -> None:
    chances = torch.rand(16, 300, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    for ratio in (0.25, 1.0, 3.0):
        labels = one_vs_all_labels(unit_vectors(16), chances, TargetClasses(ratio), 0.75)
        assert ((labels >= UNKNOWN) & (labels < 300)).all()


# A step


@BOTH
def test_one_step_by_hand(name: str) -> None:
    images, samples = images_of(24, 0), 24
    method = make(name, batch_norm="running", momentum=0.0, lr=0.1, prior_floor=1.0)
    prediction = method.predict(images)
    method.target_classes = TargetClasses(1.0, 0.5)  # so that the estimate, tested elsewhere, plays no part
    pseudo_labels = method.predict(images).pseudo_labels
    assert (pseudo_labels == UNKNOWN).any() and (pseudo_labels >= 0).any()
    model = small_model()
    output = model(images)
    probabilities, units = output.logits.softmax(dim=1), F.normalize(output.features, dim=1)
    fixed_chances, fixed = probabilities.detach(), units.detach()
    loss = torch.zeros(())
    for row in range(samples):
        order = [place for place in (units[row] @ fixed.T).argsort(descending=True).tolist() if place != row]
        label = int(pseudo_labels[row])
        target = torch.eye(NUM_CLASSES)[label] if label >= 0 else torch.full((NUM_CLASSES,), 1 / NUM_CLASSES)
        neighbours = sum(fixed_chances[place] for place in order[:4]) / 4
        logs = (probabilities[row] + 1e-5).log()
        loss = loss - (0.3 * (target * logs).sum() + (neighbours * logs).sum()) / samples
        if name == "glc++":
            skip = math.ceil(samples / NUM_CLASSES)
            negative = sum(units[row] @ fixed[place] for place in order[skip : skip + 4])
            positive = sum(units[row] @ fixed[place] for place in order[:4])
            loss = loss + (negative - positive) / samples
    loss.backward()
    answered = method.step(images)
    assert torch.equal(answered.scores, prediction.scores)
    novelty = -(fixed_chances.double() * fixed_chances.double().log()).sum(dim=1) / math.log(NUM_CLASSES)
    assert torch.allclose(answered.novelty, novelty, atol=1e-5)
    assert torch.equal(answered.labels, torch.where(novelty > 0.55, UNKNOWN, fixed_chances.argmax(dim=1)))
    adapted = dict(method.model.named_parameters())
    for path, parameter in model.named_parameters():
        if path.startswith("classifier"):
            assert torch.equal(adapted[path], parameter)
            continue
        rate = 0.01 if path.startswith("backbone") else 0.1
        expected = parameter - rate * (parameter.grad + 1e-3 * parameter)
        assert torch.allclose(adapted[path], expected, atol=1e-6), path


@BOTH
def test_the_estimate_is_two_numbers_and_kept_from_the_first_batch(name: str) -> None:
    method = make(name)
    assert method.target_classes == TargetClasses()
    method.predict(images_of(24, 0))
    assert method.target_classes == TargetClasses()  # only a step remembers
    method.step(images_of(1, 0))
    assert method.target_classes == TargetClasses()  # one sample tells nothing
    method.step(images_of(24, 0))
    first = method.target_classes
    assert first.silhouette > -1
    method.step(images_of(40, 1))
    assert method.target_classes == first
    assert method.num_bytes == 16


@BOTH
def test_a_failing_step_leaves_the_estimate_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(name, estimate_classes="latest")
    method.step(images_of(24, 0))
    before = state_of(method)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(method, "_learn", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        method.step(images_of(24, 1))
    after = state_of(method)
    assert [key for key in before if not torch.equal(before[key], after[key])] == []


def test_glc_plus_without_affinity_is_glc() -> None:
    one, two = make("glc", lr=0.01), make("glc++", lr=0.01, affinity_weight=0.0)
    for seed in range(3):
        one.step(images_of(16, seed))
        two.step(images_of(16, seed))
    for first, second in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(first, second)


# On a stream


def run(name: str, unknown: float, **settings: object) -> tuple[float, float, float]:
    """Scores on the second half of 60 batches."""
    method = driftgate.create(name, source_model(), **settings)
    stream = target_batches(60, angle=0.9, unknown=unknown)
    labels = [method.step(images).labels for images, _ in stream]
    return score(labels[30:], [truth for _, truth in stream[30:]])


@BOTH
def test_it_learns_with_the_right_number_of_classes(name: str) -> None:
    source = run("source-only", 0.3)[0]
    statistics = run("bn-stats", 0.3, threshold=0.55)[0]
    learned = run(name, 0.3, lr=0.01, class_ratios=(1.0,), pseudo_label_weight=1.5)[0]
    assert learned > source + 0.3
    assert learned > statistics + 0.04
    assert learned > 0.93


@BOTH
@pytest.mark.parametrize("unknown", [0.0, 0.3])
def test_it_rejects_everybody_with_too_many(name: str, unknown: float) -> None:
    """The paper's finding for GLC and GLC++ online: with few samples a cluster most are unknown, learn the uniform
    target, and end up rejected."""
    _, right, _ = run(name, unknown, lr=0.01, class_ratios=(3.0,), pseudo_label_weight=1.5)
    assert right < 0.05


@BOTH
def test_presets(name: str) -> None:
    found = {}
    for preset in ("visda", "office-home", "domainnet"):
        chosen = make(name, preset=preset).settings
        found[preset] = (chosen.lr, chosen.pseudo_label_weight)
        assert (chosen.threshold, chosen.neighbor_weight, chosen.neighbors) == (0.55, 1.0, 4)
        assert (chosen.weight_decay, chosen.momentum, chosen.nesterov) == (1e-3, 0.9, True)
        assert chosen.model_dump()["prior_floor"] == 0.75
    assert found == {"visda": (1e-4, 0.3), "office-home": (1e-3, 1.5), "domainnet": (1e-4, 1.5)}
    assert make(name).settings.model_dump().get("affinity_weight") == (1.0 if name == "glc++" else None)


@BOTH
@pytest.mark.parametrize("ratios", [(), (0.0,), (-1.0, 1.0)])
def test_ratios_must_be_positive(name: str, ratios: tuple[float, ...]) -> None:
    with pytest.raises(driftgate.DriftgateError, match="class_ratios"):
        make(name, class_ratios=ratios)
