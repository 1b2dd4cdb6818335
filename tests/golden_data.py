"""Reads tests/golden: inputs, and what the public code of a method answered to them (see the README there)."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from driftgate import SourceModel
from driftgate.models.statistics import SourceStatistics

FOLDER = Path(__file__).parent / "golden"


class GoldenFile:
    """All cases of one method: their tensors, and what the file says about itself."""

    def __init__(self, method: str) -> None:
        with safe_open(FOLDER / f"{method}.safetensors", "pt") as file:
            about = file.metadata()
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        for name, same in json.loads(about.get("aliases", "{}")).items():  # equal tensors are stored once
            self.tensors[name] = self.tensors[same]
        self.cases: dict[str, Any] = json.loads(about["cases"])
        self.weights_order: dict[str, list[tuple[str, list[int]]]] = json.loads(about["weights_order"])


class Case:
    """One case: ``inputs`` and ``outputs`` by name, its ``settings`` and the difference from ours known to the maker.

    Labels come as int64: class, ``UNKNOWN`` or ``UNLABELED``.
    """

    def __init__(self, file: GoldenFile, name: str) -> None:
        self.name, self._order = name, file.weights_order
        self.settings: dict[str, Any] = file.cases[name]["settings"]
        self.differs: str = file.cases[name]["differs"]
        self.inputs, self.outputs = (self._side(file, side) for side in ("in", "out"))

    def _side(self, file: GoldenFile, side: str) -> dict[str, Tensor]:
        prefix = f"{self.name}/{side}/"
        found = {name.removeprefix(prefix): value for name, value in file.tensors.items() if name.startswith(prefix)}
        return {name: v.long() if v.dtype in (torch.int8, torch.int16) else v for name, v in found.items()}

    @property
    def batches(self) -> list[Tensor]:
        """The pictures of each step, (N, 3, 6, 6) in [0, 1]."""
        return [pictures.float() / 255 for pictures in self.inputs["images"]]

    @property
    def num_classes(self) -> int:
        """C, told by the length of the weight vector."""
        sizes = {sum(math.prod(shape) for _, shape in order): int(number) for number, order in self._order.items()}
        return sizes[len(self.inputs["weights"])]

    def model(self) -> SourceModel:
        """The small network with the weights of the case, and its source statistics where the case has some."""
        names = [f"class {index}" for index in range(self.num_classes)]
        model = SourceModel.untrained(small_backbone(), class_names=names, input_size=(6, 6), feature_dim=16)
        model.load_state_dict(self.by_name(self.inputs["weights"]), strict=False)
        statistics = ("prototypes", "feature_mean", "feature_covariance")
        if "prototypes" in self.inputs:
            model.statistics = SourceStatistics(*(self.inputs.get(name) for name in statistics))
        return model.eval()

    def weights_after(self, step: int) -> Tensor | None:
        """The weight vector after that step, counted from 1; None where the case has none. After the last it has."""
        if step == len(self.inputs["images"]) and "weights_last" in self.outputs:
            return self.outputs["weights_last"]
        return self.outputs.get(f"weights_{step}")

    def vector(self, tensors: dict[str, Tensor]) -> Tensor:
        """Weights and statistics by name (a ``state_dict``) as one vector, in the order of the file."""
        return torch.cat([tensors[name].detach().reshape(-1) for name, _ in self._order[str(self.num_classes)]])

    def by_name(self, vector: Tensor) -> dict[str, Tensor]:
        """The inverse of ``vector``."""
        order = self._order[str(self.num_classes)]
        parts = vector.split([math.prod(shape) for _, shape in order])
        return {name: part.view(shape).clone() for (name, shape), part in zip(order, parts, strict=True)}


def small_backbone() -> nn.Sequential:
    """The backbone of all whole steps: two convolutions with batch norm, 12 numbers out of 3 x 6 x 6."""
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, 2, 1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return nn.Sequential(OrderedDict(net=layers))


@cache
def golden_file(method: str) -> GoldenFile:
    """The file of a method, read once."""
    return GoldenFile(method)


def case(method: str, name: str) -> Case:
    """The case of that name."""
    return Case(golden_file(method), name)


def case_names(method: str, prefix: str) -> list[str]:
    """Names of the cases that begin so, for ``pytest.mark.parametrize``; an empty list would test nothing."""
    names = [name for name in golden_file(method).cases if name.startswith(prefix)]
    assert names, f"no case {prefix}* in {method}"
    return names


def augmented_view(images: Tensor, _: torch.Generator | None = None) -> Tensor:
    """The view both sides were given in place of a random augmentation."""
    return (images.flip(3) * 0.85 + 0.05).clamp(0, 1)


def distance(ours: Tensor | list[float] | float, theirs: Tensor, scale: float | None = None) -> float:
    """Largest difference, over the largest of theirs (or ``scale``)."""
    ours, theirs = torch.as_tensor(ours, dtype=torch.float64).detach(), theirs.double()
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max()) / (float(theirs.abs().max()) if scale is None else scale)


def moved_apart(golden: Case, model: SourceModel, step: int) -> float:
    """Largest difference between the weights after a step, over the largest change since the start; 0 if not given."""
    theirs = golden.weights_after(step)
    assert theirs is not None or step < len(golden.inputs["images"])
    if theirs is None:
        return 0.0
    change = float((theirs - golden.inputs["weights"]).abs().max())
    return distance(golden.vector(model.state_dict()), theirs, scale=max(change, 1e-6))


def assert_same_steps(golden: Case, method: Any) -> None:
    """Every batch of a case gives the labels, novelty, thresholds and weights of the public code."""
    expected = golden.outputs
    for batch, images in enumerate(golden.batches):
        found = method.step(images)
        assert torch.equal(found.pseudo_labels, expected["pseudo_labels"][batch])
        assert torch.equal(found.labels, expected["predictions"][batch])
        assert distance(found.novelty, expected["entropy"][batch]) < 1e-3
        assert distance([*found.thresholds[:2]], expected["thresholds"][batch]) < 1e-3
        assert moved_apart(golden, method.model, batch + 1) < 1e-3
