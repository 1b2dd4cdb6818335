"""Other views of a batch, in pixel space, drawn for each sample apart: the CoTTA set, and the strong MoCo-v2 set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from driftgate.models.input import InputSpec
from driftgate.rng import DrawFrom


class Augmentation:
    """Colour jitter and gamma, small affine move, slight blur, flip, slight noise; images in [0, 1] in and out.

    The paper names no augmentation; its code uses this set, but on normalised tensors (so that clipping destroys most
    values) and with one draw for the whole batch. Here every image draws its own. The set pads a picture to twice its
    size before it moves it by up to a sixteenth of that, so the move is up to an eighth of the picture. Only pictures
    of three channels have hue and saturation to jitter.
    """

    def __init__(self, *, flip: bool = True, channels: int = 3) -> None:
        import kornia.augmentation as K  # here, for most of the library works without it

        if channels == 3:
            jitter = [_quick(K.ColorJitter((0.6, 1.4), (0.7, 1.3), saturation=(0.5, 1.5), hue=(-0.06, 0.06), p=1.0))]
        else:
            jitter = [K.RandomBrightness((0.6, 1.4), p=1.0), K.RandomContrast((0.7, 1.3), p=1.0)]
        layers: list[nn.Module] = [
            *jitter,
            K.RandomGamma(gamma=(0.7, 1.3), p=1.0),
            K.RandomAffine(degrees=15, translate=(1 / 8, 1 / 8), scale=(0.9, 1.1), padding_mode="border", p=1.0),
            K.RandomGaussianBlur(kernel_size=5, sigma=(0.001, 0.5), p=1.0),
        ]
        if flip:
            layers.append(K.RandomHorizontalFlip(p=0.5))
        self.layers = layers
        self.noise = 0.005

    @torch.no_grad()
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N, C, H, W) in [0, 1] -> the same; draws from ``generator`` only."""
        views = _chain(self.layers, images, generator)
        noise = torch.randn(views.shape, generator=generator).to(views)
        return noise.mul_(self.noise).add_(views).clamp_(0.0, 1.0)


class StrongAugmentation:
    """The MoCo-v2 set: resized crop of 20-100 % of the area, colour jitter (p 0.8), grey (0.2), blur (0.5), flip.

    Images in [0, 1] in and out. MoCo-v2 blurs pictures of 224 pixels by 0.1 to 2 pixels; here the blur is as strong
    relative to the picture, whatever its size.
    """

    def __init__(self, size: tuple[int, int], *, flip: bool = True, channels: int = 3) -> None:
        import kornia.augmentation as K

        widest = 2.0 * min(size) / 224
        if channels == 3:
            jitter = [_quick(K.ColorJitter(0.4, 0.4, saturation=0.4, hue=0.1, p=0.8)), K.RandomGrayscale(p=0.2)]
        else:
            jitter = [K.RandomBrightness((0.6, 1.4), p=0.8), K.RandomContrast((0.6, 1.4), p=0.8)]
        layers: list[nn.Module] = [
            K.RandomResizedCrop(size, scale=(0.2, 1.0), p=1.0),
            *jitter,
            K.RandomGaussianBlur(kernel_size=2 * math.ceil(2.5 * widest) + 1, sigma=(0.05 * widest, widest), p=0.5),
        ]
        if flip:
            layers.append(K.RandomHorizontalFlip(p=0.5))
        self.layers = layers

    @torch.no_grad()
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N, C, H, W) in [0, 1] -> the same; draws from ``generator`` only."""
        return _chain(self.layers, images, generator).clamp_(0.0, 1.0)


class ImageViews:
    """The two looks at pictures, made when they are first asked for: kornia takes a second to import."""

    name = "images"

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec

    @cached_property
    def weak(self) -> Augmentation:
        return Augmentation(flip=self.spec.flip, channels=self.spec.channels)

    @cached_property
    def strong(self) -> StrongAugmentation:
        return StrongAugmentation(self.spec.image_size, flip=self.spec.flip, channels=self.spec.channels)


def _chain(layers: Sequence[Any], images: Tensor, generator: torch.Generator) -> Tensor:
    """The images through all layers; what they draw hangs on the shape alone, so only that runs under ``DrawFrom``."""
    with DrawFrom(generator):
        drawn = [layer.forward_parameters(images.shape) for layer in layers]
    views = images.clamp(0.0, 1.0)
    for layer, parameters in zip(layers, drawn, strict=True):
        views = layer(views, params=parameters)
    return views


def _quick(jitter: Any) -> Any:
    """Half of the whole set's time is the hue; a kornia that keeps it elsewhere goes on with its own."""
    jitter._hue_fn = turn_hue
    return jitter


def turn_hue(images: Tensor, angle: Tensor) -> Tensor:
    """(N, 3, H, W), (N,) in radians -> the same value and saturation, the hue further by the angle.

    A colour is ``least + spread * pure``, where only the pure colour hangs on the hue: in sixths of the circle
    ``(|h - 3| - 1, 2 - |h - 2|, 2 - |h - 4|)``, each between 0 and 1. So no picture is taken to HSV and back.
    """
    red, green, blue = images.unbind(dim=1)
    most, least = images.amax(dim=1), images.amin(dim=1)
    spread = most - least
    of_green, of_blue = (blue - red).add_(spread, alpha=2.0), (red - green).add_(spread, alpha=4.0)
    hue = torch.where(red == most, green - blue, torch.where(green == most, of_green, of_blue))
    hue.div_(spread.clamp_min(torch.finfo(hue.dtype).tiny))  # grey has no hue and needs none
    hue.add_(angle.to(hue).view(-1, 1, 1) * (3.0 / math.pi)).remainder_(6.0)
    pure = [(hue - 3.0).abs_().sub_(1.0), (hue - 2.0).abs_().neg_().add_(2.0), (hue - 4.0).abs_().neg_().add_(2.0)]
    return torch.stack([torch.addcmul(least, part.clamp_(0.0, 1.0), spread) for part in pure], dim=1)
