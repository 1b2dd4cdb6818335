"""A second set of weights through the same layers: equal to a really copied model, and averaged by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import images_of, small_model
from torch import Tensor

from driftgate import SourceModel
from driftgate.memory import MeanTeacher, ModelCopy
from driftgate.models.normalization import batch_statistics

CLASSES = ["one", "two", "three"]


def network(seed: int = 0) -> SourceModel:
    """A small network known by name, so that it can be copied for real."""
    return SourceModel.build("cnn", CLASSES, seed=seed, feature_dim=16)


def pictures(model: SourceModel, count: int = 6, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, *model.spec.input_size, generator=torch.Generator().manual_seed(seed))


def disturb(model: SourceModel, seed: int) -> None:
    """Move all parameters, as a step of the optimiser does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def test_a_copy_answers_as_the_model_did_whatever_the_model_becomes() -> None:
    model = network()
    real, copy = model.clone(), ModelCopy(model)
    images = pictures(model)
    disturb(model, 1)
    with torch.no_grad():
        expected, now = real(images), model(images)
    found = copy.forward(images)
    assert torch.equal(found.features, expected.features) and torch.equal(found.logits, expected.logits)
    assert not torch.allclose(found.logits, now.logits, atol=1e-3)
    assert not found.features.requires_grad and not found.logits.requires_grad


def test_the_model_is_left_alone_by_a_forward_pass_of_the_copy() -> None:
    model = network()
    teacher = MeanTeacher(model, 0.5)
    disturb(model, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        answer = model(pictures(model))
    teacher.forward(pictures(model))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(answer.logits, model(pictures(model)).logits)


def test_three_updates_by_hand() -> None:
    model, momentum = network(), 0.9
    teacher = MeanTeacher(model, momentum)
    expected = {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}
    for seed in range(3):
        disturb(model, seed)
        teacher.update()
        for name, parameter in model.named_parameters():
            expected[name] = momentum * expected[name] + (1 - momentum) * parameter.detach().double()
    assert any("original" in name for name in expected)  # norm and direction of the weight-normed classifier
    for name, value in expected.items():
        assert torch.allclose(teacher.tensors[name].double(), value, atol=1e-6), name
    # Weights that were averaged are those of a network that has them.
    real = model.clone()
    real.load_state_dict({**model.state_dict(), **teacher.tensors})
    with torch.no_grad():
        assert torch.equal(real(pictures(model)).logits, teacher.forward(pictures(model)).logits)


@pytest.mark.parametrize(("momentum", "same_as"), [(1.0, "source"), (0.0, "student")])
def test_momentum_one_never_moves_and_zero_follows_at_once(momentum: float, same_as: str) -> None:
    model = network()
    source = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    teacher = MeanTeacher(model, momentum)
    disturb(model, 3)
    teacher.update()
    expected = source if same_as == "source" else dict(model.named_parameters())
    assert all(torch.equal(teacher.tensors[name], value) for name, value in expected.items())


def test_statistics_of_batch_norm_stay_the_source_s() -> None:
    model = network()
    real, teacher = model.clone(), MeanTeacher(model, 0.5)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    images = pictures(model, 16)
    with batch_statistics(model, len(images)), torch.no_grad():
        model(images)
    moved = [name for name, buffer in model.named_buffers() if not torch.equal(before[name], buffer)]
    assert any("running_mean" in name for name in moved)
    teacher.update()
    assert all(torch.equal(teacher.tensors[name], before[name]) for name in moved)
    with torch.no_grad():
        assert torch.equal(teacher.forward(images).logits, real(images).logits)


def test_a_copy_may_normalise_by_the_batch_and_keeps_its_statistics() -> None:
    model = network()
    real, copy = model.clone(), ModelCopy(model)
    images = pictures(model, 16)
    before = {name: tensor.clone() for name, tensor in copy.state_dict().items()}
    disturb(model, 1)
    with batch_statistics(real, len(images)), torch.no_grad():
        expected = real(images)
    found = copy.forward(images, by_batch=True)
    assert torch.equal(found.features, expected.features) and torch.equal(found.logits, expected.logits)
    assert not torch.allclose(found.features, copy.forward(images).features, atol=1e-3)
    assert all(torch.equal(before[name], tensor) for name, tensor in copy.state_dict().items())
    assert not any(layer.training for layer in model.modules())


def test_save_and_load() -> None:
    model = network()
    teacher = MeanTeacher(model, 0.5)
    disturb(model, 1)
    teacher.update()
    state = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    other = MeanTeacher(network(seed=5), 0.5)
    other.load_state_dict(state)
    assert torch.equal(other.forward(pictures(model)).logits, teacher.forward(pictures(model)).logits)
    # What was loaded is a copy: the next update leaves the saved state as it is.
    disturb(other.model, 2)
    other.update()
    assert all(torch.equal(state[name], tensor) for name, tensor in teacher.state_dict().items())


@pytest.mark.parametrize("make", [network, small_model])
def test_bytes_are_those_of_the_network(make: Callable[[], SourceModel]) -> None:
    model = make()
    assert model.num_bytes == ModelCopy(model).num_bytes == MeanTeacher(model).num_bytes


def test_it_works_around_a_backbone_of_the_user_s_own() -> None:
    """Dropout, batch norm and statistics of the source: nothing there that a copy by name could be made of."""
    model = small_model()
    copy = ModelCopy(model)
    with torch.no_grad():
        expected = model(images_of(4, 0))
    disturb(model, 0)
    found = copy.forward(images_of(4, 0))
    assert torch.equal(found.features, expected.features) and torch.equal(found.logits, expected.logits)


def test_no_gradient_goes_back_to_the_images() -> None:
    copy, images = ModelCopy(small_model()), images_of(4, 0).requires_grad_()
    assert not any(part.requires_grad for part in copy.forward(images))
