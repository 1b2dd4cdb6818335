"""How to feed a network, read off what its library says: timm's, torchvision's and transformers' configurations."""

from __future__ import annotations

from typing import Any

from torch import nn

from driftgate.models.input import Interpolation, Resize
from driftgate.types import DriftgateError


def known_input(network: nn.Module, preprocessing: Any = None) -> dict[str, Any]:
    """Fields of an ``InputSpec``, as many as the network and its ``preprocessing`` tell.

    Args:
        network: a network of timm (``pretrained_cfg``) or transformers (``config``) says something by itself.
        preprocessing: ``weights.transforms()`` of torchvision, an image processor of transformers, or the dictionary
            of ``timm.data.resolve_model_data_config``.
    """
    found = _from_layers(network)
    timm = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None)
    if _get(timm, "input_size") is not None:
        found |= _from_timm(timm)
    found |= _from_config(getattr(network, "config", None))
    if preprocessing is None:
        return found
    for name, read in (("image_mean", _from_processor), ("resize_size", _from_torchvision), ("input_size", _from_timm)):
        if _get(preprocessing, name) is not None:
            return found | read(preprocessing)
    raise DriftgateError(
        "Expected preprocessing as torchvision's weights.transforms(), an image processor of transformers or the "
        f"data configuration of timm but got {type(preprocessing).__name__}; say it in words: input_size=, mean=, std=."
    )


def _from_layers(network: nn.Module) -> dict[str, Any]:
    """Channels of pictures where the first layer is a convolution, rows where all are linear."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd)]
    if layers and isinstance(layers[0], nn.Conv2d):
        return {"channels": layers[0].in_channels}
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return {"input_size": (linear[0].in_features,)} if linear and len(linear) == len(layers) else {}


def _from_timm(config: Any) -> dict[str, Any]:
    channels, height, width = (int(value) for value in _get(config, "input_size"))
    resize = Resize(
        crop=float(_get(config, "crop_pct") or 1.0),
        keep_aspect=_get(config, "crop_mode") != "squash",
        interpolation=_interpolation(_get(config, "interpolation")),
    )
    return {"input_size": (height, width), "channels": channels, "resize": resize, **_moments(config, "mean", "std")}


def _from_torchvision(transform: Any) -> dict[str, Any]:
    (crop,), (resized,) = (tuple(getattr(transform, name)) for name in ("crop_size", "resize_size"))
    resize = Resize(crop=crop / resized, interpolation=_interpolation(getattr(transform, "interpolation", None)))
    return {"input_size": (crop, crop), "resize": resize, **_moments(transform, "mean", "std")}


def _from_config(config: Any) -> dict[str, Any]:
    """The size and channels in a configuration of transformers, which has no normalisation."""
    size, channels = _get(config, "image_size"), _get(config, "num_channels")
    found: dict[str, Any] = {"channels": channels} if isinstance(channels, int) else {}
    if isinstance(size, int):
        found["input_size"] = (size, size)
    elif isinstance(size, list | tuple) and len(size) == 2:
        found["input_size"] = tuple(size)
    return found


def _from_processor(processor: Any) -> dict[str, Any]:
    """An image processor either stretches to height and width, or fits the shortest edge and crops."""
    size, crop = _get(processor, "size"), _get(processor, "crop_size")
    share = float(_get(processor, "crop_pct") or 1.0)
    shortest = _get(size, "shortest_edge")
    whole = _pair(size) or (shortest, shortest)
    target = (_pair(crop) if _get(processor, "do_center_crop") else None) or whole
    resize = Resize(
        crop=min(share * min(target) / min(whole), 1.0),
        keep_aspect=shortest is not None,
        interpolation=_interpolation(_get(processor, "resample")),
    )
    moments = _moments(processor, "image_mean", "image_std") if _get(processor, "do_normalize") is not False else {}
    return {"input_size": target, "resize": resize, **moments}


def _pair(size: Any) -> tuple[int, int] | None:
    height, width = _get(size, "height"), _get(size, "width")
    return None if height is None or width is None else (int(height), int(width))


def _moments(config: Any, mean: str, std: str) -> dict[str, Any]:
    values = {"mean": _get(config, mean), "std": _get(config, std)}
    return {name: tuple(map(float, value)) for name, value in values.items() if value is not None}


def _interpolation(name: Any) -> Interpolation:
    """Ours for a library's name or number; 3 is Pillow's bicubic."""
    plain = str(getattr(name, "value", name)).lower()
    return "bicubic" if plain in ("bicubic", "lanczos", "1", "3") else "bilinear"


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)
