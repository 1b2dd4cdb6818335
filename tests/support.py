"""What many tests need: a small model, images, and the whole state of a method."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from driftgate import Method, SourceModel, available
from driftgate.methods.one_step import OneStep
from driftgate.models.source_model import ModelOutput
from driftgate.models.statistics import SourceStatistics
from driftgate.novelty.rejection import entropy_prediction

DEVICE = os.environ.get("DRIFTGATE_DEVICE", "cpu")
"""Where the contract runs; ``make test-device DEVICE=cuda`` sets it."""
if DEVICE == "strict":
    import strict_device  # noqa: F401 (makes torch know it)

NUM_CLASSES = 5
SIZE = 8


def small_model(seed: int = 0, num_classes: int = NUM_CLASSES, *, flip: bool = True) -> SourceModel:
    """Convolution, batch norm and dropout in 8 x 8 pixels: every kind of layer that could misbehave.

    With source statistics, as source training leaves them.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.5),
        )
        names = [f"class {index}" for index in range(num_classes)]
        head = {"feature_dim": 16, "generator": torch.default_generator}
        model = SourceModel.untrained(backbone, class_names=names, input_size=(SIZE, SIZE), flip=flip, **head)
        mixing = torch.randn(16, 16) / 4
        model.statistics = SourceStatistics(torch.randn(num_classes, 16), torch.randn(16), mixing @ mixing.T)
        return model


class Residual(nn.Module):
    """A block as residual networks have them, small enough for many steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = images + self.inside(images)
        return output


def residual_model() -> SourceModel:
    """A chain of blocks, whose insides can be computed again instead of kept; with source statistics."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), Residual(), Residual(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        head = {"feature_dim": 16, "generator": torch.default_generator}
        model = SourceModel.untrained(backbone, class_names=["a", "b", "c"], input_size=(SIZE, SIZE), **head)
        model.statistics = SourceStatistics(torch.randn(3, 16), torch.randn(16), torch.eye(16))
        return model


def images_of(count: int, seed: int) -> Tensor:
    return torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def add_statistics(model: SourceModel) -> None:
    """Made up: some methods refuse a model without."""
    classes, size = model.num_classes, model.spec.feature_dim
    generator = torch.Generator().manual_seed(7)
    prototypes = torch.randn(classes, size, generator=generator)
    model.statistics = SourceStatistics(prototypes, torch.zeros(size), torch.eye(size))


def batch_of(model: SourceModel, count: int, seed: int) -> Tensor:
    """Inputs of the shape a model takes."""
    return torch.rand(count, *model.spec.shape, generator=torch.Generator().manual_seed(seed))


def loss_of(method: OneStep, output: ModelOutput, pseudo_labels: Tensor) -> Tensor:
    """What a method of the one-step template would minimise on these outputs and pseudo-labels (N,)."""
    prediction = replace(entropy_prediction(output.logits, 0.5), pseudo_labels=pseudo_labels)
    terms = method.loss(output, prediction)
    assert isinstance(terms, dict) and terms
    return torch.stack(list(terms.values())).sum()


def bytes_kept(forward: Callable[[], object], *own: Tensor) -> int:
    """Bytes of distinct memory that the graph of what ``forward`` computes keeps, ``own`` not counted.

    Asked of the saved tensors themselves: those a checkpoint gives up are never packed by these hooks.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in own}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = forward()  # noqa: F841 (held while it is counted)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def state_of(method: Method) -> dict[str, Tensor]:
    """A copy of everything that may change."""
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


def settings_for(name: str, network: nn.Module) -> dict[str, Any]:
    """What makes a method learn in few steps on few samples, whatever the network: Tent's default learns batch norm
    over pictures, which not every network has; gmm's waits until enough samples are together, and teaches a pretrained
    network nothing; and at random weights
    the batch norm of two samples gives gradients of any length, which may destroy the network in one step."""
    has_norm = any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    settings: dict[str, Any] = {"adapt_layers": "norm"} if name == "tent" and not has_norm else {}
    wished = {"min_batch": 1, "teach_share": 1.0, "max_grad_norm": 1.0}
    known = available()[name].Settings.model_fields
    return {**settings, **{setting: value for setting, value in wished.items() if setting in known}}


def calls_of(owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], Any]]:
    """A list that gets the arguments and the answer of every call of a function of ``owner``."""
    calls: list[tuple[tuple[Any, ...], Any]] = []
    function = getattr(owner, name)

    def watched(*arguments: Any) -> Any:
        answer = function(*arguments)
        calls.append((arguments, answer))
        return answer

    monkeypatch.setattr(owner, name, watched)
    return calls


def load_benchmark(name: str) -> ModuleType:
    """A script of benchmarks/ as a module."""
    known_as = f"{name}_benchmark"
    spec = importlib.util.spec_from_file_location(known_as, Path(__file__).parents[1] / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[known_as] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
