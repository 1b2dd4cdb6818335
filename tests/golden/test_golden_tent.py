"""Tent against the numbers of its public code, which lets batch norm over pictures learn alone (``_bn2d``), and of the
same code with the bottleneck's batch norm learning too (``_bn1d``)."""

from __future__ import annotations

import pytest
import torch
from golden_data import Case, case, case_names, distance
from torch import Tensor

import driftgate
from driftgate.losses import mean_entropy
from driftgate.methods.base import Method

BOTTLENECK = ("bottleneck.1.weight", "bottleneck.1.bias")


@pytest.mark.parametrize("name", case_names("tent", "entropy"))
def test_entropy_and_its_gradient(name: str) -> None:
    golden = case("tent", name)
    logits = golden.inputs["logits"].clone().requires_grad_()
    loss = mean_entropy(logits)
    assert distance(loss, golden.outputs["loss"]) < 1e-5
    assert distance(torch.autograd.grad(loss, logits)[0], golden.outputs["gradient"]) < 1e-5


def make(golden: Case, adapt_layers: str) -> Method:
    chosen = {key: golden.settings[key] for key in ("lr", "threshold")}
    return driftgate.create("tent", golden.model(), adapt_layers=adapt_layers, **chosen)


def learned(golden: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """How far each parameter has moved; the statistics of batch norm are left out, for the public code keeps none."""
    start = golden.by_name(golden.inputs["weights"])
    return {name: tensors[name].detach() - start[name] for name in start if "running" not in name}


def largest(moves: dict[str, Tensor]) -> float:
    return max(float(move.abs().max()) for move in moves.values())


@pytest.mark.parametrize("name", case_names("tent", "step"))
def test_whole_steps(name: str) -> None:
    golden = case("tent", name)
    method = make(golden, "norm2d" if name.endswith("_bn2d") else "norm")
    for step, images in enumerate(golden.batches):
        answer = method.step(images)
        assert torch.equal(answer.labels, golden.outputs["predictions"][step])
        assert distance(answer.scores, golden.outputs["logits"][step].softmax(dim=1)) < 1e-5
        expected = golden.weights_after(step + 1)
        if expected is None:
            continue
        ours, theirs = (learned(golden, tensors) for tensors in (method.model.state_dict(), golden.by_name(expected)))
        apart = {layer: ours[layer] - theirs[layer] for layer in theirs}
        assert largest(apart) < 1e-3 * largest(theirs)
    assert golden.weights_after(len(golden.batches)) is not None


def test_the_public_way_is_the_default() -> None:
    assert driftgate.create("tent", case("tent", "step_C5_N32_bn2d").model()).settings.adapt_layers == "norm2d"


@pytest.mark.parametrize("size", ["C5_N32", "C9_N50"])
def test_the_two_ways_differ_in_the_bottleneck(size: str) -> None:
    """In the public way its batch norm stays; otherwise it moves, and farther than any other layer does."""
    moves = {}
    for way in ("bn2d", "bn1d"):
        golden = case("tent", f"step_{size}_{way}")
        moves[way] = learned(golden, golden.by_name(golden.outputs["weights_last"]))
    assert all(not moves["bn2d"][name].any() for name in BOTTLENECK)
    others = {name: move for name, move in moves["bn1d"].items() if name not in BOTTLENECK}
    assert largest({name: moves["bn1d"][name] for name in BOTTLENECK}) > largest(others) > 0.0
