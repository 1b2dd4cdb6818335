"""GMM-COMET: what the teacher does, what the student learns, its edges, and that it learns."""

from __future__ import annotations

import math

import pytest
import torch
from support import NUM_CLASSES, images_of, small_model, state_of
from synthetic import score, source_model, target_batches
from torch import Tensor

import driftgate
from driftgate import UNKNOWN, UNLABELED, DivergedError
from driftgate.losses import contrastive_loss
from driftgate.methods.gmm_comet import GMMCOMET


def make(**settings: object) -> GMMCOMET:
    method = driftgate.create("gmm-comet", small_model(), **settings)
    assert isinstance(method, GMMCOMET)
    return method


def disturb(method: GMMCOMET, seed: int = 1) -> None:
    """Move the student away from its teacher, as many steps would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in method.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def plain_mixture(reduced: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Means and log-likelihoods of a first batch by Eqs. 1-3, class by class and sample by sample, in float64."""
    count, num_classes = weights.shape
    means, logs = [], []
    for label in range(num_classes):
        total = sum(weights[i, label] for i in range(count))
        mean = sum(weights[i, label] * reduced[i] for i in range(count)) / total
        offsets = reduced - mean
        covariance = sum(weights[i, label] * torch.outer(offsets[i], offsets[i]) for i in range(count)) / total
        means.append(mean)
        logs.append(torch.distributions.MultivariateNormal(mean, covariance).log_prob(reduced))
    return torch.stack(means), torch.stack(logs, dim=1)


def test_the_teacher_labels_and_both_predict_by_hand() -> None:
    """The released preset on one batch: mixture, entropy and thresholds from the teacher, the class from both."""
    images = images_of(40, 0)
    method = make(preset="released", reduced_dim=4, quantile_rule="interpolated", p_reject=0.5)
    disturb(method)
    with torch.no_grad():
        teacher, student = small_model()(images), method.model(images)
        reduced = method.reducer(teacher.features).double()
    shares = teacher.logits.double().softmax(dim=1)
    means, log_likelihood = plain_mixture(reduced, shares)
    posterior = log_likelihood.softmax(dim=1)
    novelty = -(posterior * posterior.log()).sum(dim=1) / math.log(NUM_CLASSES)
    low, high = torch.quantile(novelty, 0.25), torch.quantile(novelty, 0.75)
    pseudo_labels = torch.where(novelty <= low, log_likelihood.argmax(dim=1), UNLABELED)
    pseudo_labels[novelty >= high] = UNKNOWN
    both = (student.logits.double().softmax(dim=1) + shares) / 2
    labels = torch.where(novelty <= (low + high) / 2, both.argmax(dim=1), UNKNOWN)

    prediction = method.step(images)
    assert torch.allclose(prediction.novelty, novelty, rtol=1e-3, atol=1e-6)
    assert torch.equal(prediction.pseudo_labels, pseudo_labels)
    assert torch.equal(prediction.labels, labels)
    assert torch.allclose(prediction.scores.double(), both, atol=1e-6)
    assert torch.allclose(method.mixture.means.double(), means, rtol=1e-4, atol=1e-6)
    # The three disagree somewhere, or this test could not tell them apart.
    alone = (student.logits.argmax(dim=1), teacher.logits.argmax(dim=1))
    assert not torch.equal(alone[0], alone[1]) and any(not torch.equal(both.argmax(dim=1), one) for one in alone)


@pytest.mark.parametrize("contrastive_weight", [0.0, 1.0])
def test_a_step_is_one_step_of_sgd_on_the_loss_by_hand(contrastive_weight: float) -> None:
    images = images_of(24, 1)
    settings = {
        "lr": 0.1,
        "momentum": 0.0,
        "seed": 2,
        "reduced_dim": 6,
        "kl_weight": 0.7,
        "consistency_weight": 3.0,
        "source_consistency_weight": 5.0,
        "teacher_momentum": 0.9,
        "contrastive_weight": contrastive_weight,
    }
    method, twin = make(**settings), make(**settings)
    disturb(method)
    disturb(twin)
    method.teacher.update()  # so that teacher, source and student are three networks
    labels = method.predict(images).pseudo_labels
    known, unknown = labels >= 0, labels == UNKNOWN
    assert known.any() and unknown.any()
    teacher_weights = {name: tensor.clone() for name, tensor in method.teacher.tensors.items()}
    averaged = small_model()
    averaged.load_state_dict({**small_model().state_dict(), **teacher_weights})
    with torch.no_grad():
        source_features, teacher = small_model()(images).features, averaged(images)
        means = plain_mixture(twin.reducer(teacher.features).double(), teacher.logits.double().softmax(dim=1))[0]
    output = twin.model(images)
    shares = output.logits.softmax(dim=1)
    doubt = -(shares * shares.log()).sum(dim=1) / math.log(NUM_CLASSES)
    loss = 0.7 * (doubt[known].mean() - doubt[unknown].mean())
    loss = loss + 3.0 * ((output.features - teacher.features) ** 2).sum() / output.features.numel()
    loss = loss + 5.0 * ((output.features - source_features) ** 2).sum() / output.features.numel()
    if contrastive_weight > 0:
        view = twin.model(twin.views.weak(images, twin.generator)).features
        reduced = twin.reducer(torch.cat([output.features, view]))
        loss = loss + contrastive_loss(
            reduced, labels.repeat(2), means, reduction="mean", self_pairs=False, mean_term="classes"
        )
    loss.backward()

    method.step(images)
    for name, parameter in twin.model.named_parameters():
        assert parameter.grad is not None
        expected = parameter - (0.01 if name.startswith("backbone") else 0.1) * parameter.grad
        assert torch.allclose(method.model.get_parameter(name), expected, atol=2e-6), name
        follows = 0.9 * teacher_weights[name] + 0.1 * expected
        assert torch.allclose(method.teacher.tensors[name], follows, atol=2e-6), name
    for mine, reference in zip(method.reducer.parameters(), twin.reducer.parameters(), strict=True):
        moved = 0.0 if reference.grad is None else 0.1 * reference.grad
        assert torch.allclose(mine, reference - moved, atol=1e-6)
        assert (reference.grad is None) is (contrastive_weight == 0)
    for path, buffer in small_model().named_buffers():
        assert torch.equal(method.model.get_buffer(path), buffer)


def test_the_source_copy_never_moves_and_can_be_left_out() -> None:
    method, without = make(lr=0.01), make(lr=0.01, source_consistency_weight=0.0)
    for seed in range(4):
        method.step(images_of(16, seed))
        without.step(images_of(16, seed))
    assert method.source is not None and without.source is None
    source = small_model().state_dict()
    assert all(torch.equal(tensor, source[name]) for name, tensor in method.source.tensors.items())
    network, mixture = small_model().num_bytes, 4 * NUM_CLASSES * (16 + 16 * 17 // 2 + 1) + 24 + 112
    assert method.num_bytes == 2 * network + mixture
    assert without.num_bytes == network + mixture


def test_source_consistency_holds_the_features() -> None:
    distances = []
    for weight in (0.0, 50.0):
        method = make(lr=0.01, source_consistency_weight=weight, consistency_weight=0.0)
        for seed in range(15):
            method.step(images_of(16, seed))
        with torch.no_grad():
            moved = method.model(images_of(16, 0)).features - small_model()(images_of(16, 0)).features
        distances.append(float(moved.norm()))
    assert distances[1] < 0.5 * distances[0]


@pytest.mark.parametrize("labelled", [UNKNOWN, UNLABELED, 2])
def test_one_kind_of_label_only(labelled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is missing contributes no loss, and the consistency losses go on."""
    monkeypatch.setattr("driftgate.methods.gmm.pseudo_label", lambda classes, *_: torch.full_like(classes, labelled))
    method = make(lr=0.01)
    for seed in range(4):
        assert (method.step(images_of(12, seed)).pseudo_labels == labelled).all()
    assert all(tensor.isfinite().all() for tensor in state_of(method).values() if tensor.is_floating_point())
    if labelled == UNLABELED:  # nothing pulled the student away, so it still is its teacher and its source
        expected = small_model().state_dict()
        assert all(torch.allclose(value, expected[name], atol=1e-6) for name, value in method.model.named_parameters())


@pytest.mark.parametrize("batch_norm", ["running", "batch"])
def test_without_a_contrastive_loss_a_second_view_serves_batch_norm_alone(batch_norm: str) -> None:
    method = make(preset="released", batch_norm=batch_norm)
    before = method.generator.get_state()
    method.step(images_of(8, 0))
    assert torch.equal(before, method.generator.get_state()) is (batch_norm == "running")
    assert torch.equal(method.teacher.tensors["bottleneck.1.running_mean"], torch.zeros(16))
    followed = int(method.model.get_buffer("bottleneck.1.num_batches_tracked"))
    assert followed == (0 if batch_norm == "running" else 2)


def run(name: str, streams: list[list[tuple[Tensor, Tensor]]], **settings: object) -> list[float]:
    """H-score of each stream in turn, one method through all of them."""
    method = driftgate.create(name, source_model(), **settings)
    return [
        score([method.step(images).labels for images, _ in part], [true for _, true in part])[0] for part in streams
    ]


@pytest.mark.parametrize("preset", [None, "released"])
def test_it_learns_on_an_easy_stream(preset: str | None) -> None:
    streams = [target_batches(40, angle=0.9)]
    before, after = run("source-only", streams)[0], run("gmm-comet", streams, preset=preset)[0]
    assert after > before + 0.2


def test_it_lasts_through_domains_that_change() -> None:
    """Its own setting: several targets one after another and back, nobody tells where one ends."""
    streams = [target_batches(25, angle=angle, seed=seed) for seed, angle in enumerate([0.5, 0.8, 1.1, 0.5])]
    before, after = run("source-only", streams), run("gmm-comet", streams)
    assert sum(after) > sum(before) + 0.5
    assert after[-1] > after[0] - 0.03


def test_presets_hold_the_published_values() -> None:
    expected = {
        "domainnet": (0.999, 0.65, 0.999, 1.0, 2.0),
        "cifar-100": (0.99, 0.5, 0.99, 1.0, 2.0),
        "cifar-10": (0.99, 0.5, 0.99, 2.0, 5.0),
        "released": (0.999, 0.65, 0.999, 1.0, 2.0),
    }
    assert set(expected) == set(GMMCOMET.presets)
    for preset, values in expected.items():
        chosen = make(preset=preset).settings
        weights = (chosen.consistency_weight, chosen.source_consistency_weight)
        assert (chosen.decay, chosen.p_reject, chosen.teacher_momentum, *weights) == values
        assert (chosen.lr, chosen.init_batches, chosen.temperature, chosen.kl_weight) == (1e-3, 50, 0.1, 1.0)
        assert (chosen.batch_norm, chosen.kl_form, chosen.mean_term, chosen.gate) == (
            "running",
            "comet",
            "classes",
            "frozen",
        )
    assert make().settings == make(preset="domainnet").settings
    released = make(preset="released").settings
    assert (released.contrastive_weight, released.covariance_shrinkage, released.class_prior) == (0.0, 0.0, 0.0)
    assert (released.floor_rule, released.quantile_rule, released.tie_rule) == ("absolute", "released", "gmm-comet")
    assert (released.source_batch_norm, make().settings.source_batch_norm) == ("batch", "running")


def test_a_diverged_teacher_is_refused_and_changes_nothing() -> None:
    method = make()
    method.step(images_of(8, 0))
    method.teacher.tensors["classifier.bias"].fill_(math.nan)
    before = state_of(method)
    with pytest.raises(DivergedError, match="diverged after 1 steps"):
        method.step(images_of(8, 1))
    after = state_of(method)
    spoiled = "teacher.weights.classifier.bias"
    assert all(torch.equal(before[key], after[key]) for key in before if key != spoiled)
