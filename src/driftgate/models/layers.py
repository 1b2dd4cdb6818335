"""Which parameters of a model learn: all, norm layers, the head, the feature extractor, or layers by name."""

from __future__ import annotations

from itertools import takewhile

from torch import nn

from driftgate.models.passes import repeated_blocks
from driftgate.models.source_model import SourceModel
from driftgate.types import DriftgateError

NORM_LAYERS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
)
GROUPS = ("auto", "all", "last", "features", "head", "norm", "norm2d")

LAST_PART = 5
"""The last stage of a network is the last fifth of its blocks: the last three of a ResNet-50's sixteen."""


def select_parameters(model: SourceModel, layers: str) -> dict[str, nn.Parameter]:
    """The parameters that ``layers`` names, by their names in the model.

    ``layers`` is one group or several names with commas between: ``all``; ``features``, backbone and bottleneck;
    ``head``, bottleneck and classifier; ``norm``, scale and shift of every norm layer; ``norm2d``, those of batch norm
    over pictures alone; ``auto``, the backbone alone of a pretrained network, for a head that moves destroys it, and
    all of one trained from scratch; ``last``, what ``auto`` takes from the last stage on, before which no activation is
    kept and no gradient goes; or the name of any layer, as ``model.named_modules()`` has it, with all below it.
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
    if name in ("all", "last"):
        every = set(parameters)
        return every if name == "all" else _matching(model, parameters, "auto") & _from_last_stage(model, parameters)
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


def _from_last_stage(model: SourceModel, parameters: dict[str, nn.Parameter]) -> set[str]:
    """Names of the parameters from the last stage on, in the order of the layers."""
    blocks = repeated_blocks(model.trunk, apart=model.head)
    if not blocks:  # a plain chain: every layer with a matrix is a block
        layers = (layer for layer in model.trunk.modules() if layer is not model.head)
        own = [(layer, layer.parameters(recurse=False)) for layer in layers]
        blocks = [layer for layer, values in own if any(value.ndim > 1 for value in values)]
    last = blocks[-max(1, len(blocks) // LAST_PART) :] or [model.head]
    first = next(iter(last[0].parameters()))
    before = takewhile(lambda name: parameters[name] is not first, parameters)
    return set(parameters) - set(before)


def _first_layers(model: SourceModel) -> list[str]:
    """The parts of the model, and the layers of the largest."""
    parts = dict(model.named_children())
    inside = (f"{name}.{child}" for name, part in parts.items() if part is model.trunk for child in _learning(part))
    return [*_learning(model), *inside]


def _learning(module: nn.Module) -> list[str]:
    return [name for name, child in module.named_children() if any(True for _ in child.parameters())]
