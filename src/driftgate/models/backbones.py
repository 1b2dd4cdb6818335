"""Backbones by name: factories that map images (N, 3, H, W) to (N, size)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from driftgate.types import DriftgateError


class Backbone(NamedTuple):
    """A network and how to feed it: input size, normalisation of pixels in [0, 1], whether mirroring keeps the class."""

    module: nn.Module
    input_size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flip: bool


class SmallCNN(nn.Module):
    """Three convolutions for pictures of about 28 x 28 pixels, as large as the digits need and no larger."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_block(3, width), nn.MaxPool2d(2), *_block(width, 2 * width), nn.MaxPool2d(2), *_block(2 * width, 4 * width)
        )
        self.pool = nn.AdaptiveAvgPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.layers(images))
        return pooled.flatten(1)


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


def _cnn() -> Backbone:
    # Mean and spread of white digits on black, near enough for any small picture; digits must not be mirrored.
    return Backbone(SmallCNN(), (28, 28), (0.15, 0.15, 0.15), (0.3, 0.3, 0.3), flip=False)


BACKBONES: dict[str, Callable[[], Backbone]] = {"cnn": _cnn}


def build_backbone(name: str) -> Backbone:
    """The backbone of that name, untrained unless its weights come with it."""
    if name not in BACKBONES:
        raise DriftgateError(f"Expected a backbone out of {', '.join(BACKBONES)} but got {name!r}.")
    return BACKBONES[name]()
