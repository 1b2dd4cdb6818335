"""Reading back what ``Method.save`` wrote, so that the method goes on bit for bit."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from driftgate.checkpoint import foreign_content, read_checkpoint, under_prefix
from driftgate.methods.base import KIND, Method
from driftgate.methods.registry import create, resolve_settings
from driftgate.models.source_model import STATISTICS
from driftgate.models.spec import ModelSpec
from driftgate.models.statistics import SourceStatistics
from driftgate.models.wrap import model_for
from driftgate.types import DriftgateError
from driftgate.views import KINDS, ViewsChoice


def load_method(
    path: str | Path,
    *,
    model: nn.Module | None = None,
    views: ViewsChoice = None,
    device: str | torch.device | None = None,
    map_location: str | torch.device | None = None,
) -> Method:
    """A method as it was saved.

    ``model`` is needed only around a network of the user's own, to be filled: the model, or the plain network if it
    was wrapped whole. ``views`` is needed only where they were the user's own. ``device``, which may also be called
    ``map_location`` as torch does, is where it shall be, wherever it was; None for where ``model`` is, or the CPU.
    """
    tensors, info = read_checkpoint(path, KIND)
    if not {"method", "settings", "model"} <= info.keys():
        raise DriftgateError(
            f"Expected a saved method at {path} but its metadata is incomplete; name a file that Method.save wrote."
        )
    with foreign_content(path):
        spec = ModelSpec.parse(info["model"])
        spec.check_size(tensors, path)
        model = model_for(spec, model, path)
        if views is None and info.get("views") not in (None, *KINDS):
            raise DriftgateError(f"Expected views= for {path}, which was saved with views of your own; give them.")
        # Before the method is made: some refuse a model without.
        statistics = SourceStatistics.from_tensors(under_prefix(f"model.{STATISTICS}", tensors))
        model.statistics = model.statistics or statistics
        resolve_settings(info["method"], None, info["settings"])  # nothing but settings may come in by their name
        chosen = info.get("views") if views is None else views
        place = map_location if device is None else device
        method = create(info["method"], model, views=chosen, device=place, **info["settings"])
        try:
            method.load_state_dict(with_names_of_today(tensors))
        except DriftgateError as error:
            raise DriftgateError(f"{path}: {error}") from error
    return method


EARLIER_NAMES = (
    (r"memory\.(teacher|source)\.(?!prototypes$|feature_)", r"\1.weights."),
    (r"memory\.source\.", "source."),
    (r"memory\.stream\.", "memory."),
    (r"memory\.gate\.thresholds$", "gate.fitted"),
    (r"memory\.(?!learning\.|answering\.|pool\.|gaussian\.)", ""),
    (r"module\.", ""),
    (r"optimizer\.(\w+)\.module\.", r"optimizer.\1."),
)
"""Names of tensors in files written before methods were modules, and what they are called now."""


def with_names_of_today(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file under the names that ``Method.state_dict`` gives them."""
    return {_name_of_today(name): tensor for name, tensor in tensors.items()}


def _name_of_today(name: str) -> str:
    for pattern, new in EARLIER_NAMES:
        found, count = re.subn(f"^{pattern}", new, name)
        if count:
            return found
    return name
