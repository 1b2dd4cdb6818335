"""The method as a whole: what its presets mean, what a step does, and that it learns."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support import NUM_CLASSES, images_of, small_model, state_of
from torch import Tensor
from torch.nn import functional as F

import driftgate
from driftgate import UNKNOWN, UNLABELED, DivergedError, DriftgateError
from driftgate.memory import StreamingGMM
from driftgate.methods.gmm import GMM
from driftgate.novelty.scores import SCORES, entropy, posterior


def make(**settings: object) -> GMM:
    # What most batches here have, and are to teach, whatever statistics they are normalised by.
    enough = {} if "preset" in settings else {"min_batch": 16, "teach_share": 1.0}
    method = driftgate.create("gmm", small_model(), **{**enough, **settings})
    assert isinstance(method, GMM)
    return method


def test_first_step_follows_the_paper_by_hand() -> None:
    """The paper's preset on one batch, each quantity computed again in the plainest way, in float64."""
    images = images_of(24, 0)
    method = make(preset="paper", reduced_dim=4, batch_norm="running")
    model = small_model()
    with torch.no_grad():
        output = model(images)
        reduced = method.reducer(output.features).double()
    weights = output.logits.double().softmax(dim=1)
    total = weights.sum(dim=0)
    means = (weights.T @ reduced) / total[:, None]
    log_likelihood = torch.empty(24, NUM_CLASSES, dtype=torch.float64)
    for label in range(NUM_CLASSES):
        offsets = reduced - means[label]
        covariance = sum(weights[i, label] * torch.outer(offsets[i], offsets[i]) for i in range(24)) / total[label]
        distribution = torch.distributions.MultivariateNormal(means[label], covariance)
        log_likelihood[:, label] = distribution.log_prob(reduced)
    probabilities = log_likelihood.softmax(dim=1)
    novelty = -(probabilities * probabilities.log()).sum(dim=1) / math.log(NUM_CLASSES)
    known, unknown = torch.quantile(novelty, 0.25), torch.quantile(novelty, 0.75)
    pseudo_labels = torch.where(novelty <= known, log_likelihood.argmax(dim=1), UNLABELED)
    pseudo_labels[novelty >= unknown] = UNKNOWN
    labels = torch.where(novelty <= (known + unknown) / 2, output.logits.argmax(dim=1), UNKNOWN)

    prediction = method.step(images)
    assert torch.allclose(prediction.novelty, novelty, rtol=1e-3, atol=1e-6)
    assert torch.equal(prediction.pseudo_labels, pseudo_labels)
    assert torch.equal(prediction.labels, labels)
    assert torch.allclose(method.mixture.means.double(), means, rtol=1e-4, atol=1e-6)


def test_second_step_uses_the_first_one_s_gradient() -> None:
    """One SGD step on Eq. 8 with the released loss, by hand: weights after it are those of the method."""
    images = images_of(16, 1)
    method = make(preset="released", batch_norm="running", lr=0.1, momentum=0.0)
    model = small_model()
    labels = method.predict(images).pseudo_labels
    probabilities = model(images).logits.softmax(dim=1)
    scores = (probabilities / 0.1).logsumexp(dim=1)
    loss = 1e-3 * (scores[labels == UNKNOWN].sum() - scores[labels >= 0].sum())
    loss.backward()
    method.step(images)
    expected = {
        name: parameter - (0.01 if name.startswith("backbone") else 0.1) * parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    assert len(expected) == len(list(model.parameters()))
    for name, parameter in method.model.named_parameters():
        assert torch.allclose(parameter, expected[name], atol=1e-7), name


def test_released_preset_never_moves_the_reducer_and_the_default_does() -> None:
    for preset, moves in (("released", False), (None, True), ("paper", True)):
        method = make(preset=preset, lr=1e-4, teach_share=1.0)
        before = method.reducer.weight.detach().clone()
        for seed in range(3):
            method.step(images_of(32, seed))
        assert torch.equal(before, method.reducer.weight) is not moves


def test_presets_keep_the_equations() -> None:
    paper, released = make(preset="paper").settings, make(preset="released").settings
    assert (paper.decay, paper.reduction, paper.kl_form, paper.gate) == (0.999, "sum", "paper", "frozen")
    assert (paper.covariance_shrinkage, paper.self_pairs, paper.mean_term) == (0.0, True, "samples")
    assert (paper.p_reject, paper.init_batches, paper.temperature, paper.kl_weight) == (0.5, 30, 0.1, 1.0)
    assert (paper.reduced_dim, paper.momentum, paper.lr) == (64, 0.9, 0.01)
    assert (released.decay, released.contrastive_weight, released.kl_form) == (1.0, 0.0, "bounded")
    assert (released.kl_weight, released.kl_temperature, released.quantile_rule) == (1e-3, 0.1, "released")
    assert (released.floor_rule, released.covariance_floor, released.tie_rule) == ("absolute", 1e-6, "released")
    for ours in (paper, make().settings):
        assert (ours.floor_rule, ours.quantile_rule, ours.tie_rule) == ("relative", "interpolated", "paper")
    with pytest.raises(DriftgateError, match="Expected a preset of 'gmm' out of paper, released but got 'best'"):
        make(preset="best")


@pytest.mark.parametrize("novelty", SCORES)
@pytest.mark.parametrize("gate", ["frozen", "tracking", "mixture"])
def test_every_score_with_every_gate(novelty: str, gate: str) -> None:
    method = make(novelty=novelty, gate=gate, init_batches=2)
    for seed in range(7):
        prediction = method.step(images_of(20, seed))
        assert prediction.novelty.isfinite().all()
        used = prediction.pseudo_labels != UNLABELED
        assert used.any()
    assert all(tensor.isfinite().all() for tensor in state_of(method).values() if tensor.is_floating_point())


@pytest.mark.parametrize("kl_form", ["paper", "bounded", "cross_entropy", "comet"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_every_loss_form_stays_finite(kl_form: str, reduction: str) -> None:
    method = make(kl_form=kl_form, reduction=reduction, lr=1e-3, mean_term="classes")
    for seed in range(5):
        method.step(images_of(16, seed))
    assert all(tensor.isfinite().all() for tensor in state_of(method).values() if tensor.is_floating_point())


def test_state_bytes_are_the_formula_s() -> None:
    for asked, dim in ((12, 12), (64, 16)):  # never more dimensions than the features have
        method = make(reduced_dim=asked, gate="frozen", adapt_layers="all")
        method.step(images_of(16, 0))
        # The mixture, the gate, and the calm past with the choice of statistics; for the second opinion the statistics
        # of 24 channels, and a gate for who is answered without; then the classifier as it came.
        mixture, head = 4 * NUM_CLASSES * (dim + dim * (dim + 1) // 2 + 1), 4 * NUM_CLASSES * (16 + 1)
        always = mixture + 24 + 112 + 4 * 2 * 24 + 24
        assert method.num_bytes == always + head
        frozen = make(reduced_dim=asked, gate="frozen")  # the head stays, and needs no copy
        assert frozen.num_bytes == always
        method.step(images_of(3, 1))
        assert method.num_bytes == always + head + 4 * images_of(3, 1).numel()


@pytest.mark.parametrize("name", ["gmm", "gmm-comet"])
def test_a_tied_covariance_is_the_default_with_shrinkage_without_bound(name: str) -> None:
    """Through whole steps: the same labels and novelty, from a state of one covariance."""
    shared: dict[str, Any] = {"reduced_dim": 4, "likelihood_temperature": 1.0, "novelty": "likelihood_entropy"}
    tied = driftgate.create(name, small_model(), covariance="tied", **shared)
    pooled = driftgate.create(name, small_model(), covariance_shrinkage=1e9, **shared)
    own = driftgate.create(name, small_model(), covariance_shrinkage=0.0, **shared)
    for seed in range(4):
        found, expected, other = (method.step(images_of(24, seed)) for method in (tied, pooled, own))
        assert torch.allclose(found.novelty, expected.novelty, rtol=1e-5)
        assert torch.equal(found.labels, expected.labels)
        assert torch.equal(found.pseudo_labels, expected.pseudo_labels)
    assert not torch.allclose(found.novelty, other.novelty, rtol=1e-4)
    assert pooled.num_bytes - tied.num_bytes == 4 * (NUM_CLASSES - 1) * 10


def test_tied_state_goes_by_the_setting_it_was_saved_with(tmp_path: Path) -> None:
    method = make(covariance="tied")
    method.step(images_of(8, 0))
    method.save(tmp_path / "tied.safetensors")
    loaded = driftgate.load(tmp_path / "tied.safetensors", model=small_model())
    assert isinstance(loaded, GMM)
    assert (loaded.settings.covariance, loaded.num_bytes) == ("tied", method.num_bytes)
    with pytest.raises(DriftgateError, match=r"settings it was saved with"):
        make(covariance="full").load_state_dict(method.state_dict())
    with pytest.raises(DriftgateError, match=r"covariance"):
        make(covariance="diagonal")


def test_prior_knowledge_is_where_the_mixture_starts() -> None:
    method = make(reduced_dim=3, decay=1.0)
    means, covariances = torch.randn(NUM_CLASSES, 3), torch.eye(3).repeat(NUM_CLASSES, 1, 1)
    method.set_prior(means, covariances, torch.full((NUM_CLASSES,), 1e9))
    method.step(images_of(16, 0))
    assert torch.allclose(method.mixture.means, means, atol=1e-5)
    with pytest.raises(DriftgateError, match="before the first step"):
        method.set_prior(means, covariances, torch.ones(NUM_CLASSES))


def test_prior_in_feature_space_goes_through_the_reducer() -> None:
    method = make(reduced_dim=3)
    size = method.model.spec.feature_dim
    features = torch.randn(400, size, generator=torch.Generator().manual_seed(0))
    mean, covariance = features.mean(dim=0), torch.cov(features.T)
    method.set_prior(
        mean.repeat(NUM_CLASSES, 1),
        covariance.repeat(NUM_CLASSES, 1, 1),
        torch.ones(NUM_CLASSES),
        space="features",
    )
    reduced = method.reducer(features).detach()
    assert torch.allclose(method.mixture.means[0], reduced.mean(dim=0), atol=1e-4)
    assert torch.allclose(method.mixture.covariances[0], torch.cov(reduced.T), atol=1e-4)


def test_diverged_network_raises_and_keeps_the_last_good_state() -> None:
    method = make()
    method.step(images_of(8, 0))
    with torch.no_grad():
        method.model.bottleneck[0].weight.fill_(1e38)  # type: ignore[index]
    before = state_of(method)
    with pytest.raises(DivergedError, match="diverged after 1 steps; load an earlier state"):
        method.step(images_of(8, 1))
    after = state_of(method)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


def test_a_gradient_that_is_not_finite_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    method = make(kl_form="paper", reduction="sum", kl_weight=3e38)
    before = [parameter.detach().clone() for parameter in method.model.parameters()]
    with caplog.at_level(logging.WARNING):
        method.step(images_of(16, 0))
    assert "gradient is not finite" in caplog.text
    assert all(torch.equal(old, new) for old, new in zip(before, method.model.parameters(), strict=True))


def test_clipping_bounds_the_step() -> None:
    method = make(max_grad_norm=1e-3, lr=1.0, backbone_lr_scale=1.0, momentum=0.0)
    before = torch.cat([p.detach().flatten() for p in [*method.model.parameters(), *method.reducer.parameters()]])
    method.step(images_of(16, 0))
    after = torch.cat([p.detach().flatten() for p in [*method.model.parameters(), *method.reducer.parameters()]])
    assert 0 < (after - before).norm() <= 1.01e-3


def blobs(count: int, seed: int, shift: float, classes: list[int]) -> tuple[Tensor, Tensor]:
    """Images of classes that differ in which quarter is bright; ``shift`` darkens and blurs them together."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (count,), generator=generator)]
    images = 0.15 * torch.rand(count, 3, 8, 8, generator=generator)
    for index, label in enumerate(labels.tolist()):
        row, column = divmod(label, 3)
        images[index, :, 3 * row : 3 * row + 2, 3 * column : 3 * column + 2] += 0.6
    return (images * (1 - shift) + shift * images.mean(dim=(2, 3), keepdim=True)).clamp(0, 1), labels


def test_it_learns_on_an_easy_stream() -> None:
    """Five blobs known, two new, contrast lost: adapting must beat the source model clearly."""
    model = small_model(flip=False)  # a mirrored blob is another class
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    for seed in range(60):
        images, labels = blobs(64, seed, 0.0, [0, 1, 2, 3, 4])
        loss = F.cross_entropy(model(images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    scores = {}
    for name in ("source-only", "gmm"):
        model.load_state_dict(weights)
        method = driftgate.create(name, model)
        correct = total = 0
        for seed in range(100, 140):
            images, classes = blobs(64, seed, 0.6, [0, 1, 2, 3, 4, 6, 8])
            labels = torch.where(classes < NUM_CLASSES, classes, UNKNOWN)
            correct += int((method.step(images).labels == labels).sum())
            total += len(labels)
        scores[name] = correct / total
    assert scores["gmm"] > scores["source-only"] + 0.1


def test_absent_classes_make_nobody_unknown_with_the_class_prior() -> None:
    """A class seen through tails alone has its Gaussian on top of a class that is there: half of the doubt is its."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(300, 4, generator=generator)
    features[150:, 0] += 12.0
    weights = torch.full((300, 3), 1e-6)
    weights[:150, 0] = weights[150:, 1] = 1.0
    weights[150:, 2] = 1e-5  # never predicted, but always a little on the samples of class 1
    mixture = StreamingGMM(3, 4, shrinkage=10.0)
    mixture.update(features, weights)
    plain = entropy(posterior(mixture.evaluate(features).log_likelihood))
    with_prior = entropy(posterior(mixture.evaluate(features, prior=1.0).log_likelihood))
    assert plain[150:].median() > 0.2
    assert with_prior[150:].median() < 0.01
    shares = (mixture.weights.double() / mixture.weights.double().sum()).log()
    expected = mixture.log_likelihood(features) + shares
    assert torch.allclose(mixture.evaluate(features, prior=1.0).log_likelihood, expected, atol=1e-9)


def test_features_too_large_for_a_variance_count_as_diverged() -> None:
    method = make(batch_norm="running")
    for value in (1e19, math.nan, math.inf):
        with torch.no_grad():
            method.reducer.weight.fill_(value)
        with pytest.raises(DivergedError, match="diverged"):
            method.step(images_of(8, 0))


def test_settings_are_finite_and_the_model_is_ours() -> None:
    for bad in ({"lr": math.inf}, {"kl_weight": math.nan}, {"seed": -1}, {"seed": 2**63}):
        with pytest.raises(DriftgateError, match="Settings of 'gmm'"):
            make(**bad)
    with pytest.raises(DriftgateError, match="wrap"):
        driftgate.create("gmm", torch.nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "score"),
    [
        ({}, "prediction_entropy"),
        ({"adapt_layers": "all"}, "likelihood_entropy"),
        ({"preset": "paper"}, "likelihood_entropy"),
        ({"preset": "released", "adapt_layers": "norm"}, "likelihood_entropy"),
        ({"novelty": "max_likelihood"}, "max_likelihood"),
    ],
)
def test_a_classifier_that_stays_as_it_came_says_what_is_new(settings: dict[str, Any], score: str) -> None:
    """Of a pretrained network the head stays; whoever teaches it asks the mixture, as the paper does."""
    alone: dict[str, Any] = {"second_opinion": 0.0, "neighbor_opinion": 0.0, "third_opinion": 0.0, **settings}
    method = driftgate.create("gmm", small_model(), **alone)
    asked = driftgate.create("gmm", small_model(), **{**alone, "novelty": score})
    for seed in range(3):
        assert torch.equal(method.step(images_of(32, seed)).novelty, asked.step(images_of(32, seed)).novelty)
    output = method.model(method.model.prepare(images_of(32, 9)))
    by_head = entropy(output.logits.double().log_softmax(dim=1))
    assert torch.allclose(method.predict(images_of(32, 9)).novelty, by_head) == (score == "prediction_entropy")


@pytest.mark.parametrize(
    ("settings", "certain"),
    [
        ({}, 0.5),
        ({"adapt_layers": "all"}, 0.01),
        ({"novelty": "prediction_entropy"}, 0.5),
        ({"novelty": "prediction_entropy", "adapt_layers": "all"}, 0.01),
        ({"certain_below": 0.2, "gate": "tracking"}, 0.2),
        ({"adapt_layers": "all", "certain_below": 0.2}, 0.2),
        ({"preset": "paper"}, 0.0),
    ],
)
def test_nobody_is_unknown_whom_the_classifier_that_stays_is_sure_of(settings: dict[str, Any], certain: float) -> None:
    """Quantiles reject a share of any stream: a classifier at home in it would lose half of its answers."""
    model = small_model()
    with torch.no_grad():  # sure of everything
        model.get_parameter("classifier.parametrizations.weight.original0").mul_(1e4)
    method = driftgate.create("gmm", model, **{"batch_norm": "running", **settings})
    prediction = method.step(images_of(32, 0))
    assert min(prediction.thresholds.unknown, prediction.thresholds.prediction) >= certain
    if certain == 0.5:
        assert float(prediction.novelty.max()) < 0.5 and UNKNOWN not in prediction.labels
        assert UNKNOWN not in prediction.pseudo_labels
    else:
        assert prediction.thresholds.prediction < 0.5
