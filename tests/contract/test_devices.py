"""Every method on another device than the CPU: the same numbers, everything in one place, few reads by the host.

By default on the strict test device of ``strict_device.py``; ``make test-device DEVICE=cuda`` runs this file and the
whole contract on a real one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import strict_device
import torch
from support import DEVICE, images_of, small_model, state_of
from torch import Tensor

import driftgate
from driftgate import DriftgateError, Method, Prediction
from driftgate.losses import contrastive_loss, kl_loss
from driftgate.methods.registry import check_device
from driftgate.methods.tent import Tent

OTHER = "strict" if DEVICE == "cpu" else DEVICE
HOST = {"rng", "steps", "by_batch", "target_classes"}
"""Numbers by which the host decides."""

everywhere = pytest.mark.parametrize("name", sorted(driftgate.available()))


def on_cpu_and_device(name: str) -> tuple[Method, Method]:
    return driftgate.create(name, small_model(), seed=1), driftgate.create(name, small_model(), seed=1, device=OTHER)


def assert_same_labels(one: Prediction, two: Prediction) -> None:
    assert torch.equal(one.labels.cpu(), two.labels.cpu())
    assert torch.equal(one.pseudo_labels.cpu(), two.pseudo_labels.cpu())
    assert torch.allclose(one.scores.cpu(), two.scores.cpu(), atol=1e-5)


def assert_close(one: Method, two: Method) -> None:
    first, second = state_of(one), state_of(two)
    assert first.keys() == second.keys()
    for key in first.keys() - {"rng"}:
        assert torch.allclose(first[key].cpu().double(), second[key].cpu().double(), rtol=1e-5, atol=1e-5), key


@everywhere
def test_a_seed_means_the_same_on_every_device(name: str) -> None:
    cpu, other = on_cpu_and_device(name)
    for seed in range(20):
        assert_same_labels(cpu.step(images_of(16, seed)), other.step(images_of(16, seed)))
    assert_close(cpu, other)
    places = {key: tensor.device.type for key, tensor in other.state_dict().items()}
    assert {key for key, place in places.items() if place == "cpu"} <= HOST
    assert other.device.type == torch.device(OTHER).type


@everywhere
def test_a_method_moves_at_any_time_and_predicts_purely(name: str) -> None:
    stays, moves = (driftgate.create(name, small_model(), seed=1) for _ in range(2))
    for seed, place in enumerate(["cpu", OTHER, "cpu"]):
        moves.to(place)
        for part in (2 * seed, 2 * seed + 1):
            images = images_of(16, part)
            before = state_of(moves)
            assert_same_labels(moves.predict(images), moves(images))
            after = state_of(moves)
            assert [key for key in before if not torch.equal(before[key], after[key])] == []
            assert_same_labels(stays.step(images), moves.step(images.to(place)))
    assert_close(stays, moves)


@everywhere
def test_saved_there_and_loaded_here_or_there(name: str, tmp_path: Path) -> None:
    method = driftgate.create(name, small_model(), seed=1, device=OTHER)
    for seed in range(2):
        method.step(images_of(16, seed))
    method.save(tmp_path / "x.safetensors")
    for place in ("cpu", OTHER):
        loaded = driftgate.load(tmp_path / "x.safetensors", model=small_model(), map_location=place)
        assert loaded.device.type == torch.device(place).type
        elsewhere = {key for key, held in loaded.state_dict().items() if held.device.type != loaded.device.type}
        assert elsewhere <= HOST, "statistics of the source and all"
        assert_close(method, loaded)
        assert_same_labels(method.predict(images_of(16, 5)), loaded.predict(images_of(16, 5)))


@everywhere
def test_a_bad_batch_is_refused_there_too(name: str) -> None:
    method = driftgate.create(name, small_model(), device=OTHER)
    with pytest.raises(DriftgateError, match="NaN"):
        method.step(images_of(4, 0).fill_(float("nan")).to(OTHER))
    assert method.steps == 0


class Forgetful(Tent):
    """A method with one forgotten ``.to``."""

    def _step(self, images: Tensor) -> Prediction:
        prediction = super()._step(images)
        torch.zeros(len(images)) + prediction.labels  # on the CPU, whatever the device
        return prediction


def test_a_forgotten_move_is_noticed() -> None:
    method = Forgetful(small_model(), Tent.Settings())
    method.step(images_of(4, 0))
    method.to(OTHER)
    with pytest.raises(RuntimeError, match="device"):
        method.step(images_of(4, 0))


@pytest.mark.skipif(OTHER != "strict", reason="reads are counted on the strict device alone")
@pytest.mark.parametrize("settings", [{}, {"batch_norm": "batch"}, {"covariance": "tied"}, {"gate": "frozen"}])
def test_gmm_reads_at_most_three_times_a_step(settings: dict[str, str]) -> None:
    """The batch's range, if it lies there already; what the step must know of the batch; the length of the gradient."""
    method = driftgate.create("gmm", small_model(), device=OTHER, **settings)
    method.step(images_of(32, 99))  # once, the first batch tells which statistics are steadier: two reads more
    for seed in range(15):
        strict_device.reads.clear()
        method.step(images_of(32, seed))
        assert strict_device.reads.total() <= 2, strict_device.reads
        strict_device.reads.clear()
        method.step(images_of(32, 100 + seed).to(OTHER))
        assert strict_device.reads.total() <= 3, strict_device.reads


@pytest.mark.skipif(OTHER != "strict", reason="reads are counted on the strict device alone")
def test_the_losses_read_nothing() -> None:
    reduced = torch.randn(12, 4).to(OTHER).requires_grad_()
    labels = torch.tensor([0, 1, -1, -2, 0, 2] * 2).to(OTHER)
    means, logits = torch.randn(3, 4).to(OTHER), torch.randn(12, 3).to(OTHER)
    strict_device.reads.clear()
    for self_pairs in (False, True):
        loss = contrastive_loss(reduced, labels, means, self_pairs=self_pairs, reduction="mean")
        (loss + kl_loss(logits, labels, form="cross_entropy")).backward()
    assert not strict_device.reads


@pytest.mark.skipif(OTHER != "strict", reason="a device without float64 is played by the strict one")
@everywhere
def test_where_there_is_no_float64_the_cpu_lends_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftgate.state.WITHOUT_FLOAT64", {"strict"})
    cpu = driftgate.create(name, small_model(), seed=1)
    with strict_device.without_float64():
        other = driftgate.create(name, small_model(), seed=1, device=OTHER)
        for seed in range(4):
            assert_same_labels(cpu.step(images_of(16, seed)), other.step(images_of(16, seed)))
    assert_close(cpu, other)


def test_a_device_that_is_not_there_is_refused() -> None:
    for device in ("cuda:99", "nowhere", "meta"):
        with pytest.raises(DriftgateError, match="Expected a device"):
            driftgate.create("gmm", small_model(), device=device)
    assert check_device("cpu") == torch.device("cpu")


@pytest.mark.skipif(OTHER != "strict", reason="about the strict device itself")
def test_the_strict_device_is_as_strict_as_a_gpu() -> None:
    there, here = torch.ones(3).to("strict"), torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    with pytest.raises((TypeError, RuntimeError)):
        there.numpy()
    assert torch.equal((there * torch.tensor(2.0)).cpu(), 2 * here)
    strict_device.reads.clear()
    there.sum().item(), there[there > 0], there.cpu(), bool(there.any())
    assert strict_device.reads.total() == 4
    with strict_device.without_float64(), pytest.raises(TypeError, match="float64"):
        there.double()
