"""One vector a class: weighted means of a batch, means of the surest samples, and means that run over the stream."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.state import State


def class_means(features: Tensor, weights: Tensor) -> Tensor:
    """(N, D), (N, C) -> (C, D): mean of the features weighted by class; zero where a class has no weight."""
    totals = weights.sum(dim=0)
    return (weights.T @ features) / totals.clamp_min(torch.finfo(features.dtype).tiny)[:, None]


def one_hot_weights(labels: Tensor, num_classes: int) -> Tensor:
    """(N,) -> (N, C) float32: one at the label; a row of zeros where there is none (a negative label)."""
    rows = F.one_hot(labels.clamp_min(0), num_classes).float()
    return torch.where(labels[:, None] >= 0, rows, 0.0)


def surest_samples(probabilities: Tensor, count: int) -> Tensor:
    """(N, C) -> (count, C): the samples with the largest probability of each class; all of them if there are fewer."""
    return probabilities.topk(min(count, len(probabilities)), dim=0).indices


class RunningPrototypes(State):
    """Mean feature of each class over all samples of the stream that were given its label.

    With ``last_only``, as in COMET's code, the last sample of a class in a batch alone joins the sum, while all are
    counted: the direction of one sample a batch, at a shrunken length.

    State: C x D sums and C counts, float32.
    """

    at_least_zero: ClassVar[frozenset[str]] = frozenset({"counts"})
    sums: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, dim: int, *, last_only: bool = False) -> None:
        super().__init__()
        self.last_only = last_only
        self.keep(sums=torch.zeros(num_classes, dim), counts=torch.zeros(num_classes))

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Take in features (N, D) with labels (N,); negative labels are passed over. Makes new tensors."""
        weights = one_hot_weights(labels, len(self.counts))
        self.counts = self.counts + weights.sum(dim=0)
        if self.last_only:
            left = weights.flip(0).cumsum(dim=0).flip(0)  # samples of the class from this one on
            weights = torch.where(left == 1, weights, 0.0)
        self.sums = self.sums + weights.T @ features.detach().float()

    @property
    def means(self) -> Tensor:
        """(C, D); zero for a class never seen."""
        return self.sums / self.counts.clamp_min(1.0)[:, None]
