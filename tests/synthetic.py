"""An easy stream on which a method can show that it learns: Gaussian classes, rotated, with new classes among them.

A sample is a point in 12 dimensions, painted as a picture of 2 x 2 patches in 3 channels, so that the "backbone" is a
plain linear map and every quantity can be followed. The target is the source under a known rotation; samples of new
classes lie between the known ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from driftgate import SourceModel
from driftgate.models.statistics import SourceStatistics
from driftgate.types import UNKNOWN

DIM = 12
NUM_CLASSES = 4
SPREAD = 0.35
RADIUS = 3.0
SIZE = 16
SCALE = 16.0
"""Coordinates lie well within -8 to 8; pixels are coordinate / SCALE + 0.5."""


def class_centers() -> Tensor:
    """(C, D): each class on an axis of its own."""
    return RADIUS * torch.eye(NUM_CLASSES, DIM)


def rotation(angle: float) -> Tensor:
    """(D, D): axis i of each known class turns towards axis i + C by ``angle``."""
    matrix = torch.eye(DIM)
    cosine, sine = torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))
    for axis in range(NUM_CLASSES):
        other = axis + NUM_CLASSES
        matrix[axis, axis] = matrix[other, other] = cosine
        matrix[other, axis], matrix[axis, other] = sine, -sine
    return matrix


def points_to_images(points: Tensor) -> Tensor:
    """(N, D) -> (N, 3, 16, 16) in [0, 1]: each coordinate a patch, so that small moves of the picture keep it."""
    patches = (points / SCALE + 0.5).clamp(0, 1).reshape(-1, 3, 2, 2)
    return patches.repeat_interleave(SIZE // 2, dim=2).repeat_interleave(SIZE // 2, dim=3)


def source_points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_CLASSES, (count,), generator=generator)
    return class_centers()[labels] + SPREAD * torch.randn(count, DIM, generator=generator), labels


def target_batches(
    batches: int, size: int = 64, *, angle: float = 0.9, unknown: float = 0.3, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Rotated samples of the known classes; a share ``unknown`` of new classes, half-way between two known ones."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    centers, turn = class_centers(), rotation(angle)
    between = torch.stack([(centers[0] + centers[1]) / 2, (centers[2] + centers[3]) / 2])
    stream = []
    for _ in range(batches):
        labels = torch.randint(NUM_CLASSES, (size,), generator=generator)
        new = torch.rand(size, generator=generator) < unknown
        middle = between[torch.randint(len(between), (size,), generator=generator)]
        points = torch.where(new[:, None], middle, centers[labels]) @ turn.T
        points = points + SPREAD * torch.randn(size, DIM, generator=generator)
        stream.append((points_to_images(points), torch.where(new, UNKNOWN, labels)))
    return stream


class Unpaint(nn.Module):
    """Pictures back to points, then a linear layer that can learn the rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)
        with torch.no_grad():
            self.linear.weight.copy_(torch.eye(DIM))
            self.linear.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        patches = nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)
        output: Tensor = self.linear((patches - 0.5) * SCALE)
        return output


def source_model(steps: int = 150) -> SourceModel:
    """A model trained on the source classes, with its statistics; the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        names = [f"class {index}" for index in range(NUM_CLASSES)]
        head = {"feature_dim": 16, "generator": torch.default_generator}
        model = SourceModel.untrained(Unpaint(), class_names=names, input_size=(SIZE, SIZE), flip=False, **head)
        points, labels = source_points(1_024, seed=0)
        images = points_to_images(points)
        optimizer = torch.optim.SGD(model.head_parameters(), lr=0.1, momentum=0.9)
        model.train()
        for step in range(steps):
            rows = slice((step * 64) % 1_024, (step * 64) % 1_024 + 64)
            loss = nn.functional.cross_entropy(model(images[rows]).logits, labels[rows], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            features = model.features(images)
        prototypes = torch.stack([features[labels == label].mean(dim=0) for label in range(NUM_CLASSES)])
        model.statistics = SourceStatistics(prototypes, features.mean(dim=0), features.T.cov())
        return model


def score(predictions: list[Tensor], targets: list[Tensor]) -> tuple[float, float, float]:
    """(H-score, accuracy on known, share of unknown rejected), plainly: pooled, not by class."""
    predicted, true = torch.cat(predictions), torch.cat(targets)
    known = true >= 0
    right = float((predicted[known] == true[known]).float().mean()) if known.any() else 0.0
    rejected = float((predicted[~known] == UNKNOWN).float().mean()) if (~known).any() else 0.0
    return 2 * right * rejected / max(right + rejected, 1e-9), right, rejected
