"""The second view of a batch: the CoTTA set of augmentations, in pixel space, drawn for each sample apart."""

from __future__ import annotations

import kornia.augmentation as K
import torch
from torch import Tensor, nn

from driftgate.rng import private_rng


class Augmentation:
    """Colour jitter and gamma, small affine move, slight blur, flip, slight noise; images in [0, 1] in and out.

    The paper names no augmentation; its code uses this set, but on normalised tensors (so that clipping destroys most
    values) and with one draw for the whole batch. Here every image draws its own.
    """

    def __init__(self, *, flip: bool = True) -> None:
        layers: list[nn.Module] = [
            K.ColorJitter(brightness=(0.6, 1.4), contrast=(0.7, 1.3), saturation=(0.5, 1.5), hue=(-0.06, 0.06), p=1.0),
            K.RandomGamma(gamma=(0.7, 1.3), p=1.0),
            K.RandomAffine(degrees=15, translate=(1 / 16, 1 / 16), scale=(0.9, 1.1), padding_mode="border", p=1.0),
            K.RandomGaussianBlur(kernel_size=5, sigma=(0.001, 0.5), p=1.0),
        ]
        if flip:
            layers.append(K.RandomHorizontalFlip(p=0.5))
        self.layers = layers
        self.noise = 0.005

    @torch.no_grad()
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N, 3, H, W) in [0, 1] -> the same; draws from ``generator`` only."""
        with private_rng(generator):
            views = images.clamp(0.0, 1.0)
            for layer in self.layers:
                views = layer(views)
            return (views + self.noise * torch.randn_like(views)).clamp_(0.0, 1.0)
