"""Mean and covariance of the features of a stream, the newest samples counting at least a fixed share."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from driftgate.state import State


class RunningGaussian(State):
    """The Gaussian TTAC and OWTTT keep of the target: an average over all samples at first, a moving one later.

    For b samples z with a = 1 / min(samples so far, window): delta = a sum(z - mean), mean <- mean + delta and
    covariance <- covariance + a (sum (z - mean)(z - mean)' - b covariance) - delta delta', both with the old mean.
    State: D + D^2 float32 values and a counter.
    """

    at_least_zero: ClassVar[frozenset[str]] = frozenset({"count"})
    mean: Tensor
    covariance: Tensor
    count: Tensor

    def __init__(self, dim: int, window: int = 1280) -> None:
        super().__init__()
        self.window = window
        self.keep(mean=torch.zeros(dim), covariance=torch.zeros(dim, dim), count=torch.zeros((), dtype=torch.int64))

    def update(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Take in features (b, D); the new mean (D,) and covariance (D, D), with gradient through this batch."""
        count = self.count + len(features)
        # More samples at once than the window holds must not count more than fully.
        share = 1.0 / max(min(int(count), self.window), len(features))
        offsets = features.float() - self.mean
        delta = share * offsets.sum(dim=0)
        mean = self.mean + delta
        kept = 1.0 - share * len(features)
        # The share inside the product, so that no sum outgrows float32.
        covariance = kept * self.covariance + (share * offsets).T @ offsets - torch.outer(delta, delta)
        self.mean, self.covariance, self.count = mean.detach(), covariance.detach(), count
        return mean, covariance
