"""Saving a method whole: weights, optimiser, memory, thresholds, random state and step count, so that it goes on bit
for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from driftgate.checkpoint import foreign_content, read_checkpoint, under_prefix, with_prefix, write_checkpoint
from driftgate.methods.base import Method, create, resolve_settings
from driftgate.models.source_model import STATISTICS
from driftgate.models.spec import ModelSpec
from driftgate.models.statistics import SourceStatistics
from driftgate.models.wrap import model_for
from driftgate.types import DriftgateError
from driftgate.views import KINDS, ViewsChoice

KIND = "method"


def method_tensors(method: Method) -> dict[str, Tensor]:
    """Everything that changes while the method runs, by name."""
    tensors = with_prefix("model", method.model.state_dict())
    for name, module in method.modules().items():
        tensors |= with_prefix(f"module.{name}", module.state_dict())
    tensors |= with_prefix("memory", method.memory_tensors())
    tensors |= with_prefix("optimizer", _optimizer_tensors(method))
    tensors["rng"] = method.generator.get_state()
    tensors["steps"] = torch.tensor(method.steps)
    return tensors


def restore_method(method: Method, tensors: dict[str, Tensor]) -> None:
    """Put ``method_tensors`` back into a method made with the same model and settings."""
    method.model.load_state_dict(under_prefix("model", tensors))
    for name, module in method.modules().items():
        module.load_state_dict(under_prefix(f"module.{name}", tensors))
    method.load_memory_tensors(under_prefix("memory", tensors))
    _restore_optimizer(method, under_prefix("optimizer", tensors))
    method.generator.set_state(tensors["rng"])
    method.steps = int(tensors["steps"])


def method_info(method: Method) -> dict[str, Any]:
    """What is needed to build the method again before its tensors are put back."""
    return {
        "method": method.name,
        "settings": method.settings.model_dump(mode="json"),
        "model": method.model.spec.model_dump(mode="json"),
        "views": method.views.name,
    }


def save_method(method: Method, path: str | Path) -> None:
    """Write the method to ``path``; ``load_method`` gives it back."""
    write_checkpoint(path, KIND, method_tensors(method), method_info(method))


def load_method(path: str | Path, *, model: nn.Module | None = None, views: ViewsChoice = None) -> Method:
    """A method as it was saved.

    ``model`` is needed only around a network of the user's own, to be filled: the model, or the plain network if it
    was wrapped whole. ``views`` is needed only where they were the user's own.
    """
    tensors, info = read_checkpoint(path, KIND)
    if not {"method", "settings", "model"} <= info.keys():
        raise DriftgateError(f"Expected a saved method at {path} but its metadata is incomplete.")
    with foreign_content(path):
        spec = ModelSpec.parse(info["model"])
        spec.check_size(tensors, path)
        model = model_for(spec, model, path)
        if views is None and info.get("views") not in (None, *KINDS):
            raise DriftgateError(f"Expected views= for {path}, which was saved with views of your own.")
        # Before the method is made: some refuse a model without.
        statistics = SourceStatistics.from_tensors(under_prefix(f"model.{STATISTICS}", tensors))
        model.statistics = model.statistics or statistics
        resolve_settings(info["method"], None, info["settings"])  # nothing but settings may come in by their name
        method = create(info["method"], model, views=info.get("views") if views is None else views, **info["settings"])
        try:
            restore_method(method, tensors)
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise DriftgateError(f"Expected the weights of {model.spec.backbone!r} in {path}: {reason}") from error
    return method


def _named_parameters(method: Method) -> dict[str, nn.Parameter]:
    named = dict(method.model.named_parameters(prefix="model"))
    for name, module in method.modules().items():
        named |= dict(module.named_parameters(prefix=f"module.{name}"))
    return named


def _optimizer_tensors(method: Method) -> dict[str, Tensor]:
    optimizer = method.optimizer()
    if optimizer is None:
        return {}
    return {
        f"{key}.{name}": value
        for name, parameter in _named_parameters(method).items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def _restore_optimizer(method: Method, tensors: dict[str, Tensor]) -> None:
    optimizer = method.optimizer()
    if optimizer is None:
        return
    named = _named_parameters(method)
    optimizer.state.clear()
    for path, value in tensors.items():
        key, name = path.split(".", 1)
        optimizer.state[named[name]][key] = value.contiguous(memory_format=_layout(named[name]))


def _layout(parameter: Tensor) -> torch.memory_format:
    """Keep a buffer in the layout of its parameter: another order of summation is another last bit."""
    if parameter.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    return torch.contiguous_format
