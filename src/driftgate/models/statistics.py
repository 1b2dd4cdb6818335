"""What is kept of the source data for methods that need it: class prototypes, feature mean and covariance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from driftgate.types import DriftgateError


@dataclass(frozen=True)
class SourceStatistics:
    """Statistics of the source features g(x), taken in eval mode with the test transform; float32.

    Attributes:
        prototypes: (C, D) mean feature of each source class.
        feature_mean: (D,) mean over all samples; None where the checkpoint has none (the released ones).
        feature_covariance: (D, D) covariance over all samples, divided by n - 1; None as above.
    """

    prototypes: Tensor
    feature_mean: Tensor | None = None
    feature_covariance: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """What is there, by name."""
        return {name: tensor for name in _NAMES if (tensor := getattr(self, name)) is not None}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> SourceStatistics | None:
        """The inverse of ``tensors``; None without prototypes."""
        if "prototypes" not in tensors:
            return None
        return cls(**{name: tensors[name].detach().float() for name in _NAMES if name in tensors})


_NAMES = ("prototypes", "feature_mean", "feature_covariance")


class StatisticsAccumulator:
    """Adds up batches of features (N, D) with source labels (N,); its memory does not grow with the data.

    Sums run in float64 around the first batch's mean, so that the covariance does not cancel when the features lie far
    from the origin.
    """

    def __init__(self, num_classes: int, dim: int) -> None:
        self.counts = torch.zeros(num_classes, dtype=torch.float64)
        self.sums = torch.zeros(num_classes, dim, dtype=torch.float64)
        self.products = torch.zeros(dim, dim, dtype=torch.float64)
        self.origin: Tensor | None = None

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor) -> None:
        features = features.detach().to("cpu", torch.float64)
        if self.origin is None:
            self.origin = features.mean(dim=0)
        centred = features - self.origin
        self.counts += torch.bincount(labels, minlength=len(self.counts))
        self.sums.index_add_(0, labels, centred)
        self.products += centred.T @ centred

    def compute(self, class_names: tuple[str, ...]) -> SourceStatistics:
        empty = [name for name, count in zip(class_names, self.counts.tolist(), strict=True) if count == 0]
        if self.origin is None or empty:
            raise DriftgateError(
                f"Expected source images of every class but there are none of {', '.join(empty)}; look at the source "
                "domain and the class split."
            )
        number = self.counts.sum()
        offset = self.sums.sum(dim=0) / number
        scatter = self.products - number * torch.outer(offset, offset)
        return SourceStatistics(
            prototypes=(self.sums / self.counts.unsqueeze(1) + self.origin).float(),
            feature_mean=(offset + self.origin).float(),
            feature_covariance=(scatter / (number - 1).clamp(min=1)).float(),
        )


def source_statistics(
    features: Iterable[tuple[Tensor, Tensor]], class_names: tuple[str, ...], dim: int
) -> SourceStatistics:
    """Statistics of a stream of (features (N, D), labels (N,)), one batch in memory at a time."""
    accumulator = StatisticsAccumulator(len(class_names), dim)
    for batch, labels in features:
        accumulator.update(batch, labels)
    return accumulator.compute(class_names)
