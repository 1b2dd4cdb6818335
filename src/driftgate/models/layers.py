"""Which parameters of a model learn: all, norm layers, the head, the feature extractor, or layers by name."""

from __future__ import annotations

from torch import nn

from driftgate.models.source_model import SourceModel
from driftgate.types import DriftgateError

NORM_LAYERS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
)
GROUPS = ("auto", "all", "features", "head", "norm", "norm2d")


def select_parameters(model: SourceModel, layers: str) -> dict[str, nn.Parameter]:
    """The parameters that ``layers`` names, by their names in the model.

    ``layers`` is one group or several names with commas between: ``all``; ``features``, backbone and bottleneck;
    ``head``, bottleneck and classifier; ``norm``, scale and shift of every norm layer; ``norm2d``, those of batch norm
    over pictures alone; ``auto``, the backbone alone of a pretrained network, for a head that moves destroys it, and
    all of one trained from scratch; or the name of any layer, as ``model.named_modules()`` has it, with all below it.
    """
    parameters = dict(model.named_parameters())
    chosen: set[str] = set()
    for name in (part.strip() for part in layers.split(",")):
        found = _matching(model, parameters, name)
        if not found and name in GROUPS:
            others = ", ".join(group for group in GROUPS if group != name)
            raise DriftgateError(
                f"Expected layers for adapt_layers={name!r} but this model has none; take another of {others}, or "
                "names of layers."
            )
        if not found:
            raise DriftgateError(
                f"Expected adapt_layers out of {', '.join(GROUPS)} or names of layers but got {name!r}; layers "
                f"of this model are {', '.join(_first_layers(model))}."
            )
        chosen |= found
    return {name: parameter for name, parameter in parameters.items() if name in chosen}


def _matching(model: SourceModel, parameters: dict[str, nn.Parameter], name: str) -> set[str]:
    if name == "auto":
        backbone = {path for path in parameters if model.part_of(path) == "backbone"}
        return backbone if model.spec.pretrained and backbone else set(parameters)
    if name == "all":
        return set(parameters)
    if name == "features":
        return {path for path in parameters if model.part_of(path) != "classifier"}
    if name == "head":
        return {path for path in parameters if model.part_of(path) != "backbone"}
    if name in ("norm", "norm2d"):
        kinds = NORM_LAYERS if name == "norm" else nn.BatchNorm2d
        return {
            f"{path}.{own}"
            for path, module in model.named_modules()
            if isinstance(module, kinds)
            for own, _ in module.named_parameters(recurse=False)
        }
    return {path for path in parameters if path == name or path.startswith(f"{name}.")}


def _first_layers(model: SourceModel) -> list[str]:
    """The parts of the model, and the layers of the largest."""
    parts = dict(model.named_children())
    inside = (f"{name}.{child}" for name, part in parts.items() if part is model.trunk for child in _learning(part))
    return [*_learning(model), *inside]


def _learning(module: nn.Module) -> list[str]:
    return [name for name, child in module.named_children() if any(True for _ in child.parameters())]
