"""The promises every registered method keeps; a new method is picked up by the registry.

A setting that changes what a method keeps between batches stands beside its default, as a variant of its own.
"""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE, images_of, residual_model, small_model, state_of

import driftgate
from driftgate import UNKNOWN, UNLABELED, DriftgateError, Method, Prediction
from driftgate.methods.gradient import GradientMethod
from driftgate.models.passes import repeated_blocks
from driftgate.models.statistics import SourceStatistics
from driftgate.state import State, bytes_of

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in sorted(driftgate.available())},
    # By default it teaches a pretrained network nothing.
    "gmm, learning": ("gmm", {"teach_share": 1.0}),
    "gmm, tied": ("gmm", {"covariance": "tied", "teach_share": 1.0}),
    "gmm-comet, tied": ("gmm-comet", {"covariance": "tied"}),
}

pytestmark = pytest.mark.parametrize("name", VARIANTS)


def make(variant: str, model: driftgate.SourceModel | None = None, **settings: object) -> Method:
    name, own = VARIANTS[variant]
    return driftgate.create(name, model or small_model(), device=DEVICE, **(own | settings))


def assert_same(one: Prediction, two: Prediction) -> None:
    assert torch.equal(one.labels, two.labels)
    assert torch.equal(one.scores, two.scores)
    assert torch.equal(one.novelty, two.novelty)
    assert torch.equal(one.pseudo_labels, two.pseudo_labels)
    assert one.thresholds == two.thresholds


def assert_same_state(one: Method, two: Method) -> None:
    first, second = state_of(one), state_of(two)
    assert first.keys() == second.keys()
    different = [key for key in first if not torch.equal(first[key], second[key])]
    assert different == []


def assert_sound(prediction: Prediction, size: int, num_classes: int) -> None:
    assert prediction.labels.shape == prediction.novelty.shape == prediction.pseudo_labels.shape == (size,)
    assert prediction.scores.shape == (size, num_classes)
    assert prediction.scores.isfinite().all() and prediction.novelty.isfinite().all()
    assert torch.allclose(prediction.scores.sum(dim=1), torch.ones(size, device=prediction.scores.device), atol=1e-5)
    assert ((prediction.labels >= UNKNOWN) & (prediction.labels < num_classes)).all()
    assert ((prediction.pseudo_labels >= UNLABELED) & (prediction.pseudo_labels < num_classes)).all()
    assert not any(math.isnan(value) for value in prediction.thresholds)
    assert not prediction.scores.requires_grad and not prediction.novelty.requires_grad


def test_predict_changes_nothing(name: str) -> None:
    method = make(name)
    for seed in range(3):
        method.step(images_of(16, seed))
    before, global_rng = state_of(method), torch.get_rng_state()
    method.predict(images_of(16, 9))
    after = state_of(method)
    assert [key for key in before if not torch.equal(before[key], after[key])] == []
    assert torch.equal(global_rng, torch.get_rng_state())
    assert not any(module.training for module in method.model.modules())


def test_step_answers_what_predict_said(name: str) -> None:
    method = make(name)
    for seed in range(3):
        images = images_of(12, seed)
        assert_same(method.predict(images), method.step(images))


def test_step_leaves_the_global_random_state_alone(name: str) -> None:
    method = make(name)
    before = torch.get_rng_state()
    method.step(images_of(8, 0))
    assert torch.equal(before, torch.get_rng_state())


def test_same_seed_same_run(name: str) -> None:
    one, two = make(name, seed=3), make(name, seed=3)
    for seed in range(4):
        assert_same(one.step(images_of(10, seed)), two.step(images_of(10, seed)))
    assert_same_state(one, two)


def test_stopped_and_resumed_equals_uninterrupted(name: str, tmp_path: object) -> None:
    whole, first = make(name, seed=1), make(name, seed=1)
    for seed in range(3):
        whole.step(images_of(16, seed))
        first.step(images_of(16, seed))
    path = f"{tmp_path}/method.safetensors"
    first.save(path)
    resumed = driftgate.load(path, model=small_model(), device=DEVICE)
    assert resumed.steps == 3
    assert_same_state(whole, resumed)
    for seed in range(3, 7):
        assert_same(whole.step(images_of(16, seed)), resumed.step(images_of(16, seed)))
    assert_same_state(whole, resumed)


def test_a_backbone_known_by_name_needs_no_model_to_load(name: str, tmp_path: object) -> None:
    model = driftgate.SourceModel.build("cnn", ["a", "b", "c"], input_size=(16, 16))
    size = model.spec.feature_dim
    model.statistics = SourceStatistics(torch.randn(3, size), torch.zeros(size), torch.eye(size))
    method = make(name, model)
    images = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    method.step(images)
    path = f"{tmp_path}/method.safetensors"
    method.save(path)
    assert_same(driftgate.load(path, device=DEVICE).step(images), method.step(images))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 33])
def test_any_batch_size(name: str, size: int) -> None:
    method = make(name)
    for seed in range(4):
        assert_sound(method.step(images_of(size, seed)), size, method.model.num_classes)


def test_batch_sizes_may_change(name: str) -> None:
    method = make(name)
    for seed, size in enumerate([20, 1, 5, 64, 2, 1]):
        assert_sound(method.step(images_of(size, seed)), size, method.model.num_classes)
    assert all(tensor.isfinite().all() for tensor in state_of(method).values() if tensor.is_floating_point())


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_constant_images(name: str, value: float) -> None:
    method = make(name)
    images = torch.full((9, 3, 8, 8), value)
    for _ in range(4):
        assert_sound(method.step(images), 9, method.model.num_classes)
    assert all(tensor.isfinite().all() for tensor in state_of(method).values() if tensor.is_floating_point())


def test_duplicate_images(name: str) -> None:
    method = make(name)
    images = images_of(2, 0).repeat(8, 1, 1, 1)
    for _ in range(4):
        assert_sound(method.step(images), 16, method.model.num_classes)
    assert all(tensor.isfinite().all() for tensor in state_of(method).values() if tensor.is_floating_point())


BAD_BATCHES = {
    "NaN": (lambda good: good.clone().index_fill_(0, torch.tensor([1]), math.nan), "NaN"),
    "infinity": (lambda good: good.clone().index_fill_(0, torch.tensor([1]), math.inf), "infinity"),
    "channels last": (lambda good: good.permute(0, 2, 3, 1), "move channels first"),
    "no batch": (lambda good: good[0], "batch of RGB"),
    "two channels": (lambda good: good[:, :2], "batch of RGB"),
    "size": (lambda good: good[:, :, :7], "resize"),
    "empty": (lambda good: good[:0], "empty batch"),
    "integers": (lambda good: (good * 255).to(torch.int64), "as uint8, or as floats"),
    "not scaled": (lambda good: good * 255, r"pixels in \[0, 1\]"),
    "words": (lambda good: ["cat", "dog"], "got str; pass a tensor"),
    "sparse": (lambda good: good.to_sparse(), "to_dense"),
    "meta": (lambda good: good.to("meta"), "holds no values"),
    "nested": (lambda good: torch.nested.nested_tensor([good[0], good[1]]), "nested tensor"),
    "float8": (lambda good: good.to(torch.float8_e4m3fn), "pass float32 or uint8"),
    "complex": (lambda good: good.to(torch.complex64), "pass float32 or uint8"),
}


@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_bad_batch_is_refused_and_changes_nothing(name: str, kind: str) -> None:
    spoil, message = BAD_BATCHES[kind]
    method = make(name)
    method.step(images_of(8, 0))
    before = state_of(method)
    for call in (method.step, method.predict):
        with pytest.raises(DriftgateError, match=message):
            call(spoil(images_of(8, 1)))
    after = state_of(method)
    assert [key for key in before if not torch.equal(before[key], after[key])] == []


def test_unknown_setting_is_refused(name: str) -> None:
    with pytest.raises(DriftgateError, match="no setting 'learning_rate', expected one of"):
        make(name, learning_rate=1.0)


def test_memory_is_bounded_and_told(name: str) -> None:
    method = make(name)
    method.step(images_of(32, 0))
    bytes_after_one = method.num_bytes
    for seed in range(1, 30):
        method.step(images_of(32, seed))
    assert method.num_bytes == bytes_after_one
    networks = [name for name, part in method.named_children() if not isinstance(part, State)]
    beside = (*(f"{name}." for name in networks), "optimizer.", "rng", "steps")
    kept = [tensor for key, tensor in method.state_dict().items() if not key.startswith(beside)]
    assert method.num_bytes == bytes_of(kept)


def test_the_caller_s_gradient_mode_and_precision_do_not_matter(name: str) -> None:
    expected = make(name).step(images_of(8, 0))
    for mode in (torch.no_grad(), torch.inference_mode()):
        method = make(name)
        with mode:
            images = images_of(8, 0)
            assert_same(method.predict(images), expected)
            assert_same(method.step(images), expected)
    assert_same(expected, make(name).step(images_of(8, 0).double()))
    images = images_of(8, 0).requires_grad_()
    assert_same(expected, make(name).step(images))
    assert images.grad is None


def test_the_caller_s_training_mode_does_not_matter(name: str) -> None:
    one, two = make(name), make(name)
    for seed in range(2):
        images = images_of(20, seed)
        two.model.train()
        assert_same(one.predict(images), two.predict(images))
        two.model.train()
        assert_same(one.step(images), two.step(images))
    assert_same_state(one, two)


def test_one_and_two_classes(name: str) -> None:
    for num_classes in (1, 2):
        method = make(name, small_model(num_classes=num_classes))
        for seed in range(3):
            assert_sound(method.step(images_of(6, seed)), 6, num_classes)


def test_memory_modes_learn_the_same(name: str) -> None:
    """View by view and with activations computed again: the same weights, statistics and memory to rounding."""
    if not issubclass(driftgate.available()[VARIANTS[name][0]], GradientMethod):
        with pytest.raises(DriftgateError, match="no setting 'memory'"):
            make(name, memory="low")
        return
    always = {"teach_share": 1.0, "lr": 0.01}
    expected, *others = (make(name, sure_model(), **always, memory=memory) for memory in ("fast", "balanced", "low"))
    assert repeated_blocks(expected.model.backbone)  # or "low" would have nothing to compute again
    for seed in range(20):
        for method in (expected, *others):
            method.step(images_of(16, seed))
    fast = state_of(expected)
    learned = {key: value for key, value in sure_model().named_parameters() if value.requires_grad}
    assert any(not torch.allclose(fast[f"model.{key}"], value.to(DEVICE), atol=1e-5) for key, value in learned.items())
    for method in others:
        for key, value in state_of(method).items():
            assert torch.allclose(value.double(), fast[key].double(), rtol=1e-4, atol=1e-6), key


def sure_model() -> driftgate.SourceModel:
    """Partly sure and partly not: a network that doubts everything teaches some methods nothing."""
    model = residual_model()
    with torch.no_grad():
        model.classifier.weight = model.classifier.weight * (4.0 / model(images_of(16, 0)).logits.std())
    return model


LEARNS_FIRST = {"adacontrast", "owttt"}
"""They answer only once they have learned."""


def test_the_prediction_is_told_once_and_before_the_weights_move(name: str) -> None:
    method, plain = make(name), make(name)
    images = images_of(20, seed=5)
    before = {key: value.clone() for key, value in method.model.named_parameters()}
    told: list[Prediction] = []
    moved: list[bool] = []

    def listen(prediction: Prediction) -> None:
        told.append(prediction)
        moved.append(any(not torch.equal(before[key], value) for key, value in method.model.named_parameters()))

    returned = method.step(images, on_prediction=listen)
    assert len(told) == 1
    assert_same(told[0], returned)
    assert_same(plain.step(images), returned)
    assert_same_state(method, plain)
    assert VARIANTS[name][0] in LEARNS_FIRST or moved == [False]
    method.step(images)
    assert len(told) == 1


def test_whoever_waited_for_a_refused_batch_is_not_told_of_the_next(name: str) -> None:
    method = make(name)
    told: list[Prediction] = []
    with pytest.raises(DriftgateError):
        method.step(torch.full((4, 3, 8, 8), math.nan), on_prediction=told.append)
    method.step(images_of(20, seed=5))
    assert told == []


def test_a_step_tells_what_it_minimised(name: str) -> None:
    always = {"teach_share": 1.0} if VARIANTS[name][0] == "gmm" else {}
    method = make(name, sure_model(), seed=1, **always)
    told = [method.step(images_of(20, seed)).losses for seed in range(3)]
    learns = isinstance(method, GradientMethod)
    assert any(told) == learns, "a method that learns by gradient names its losses, and no other"
    for losses in told:
        assert all(value.ndim == 0 and not value.requires_grad and value.isfinite() for value in losses.values())
    assert method.predict(images_of(20, 9)).losses == {}
