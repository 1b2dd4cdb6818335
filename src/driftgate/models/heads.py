"""The head of a classifier: the layer that makes logits (N, C) of features (N, D), found in any network, and tapped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from driftgate.types import DriftgateError

PLACES = ("fc", "classifier", "heads", "head", "_fc", "last_linear")
"""Where torchvision, timm, transformers and others keep the head."""


def find_head(network: nn.Module, num_classes: int | None) -> str:
    """The head's name in the network.

    It is a linear layer with as many outputs as there are classes (any number if None): the last one where timm's
    ``get_classifier`` or a usual name points, else the last one of all.
    """
    linear: dict[str, nn.Linear] = {
        name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)
    }
    fitting = [name for name, layer in linear.items() if num_classes in (None, layer.out_features)]
    for place in _usual_places(network):
        inside = [name for name in fitting if name == place or name.startswith(f"{place}.")]
        if inside:
            return inside[-1]
    if fitting:
        return fitting[-1]
    raise _no_head(network, linear, num_classes)


def _usual_places(network: nn.Module) -> list[str]:
    """Names at which the head may stand, timm's own answer first."""
    places = [name for name in PLACES if isinstance(getattr(network, name, None), nn.Module)]
    ask = getattr(network, "get_classifier", None)
    answer = ask() if callable(ask) else None
    told = [name for name, module in network.named_modules() if module is answer]
    return [*told, *places]


def _no_head(network: nn.Module, linear: dict[str, nn.Linear], num_classes: int | None) -> DriftgateError:
    kind = type(network).__name__
    if linear:
        name, layer = list(linear.items())[-1]
        return DriftgateError(
            f"Expected a linear layer with {num_classes} outputs, one a class name, but the last one of {kind}, "
            f"{name!r}, has {layer.out_features}; pass as many class names, or say which layer it is: "
            "head='path.to.layer'."
        )
    maps = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]
    reason = (
        f"its last layer is the convolution {maps[-1]!r}, which makes maps (N, C, H, W) and no features (N, D); end "
        "the network in nn.AdaptiveAvgPool2d(1), nn.Flatten() and an nn.Linear"
        if maps
        else "say which layer makes the logits: head='path.to.layer'"
    )
    return DriftgateError(f"Expected a classifier with a linear layer as its head but {kind} has none; {reason}.")


def get_layer(network: nn.Module, name: str) -> nn.Module:
    """The layer of that name."""
    try:
        return network.get_submodule(name)
    except AttributeError as error:
        linear = [path for path, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        raise DriftgateError(
            f"Expected the name of a layer as head but got {name!r}; the network's last linear layers are "
            f"{', '.join(map(repr, linear[-3:])) or 'none'}."
        ) from error


def tap(network: nn.Module, head: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """One pass through the whole network: what went into its head, (N, D), and the logits (N, C) that came out."""
    seen: list[Any] = []

    def keep(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append(given[0] if given else next(iter(named.values())))

    # For this pass alone: in between, the network is what it was.
    handle = head.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        output = network(inputs)
    finally:
        handle.remove()
    if not seen:
        raise DriftgateError(
            "Expected to see what goes into the head but it never ran as a layer; wrap the network before it is "
            "compiled or scripted, or say which layer makes the logits: head='path.to.layer'."
        )
    if len(seen) > 1:
        raise DriftgateError(
            f"Expected a head that runs once a pass but it ran {len(seen)} times; say which layer makes the logits: "
            "head='path.to.layer'."
        )
    features = seen[0]
    if not isinstance(features, Tensor) or features.ndim != 2:
        found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise DriftgateError(
            f"Expected features of shape (N, D) in front of the head but got {found}; name a later layer, behind "
            "pooling and flattening: head='path.to.layer'."
        )
    return features, logits_of(output)


def logits_of(output: Any) -> Tensor:
    """The logits (N, C) in what a network returns: a tensor, or something with ``logits`` in it."""
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    output = getattr(output, "logits", output)
    if not isinstance(output, Tensor) or output.ndim != 2:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise DriftgateError(
            f"Expected a network that returns logits of shape (N, C) but got {found}; wrap the part of it that does."
        )
    return output
