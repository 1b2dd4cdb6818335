"""The optimiser and the precision as settings: by hand, saved and resumed, refused where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import images_of, small_model, state_of

import driftgate
from driftgate import DriftgateError
from driftgate.losses import mean_entropy
from driftgate.methods.gradient import GradientMethod
from driftgate.methods.loss_scale import FIRST, LARGEST, PATIENCE, LossScale
from driftgate.models.normalization import batch_statistics


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_steps_are_those_of_torch(optimizer: str) -> None:
    settings = {"optimizer": optimizer, "lr": 0.01, "weight_decay": 0.1, "momentum": 0.8, "max_grad_norm": 0.05}
    method, model = driftgate.create("tent", small_model(), **settings), small_model()
    norm = model.backbone[1]
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.AdamW
    plain = kind([norm.weight, norm.bias], lr=0.01, betas=(0.8, 0.999), weight_decay=0.1)
    for seed in range(4):
        method.step(images_of(16, seed))
        plain.zero_grad()
        with batch_statistics(model, 16):
            mean_entropy(model(images_of(16, seed)).logits).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_([norm.weight, norm.bias], 0.05)
        plain.step()
    assert torch.allclose(method.model.backbone[1].weight, norm.weight, atol=1e-6)
    assert not torch.allclose(norm.weight, small_model().backbone[1].weight, atol=1e-3)


@pytest.mark.parametrize("name", ["gmm", "tent", "owttt", "gmm-comet"])
def test_adam_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    settings = {"optimizer": "adamw", "weight_decay": 0.01, "teach_share": 1.0}
    whole, first = (driftgate.create(name, small_model(), **settings) for _ in range(2))
    for seed in range(3):
        whole.step(images_of(16, seed))
        first.step(images_of(16, seed))
    first.save(tmp_path / "x.safetensors")
    resumed = driftgate.load(tmp_path / "x.safetensors", model=small_model())
    for seed in range(3, 6):
        whole.step(images_of(16, seed))
        resumed.step(images_of(16, seed))
    one, two = state_of(whole), state_of(resumed)
    assert one.keys() == two.keys() and [key for key in one if not torch.equal(one[key], two[key])] == []
    assert any(key.startswith("optimizer.exp_avg_sq.") for key in one)


def test_tent_s_recipe_for_cifar() -> None:
    method = driftgate.create("tent", small_model(), preset="cifar")
    assert isinstance(method, GradientMethod) and isinstance(method.optimizer, torch.optim.Adam)
    assert {group["lr"] for group in method.optimizer.param_groups} == {0.001}


@pytest.mark.parametrize(("setting", "value"), [("optimizer", "lion"), ("lr", 1e300), ("precision", "float8")])
def test_what_cannot_be_is_refused_in_one_line(setting: str, value: object) -> None:
    with pytest.raises(DriftgateError, match=setting) as refused:
        driftgate.create("gmm", small_model(), **{setting: value})
    assert "\n" not in str(refused.value)


def test_float16_needs_cuda() -> None:
    with pytest.raises(DriftgateError, match="Expected a CUDA device for precision float16 but got cpu"):
        driftgate.create("gmm", small_model(), precision="float16")


@pytest.mark.parametrize("name", sorted(driftgate.available()))
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precision_learns_with_a_memory_of_full_precision(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This machine may only emulate it; that is slow, not wrong."""
    monkeypatch.setattr("driftgate.models.source_model.check_precision", lambda *arguments: None)
    method = driftgate.create(name, small_model(), precision=precision)
    full = driftgate.create(name, small_model())
    for seed in range(3):
        low, exact = method.step(images_of(16, seed)), full.step(images_of(16, seed))
        assert low.scores.dtype == torch.float32 and low.novelty.dtype == torch.float64
    assert torch.allclose(low.scores, exact.scores, atol=0.1)
    kinds, found = ({key: value.dtype for key, value in state_of(one).items()} for one in (full, method))
    assert all(found[key] == kind for key, kind in kinds.items() if key in found)  # a scaled gradient may overflow
    method.save(tmp_path / "x.safetensors")
    loaded = driftgate.load(tmp_path / "x.safetensors", model=small_model())
    one, two = state_of(method), state_of(loaded)
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_the_scale_of_the_loss_gives_way_and_comes_back() -> None:
    scale = LossScale()
    for _ in range(3):
        scale.follow(False)
    assert scale.value == FIRST / 8
    for _ in range(PATIENCE):
        scale.follow(True)
    assert scale.value == FIRST / 4
    other = LossScale()
    other.fill(scale.to_tensor())
    assert (other.value, other.good) == (scale.value, PATIENCE)
    for _ in range(40):
        other.follow(False)
    assert other.value == 1.0
    for _ in range(30 * PATIENCE):
        other.follow(True)
    assert other.value == LARGEST == 2.0**24
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 8.0)
    other.value = 4.0
    other.divide([weight, torch.nn.Parameter(torch.ones(1))])
    assert torch.equal(weight.grad, torch.full((2,), 2.0))
