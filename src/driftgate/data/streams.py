"""Streams: a seeded order over samples, cut into batches that are seen once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from driftgate.rng import seeded


class Batch(NamedTuple):
    """Images (N, 3, H, W) in [0, 1] and, for scoring only, labels (N,): source class or ``UNKNOWN``."""

    images: Tensor
    labels: Tensor


class Stream(Protocol):
    """Batches in an order fixed by the seed; can start anywhere, so that a stopped run can go on."""

    def __len__(self) -> int: ...

    def batches(self, start: int = 0) -> Iterator[Batch]: ...


class TensorStream:
    """A stream over images held in memory: ``images`` (N, 3, H, W) uint8, ``labels`` (N,)."""

    def __init__(
        self, images: Tensor, labels: Tensor, *, batch_size: int = 64, seed: int = 0, drop_last: bool = False
    ) -> None:
        self.images, self.labels, self.batch_size, self.drop_last = images, labels, batch_size, drop_last
        self.order = torch.randperm(len(labels), generator=seeded(seed))

    def __len__(self) -> int:
        full, rest = divmod(len(self.order), self.batch_size)
        return full if self.drop_last or rest == 0 else full + 1

    def batches(self, start: int = 0) -> Iterator[Batch]:
        for index in range(start, len(self)):
            chosen = self.order[index * self.batch_size : (index + 1) * self.batch_size]
            yield Batch(self.images[chosen].float() / 255.0, self.labels[chosen])
