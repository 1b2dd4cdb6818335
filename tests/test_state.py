"""What survives a batch is a module: it moves, clones, saves, counts its bytes, and refuses what is broken."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support import images_of, small_model, state_of
from torch import Tensor, nn

import driftgate
from driftgate import DriftgateError
from driftgate.memory import MeanTeacher, RingQueue, RunningPrototypes, StreamingGMM
from driftgate.memory.running_gaussian import RunningGaussian
from driftgate.novelty.calm import CalmPast
from driftgate.novelty.gate import FrozenGate, MixtureGate, TrackingGate
from driftgate.novelty.share import ShareGate
from driftgate.state import State, exact

EARLIER = Path(__file__).parent / "methods" / "earlier"


def states() -> dict[str, State]:
    generator = torch.Generator().manual_seed(0)
    mixture = StreamingGMM(3, 4)
    mixture.update(torch.randn(20, 4, generator=generator), torch.rand(20, 3, generator=generator))
    queue = RingQueue(5, features=2, labels=None)
    queue.push(features=torch.rand(3, 2), labels=torch.arange(3.0))
    gaussian, prototypes = RunningGaussian(4), RunningPrototypes(3, 4)
    gaussian.update(torch.rand(6, 4))
    prototypes.update(torch.rand(6, 4), torch.tensor([0, 1, 2, 0, -1, 1]))
    gates = [FrozenGate(), TrackingGate(), MixtureGate(window=40), ShareGate((0.3, 0.3), window=40)]
    for gate in gates:
        gate.update(torch.rand(32, dtype=torch.float64))
    plain = [mixture, queue, gaussian, prototypes, CalmPast(), MeanTeacher(small_model()), *gates]
    return {type(state).__name__: state for state in plain}


@pytest.mark.parametrize("name", states())
def test_a_state_is_a_module(name: str) -> None:
    state, fresh = states()[name], states()[name]
    assert isinstance(state, nn.Module) and state.num_bytes == sum(
        value.numel() * value.element_size() for value in state.state_dict().values()
    )
    assert f"{state.num_bytes} bytes" in repr(state) and name in repr(state)
    for buffer in fresh.buffers():
        buffer.zero_()
    fresh.load_state_dict(state.state_dict())
    for key, value in fresh.state_dict().items():
        assert torch.equal(value, state.state_dict()[key])


@pytest.mark.parametrize("name", states())
def test_a_clone_and_a_loaded_state_have_nothing_in_common_with_the_first(name: str) -> None:
    state = states()[name]
    before = {key: value.clone() for key, value in state.state_dict().items()}
    twin = state.clone()
    assert type(twin) is type(state) and repr(twin) == repr(state)
    if not isinstance(state, MeanTeacher):  # whose copies are its own at once
        twin.load_state_dict({key: value + 1 for key, value in before.items()})
        assert all(torch.equal(value, before[key]) for key, value in state.state_dict().items())


@pytest.mark.parametrize("name", states())
def test_another_dtype_moves_no_digit(name: str) -> None:
    state = states()[name]
    if isinstance(state, MeanTeacher):
        return  # its weights are a network's; a method refuses to cast them
    kinds = {key: value.dtype for key, value in state.state_dict().items()}
    before = {key: value.clone() for key, value in state.state_dict().items()}
    for cast in (state.half, state.double, state.bfloat16):
        cast()
        assert {key: value.dtype for key, value in state.state_dict().items()} == kinds
        assert all(torch.equal(value, before[key]) for key, value in state.state_dict().items())


def test_exact_numbers_stay_on_the_cpu_beside_a_device_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftgate.state.WITHOUT_FLOAT64", {"meta"})
    mixture, queue = StreamingGMM(3, 4).to("meta"), RingQueue(4, score=None).to("meta")
    for state in (CalmPast(), FrozenGate(), TrackingGate(), MixtureGate(), ShareGate((0.3, 0.3))):
        assert {buffer.device.type for buffer in state.to("meta").buffers(recurse=False)} <= {"cpu"}
    assert mixture.means.device.type == "cpu" and queue.columns["score"].device.type == "meta"
    assert exact(torch.ones(2)).dtype == torch.float64


SPOILED: dict[str, tuple[str, Tensor, str]] = {
    "a NaN gate": ("gate.quantiles", torch.tensor([0.1, math.nan], dtype=torch.float64), "finite numbers in gate"),
    "negative weights": ("mixture.weights", -torch.ones(5), "mixture.weights of at least 0"),
    "negative variance": ("calm.variance", -torch.ones(4, dtype=torch.float64), "calm.variance of at least 0"),
    "a negative counter": ("gate.batches", torch.tensor(-3), "gate.batches of at least 0"),
    "negative steps": ("steps", torch.tensor(-1), "steps of at least 0"),
    "NaN weights": ("model.classifier.bias", torch.full((5,), math.nan), "finite numbers in model.classifier"),
    "NaN momentum": ("optimizer.momentum_buffer.reducer.bias", torch.full((16,), math.inf), "finite numbers in opt"),
    "another shape": ("mixture.means", torch.zeros(2, 2), "mixture.means of shape"),
    "an unknown tensor": ("mixture.more", torch.zeros(2), "mixture.more"),
    "an unknown parameter": ("optimizer.momentum_buffer.nobody", torch.zeros(2), "nobody"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_broken_state_is_refused(kind: str) -> None:
    key, value, message = SPOILED[kind]
    method = driftgate.create("gmm", small_model())
    method.step(images_of(16, 0))
    with pytest.raises(DriftgateError, match=message):
        method.load_state_dict({**method.state_dict(), key: value})


@pytest.mark.parametrize("key", ["rng", "gate.quantiles", "mixture.means", "model.classifier.bias", "by_batch"])
def test_a_state_with_something_missing_is_refused(key: str) -> None:
    method = driftgate.create("gmm", small_model())
    state = {name: value for name, value in method.state_dict().items() if name != key}
    with pytest.raises(DriftgateError, match=key):
        method.load_state_dict(state)


def test_a_method_is_a_module_around_the_very_network() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    model = driftgate.wrap(network, [f"class {index}" for index in range(5)], input_size=(8, 8))
    method = driftgate.create("gmm", model)
    assert isinstance(method, nn.Module) and method.model is model and method.network() is network
    images = images_of(16, 0)
    assert torch.equal(method(images).labels, method.predict(images).labels)
    method.step(images)
    assert method.network() is network
    assert repr(method).startswith("gmm on cpu, 1 steps") and "mixture: StreamingGMM(means (5, 64)" in repr(method)
    other = driftgate.create("gmm", driftgate.wrap(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), input_size=(8, 8)))
    other.load_state_dict(method.state_dict())
    first, second = state_of(method), state_of(other)
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_a_method_is_not_cast() -> None:
    method = driftgate.create("gmm", small_model())
    for cast in (method.half, method.double, lambda: method.to(torch.bfloat16)):
        with pytest.raises(DriftgateError, match="precision="):
            cast()
    assert next(method.parameters()).dtype == torch.float32


@pytest.mark.parametrize("path", sorted(EARLIER.glob("*.safetensors")), ids=lambda path: path.stem)
def test_files_from_before_methods_were_modules_still_load(path: Path) -> None:
    method = driftgate.load(path, model=small_model())
    again = driftgate.create(method.name, small_model(), **method.settings.model_dump())
    for seed in range(3):
        again.step(images_of(16, seed))
    first, second = state_of(method), state_of(again)
    assert first.keys() == second.keys()
    assert [key for key in first if not torch.allclose(first[key].double(), second[key].double(), atol=1e-4)] == []
