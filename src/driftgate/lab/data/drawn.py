"""Few pictures drawn again and again, each time with a fresh distortion that a hand could have made.

A stream of any length out of a small data set, by pip alone. A drawing depends on (seed, index) alone and is made when
it is asked for, so that nothing but the originals is held in memory.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.lab.data.domains import Domain, MemoryDomain
from driftgate.lab.data.loading import Transform

PIXEL = 2 / 28
"""A pixel of 28 in the units of ``grid_sample``, in which a picture of any size is 2 high and 2 wide."""
DEGREES = 10.0
"""Largest turn to either side; a 6 stays a 6, a 7 no 1."""
SHEAR = 0.1
"""Largest slant: columns move by this part of their distance from the middle."""
SCALE = 0.1
"""Each side shrinks or grows by this part at most, on its own."""
SHIFT = 1.0
"""Pixels of 28, in each direction."""
BEND = 0.7
"""Standard deviation of the bending, in pixels of 28."""
SMOOTH = 4.5
"""Standard deviation of the Gaussian that smooths it, in pixels of 28; below 3 strokes break."""


class DrawnDomain(Domain):
    """``rounds`` drawings of every picture of ``originals``: sample i is original i modulo their number, distorted."""

    def __init__(self, name: str, originals: MemoryDomain, *, rounds: int, seed: int = 0) -> None:
        self.name, self.originals, self.seed = name, originals, seed
        self.classes = originals.classes.repeat(rounds)

    def describe(self, index: int) -> str:
        drawing, original = divmod(index, len(self.originals))
        return f"{self.originals.describe(original)}, drawing {drawing}"

    def load(self, index: int, transform: Transform) -> Tensor:
        random = np.random.default_rng([self.seed % 2**63, index])
        image = self.originals.images[index % len(self.originals)]
        return MemoryDomain(self.name, distort(image, random).unsqueeze(0), self.classes[:1]).load(0, transform)


def distort(image: Tensor, random: np.random.Generator) -> Tensor:
    """(3, H, W) uint8 -> the same, turned, slanted, scaled, moved and bent; what comes in from outside is black."""
    height, width = image.shape[1:]
    affine = torch.from_numpy(_affine(random)).float()
    grid = F.affine_grid(affine.unsqueeze(0), [1, 1, height, width], align_corners=False)
    noise = torch.from_numpy(random.standard_normal((2, height, width), dtype=np.float32))
    bending = _smoothing(height) @ noise @ _smoothing(width).T
    grid = grid + BEND * PIXEL * bending.permute(1, 2, 0)
    drawing = F.grid_sample(image.unsqueeze(0).float(), grid, align_corners=False)
    return drawing.squeeze(0).round().clamp(0, 255).to(torch.uint8)


def _affine(random: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """(2, 3) from a place in the drawing to one in the original: turn, slant, scale and shift."""
    angle = math.radians(random.uniform(-DEGREES, DEGREES))
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    slant = np.array([[1.0, random.uniform(-SHEAR, SHEAR)], [0.0, 1.0]])
    scale = np.diag(1 + random.uniform(-SCALE, SCALE, 2))
    return np.column_stack([turn @ slant @ scale, PIXEL * random.uniform(-SHIFT, SHIFT, 2)])


@lru_cache(maxsize=8)
def _smoothing(side: int) -> Tensor:
    """(side, side): rows are Gaussians that turn white noise into a smooth line of the same variance, 1."""
    places = torch.arange(side).float()
    distances = (places[:, None] - places[None, :]) / (SMOOTH * side / 28)
    return F.normalize(torch.exp(-0.5 * distances.square()), dim=1)
