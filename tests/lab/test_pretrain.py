"""Source training: the recipe, its resumption, what it measures and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from driftgate.lab.data.domains import MemoryDomain
from driftgate.lab.data.source import SourceSamples
from driftgate.lab.pretrain import (
    PretrainSettings,
    Training,
    accuracy_on,
    learning_rate,
    pretrain,
)
from driftgate.models import SourceModel
from driftgate.shifts import ClassSplit
from driftgate.types import DivergedError, DriftgateError

SPLIT = ClassSplit.parse("2/1/1")
SETTINGS = PretrainSettings(epochs=3, lr=0.02, batch_size=16)


class Stop(Exception):
    """The process dies here."""


def toy_domain(per_class: int = 24) -> MemoryDomain:
    """Four classes of 12 x 12 pictures: a bright quarter in one of the corners, and noise."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(4).repeat_interleave(per_class)
    images = torch.randint(0, 100, (len(classes), 3, 12, 12), generator=generator)
    for index, label in enumerate(classes.tolist()):
        top, left = divmod(label, 2)
        images[index, :, 6 * top : 6 * top + 6, 6 * left : 6 * left + 6] += 120
    return MemoryDomain("toy", images.to(torch.uint8), classes)


class Dropping(nn.Module):
    """A small network with dropout, so that training draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(200, 16),
        )

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.layers(images)
        return output


def dropping_model() -> SourceModel:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return SourceModel.untrained(
            Dropping(), class_names=["a", "b", "c"], input_size=(12, 12), flip=False, pretrained=False
        )


def cnn_model() -> SourceModel:
    return SourceModel.build("cnn", ["a", "b", "c"], input_size=(12, 12))


def states_equal(first: SourceModel, second: SourceModel) -> bool:
    mine, other = first.state_dict(), second.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in mine.items())


def test_the_learning_rate_follows_the_papers_schedule():
    assert learning_rate(0.01, 0, 100) == 0.01
    assert learning_rate(0.01, 10, 100) == pytest.approx(0.01 * 2**-0.75)
    assert learning_rate(0.01, 100, 100) == pytest.approx(0.01 * 11**-0.75)


@pytest.mark.parametrize(
    ("name", "epochs", "lr"), [("visda", 10, 1e-3), ("domainnet", 50, 1e-2), ("office-home", 50, 1e-2)]
)
def test_the_recipe_of_a_data_set(name, epochs, lr):
    settings = PretrainSettings.for_dataset(name)
    assert (settings.epochs, settings.lr) == (epochs, lr)
    assert (settings.batch_size, settings.label_smoothing, settings.weight_decay) == (64, 0.1, 1e-3)
    assert (settings.momentum, settings.nesterov) == (0.9, True)


def test_given_settings_come_first_and_wrong_ones_are_refused():
    assert PretrainSettings.for_dataset("visda", epochs=2, lr=None).lr == 1e-3
    assert PretrainSettings.for_dataset("visda", epochs=2, lr=None).epochs == 2
    with pytest.raises(DriftgateError, match=r"epochs: .* greater than or equal to 1, got 0"):
        PretrainSettings.for_dataset("visda", epochs=0)
    with pytest.raises(DriftgateError, match="speed"):
        PretrainSettings.for_dataset("visda", speed=3)


def test_a_step_is_nesterov_sgd_on_the_smoothed_loss():
    """Two steps against the textbook, written out: v <- m v + (g + w p), p <- p - lr (g + w p + m v)."""
    model, twin = cnn_model(), cnn_model()
    settings = PretrainSettings(epochs=1, lr=0.05, batch_size=8, backbone_lr_scale=0.1)
    training = Training(model, settings, 2)
    samples = SourceSamples(toy_domain(8), SPLIT, input_size=(12, 12), batch_size=8, flip=False)
    batches = list(samples.batches(1))[:2]
    velocity = [torch.zeros_like(parameter) for parameter in twin.parameters()]
    backbone = {id(parameter) for parameter in twin.backbone.parameters()}
    twin.train()
    for step, batch in enumerate(batches):
        training.learn(batch)
        logits = twin(batch.images).logits
        target = 0.9 * F.one_hot(batch.labels, 3) + 0.1 / 3
        loss = -(target * logits.log_softmax(dim=1)).sum(dim=1).mean()
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        with torch.no_grad():
            for parameter, gradient, speed in zip(twin.parameters(), gradients, velocity, strict=True):
                pull = gradient + 1e-3 * parameter
                speed.mul_(0.9).add_(pull)
                lr = learning_rate(0.05, step, 2) * (0.1 if id(parameter) in backbone else 1.0)
                parameter.sub_(lr * (pull + 0.9 * speed))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, twin.get_parameter(name), rtol=1e-4, atol=1e-6, msg=name)


def test_a_pretrained_backbone_learns_slowly():
    fresh, trained = cnn_model(), cnn_model()
    trained.spec = trained.spec.model_copy(update={"pretrained": True})
    assert Training(fresh, SETTINGS, 10).scales == (1.0, 1.0)
    assert Training(trained, SETTINGS, 10).scales == (0.1, 1.0)
    chosen = SETTINGS.model_copy(update={"backbone_lr_scale": 0.5})
    assert Training(trained, chosen, 10).scales == (0.5, 1.0)


def test_a_backbone_may_keep_its_batch_norm_statistics():
    samples = SourceSamples(toy_domain(8), SPLIT, input_size=(12, 12), batch_size=8, flip=False)
    batch = next(iter(samples.batches(1)))
    for norm, moves in (("batch", True), ("running", False)):
        model = dropping_model()
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        Training(model, SETTINGS.model_copy(update={"backbone_norm": norm}), 10).learn(batch)
        moved = {name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])}
        assert any(name.startswith("backbone") for name in moved) == moves
        assert any(name.startswith("bottleneck") for name in moved), "the fresh bottleneck has no statistics to keep"
    assert PretrainSettings.for_dataset("pacs").backbone_norm == "running"


def test_it_learns_and_measures_on_what_it_held_out():
    model, told = cnn_model(), []
    settings = SETTINGS.model_copy(update={"held_out": 0.25})
    report = pretrain(model, toy_domain(), SPLIT, settings, on_step=told.append)
    assert report.held_out_accuracy is not None
    assert report.held_out_accuracy > 0.9
    assert (report.samples, report.held_out_samples) == (54, 18)
    assert report.steps == len(told) == 3 * (54 // 16)
    assert [item.step for item in told] == list(range(1, 10))
    assert told[-1].lr == pytest.approx(learning_rate(0.02, 8, 9))
    last = [item.loss for item in told[-3:]]
    assert report.loss == pytest.approx(sum(last) / 3)
    assert report.loss < told[0].loss
    assert report.seconds > 0
    assert not model.training
    assert report.skipped == []


def test_statistics_are_those_of_the_clean_training_images():
    model = cnn_model()
    domain = toy_domain()
    report = pretrain(model, domain, SPLIT, SETTINGS)
    assert report.held_out_accuracy is None
    known = domain.classes < 3
    with torch.no_grad():
        features = model.features(domain.images[known].float() / 255)
    labels = domain.classes[known]
    statistics = model.statistics
    assert statistics is not None
    for label in range(3):
        torch.testing.assert_close(
            statistics.prototypes[label], features[labels == label].mean(dim=0), rtol=1e-4, atol=1e-5
        )
    torch.testing.assert_close(statistics.feature_mean, features.mean(dim=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(statistics.feature_covariance, features.T.cov(), rtol=1e-3, atol=1e-5)


def test_training_is_seeded_and_private():
    first, again, other = dropping_model(), dropping_model(), dropping_model()
    before = torch.get_rng_state()
    pretrain(first, toy_domain(), SPLIT, SETTINGS)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)  # somebody else's draw
    pretrain(again, toy_domain(), SPLIT, SETTINGS)
    pretrain(other, toy_domain(), SPLIT, SETTINGS.model_copy(update={"seed": 1}))
    assert states_equal(first, again)
    assert not states_equal(first, other)


@pytest.mark.parametrize("make", [dropping_model, cnn_model])
@pytest.mark.parametrize("stop_at", [2, 4, 12])
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path, make, stop_at):
    path = tmp_path / "training.safetensors"

    def stop(step):
        if step.step == stop_at:
            raise Stop

    whole, stopped, resumed = make(), make(), make()
    report = pretrain(whole, toy_domain(), SPLIT, SETTINGS)
    with pytest.raises(Stop):
        pretrain(stopped, toy_domain(), SPLIT, SETTINGS, on_step=stop, checkpoint=path, checkpoint_every=0)
    steps = []
    again = pretrain(resumed, toy_domain(), SPLIT, SETTINGS, on_step=steps.append, checkpoint=path, checkpoint_every=0)
    assert steps[0].step == stop_at  # the checkpoint is written after ``on_step``
    assert states_equal(whole, resumed)
    assert (again.loss, again.accuracy, again.steps) == (report.loss, report.accuracy, report.steps)
    once_more = make()
    pretrain(once_more, toy_domain(), SPLIT, SETTINGS, checkpoint=path)  # nobody could save the model in between
    assert states_equal(whole, once_more)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "training.safetensors"

    def stop(step):
        if step.step == 3:
            raise Stop

    with pytest.raises(Stop):
        pretrain(cnn_model(), toy_domain(), SPLIT, SETTINGS, on_step=stop, checkpoint=path, checkpoint_every=0)
    for settings, per_class, message in (
        (SETTINGS.model_copy(update={"lr": 0.5}), 24, "settings: lr 0.5;"),
        (SETTINGS, 30, "data: samples 90;"),
    ):
        with pytest.raises(DriftgateError, match=message):
            pretrain(cnn_model(), toy_domain(per_class), SPLIT, settings, checkpoint=path)
    assert path.exists()


def test_a_split_with_other_classes_is_refused():
    with pytest.raises(DriftgateError, match="3 source classes, as the model has, but 2/2/0 has 4"):
        pretrain(cnn_model(), toy_domain(), ClassSplit.parse("2/2/0"), SETTINGS)


def test_divergence_is_told():
    with pytest.raises(DivergedError, match="lower the learning rate"):
        pretrain(cnn_model(), toy_domain(), SPLIT, SETTINGS.model_copy(update={"lr": 1e30, "weight_decay": 1.0}))


def test_accuracy_counts_every_sample():
    model = cnn_model()
    samples = SourceSamples(toy_domain(5), SPLIT, input_size=(12, 12), batch_size=4, flip=False)
    with torch.no_grad():
        right = sum(int((model(b.images).logits.argmax(1) == b.labels).sum()) for b in samples.clean_batches())
    assert accuracy_on(model, samples.clean_batches()) == right / 15
