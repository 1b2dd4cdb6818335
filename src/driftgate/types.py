"""The few names every part of driftgate shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

UNKNOWN = -1
"""Label of a sample that belongs to none of the source classes."""

UNLABELED = -2
"""Pseudo-label of a sample that is too uncertain to learn from (the paper's ``None``)."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, and how many of its steps are done out of how many."""


class DriftgateError(ValueError):
    """A mistake the user can mend: the message says what was expected, what came, and what to do."""


class DivergedError(DriftgateError):
    """The adapted network left the range of floating point numbers.

    Memory, thresholds and statistics are those of the last good step; the weights are what that step made of them, so
    load an earlier state to go on.
    """


class Thresholds(NamedTuple):
    """Where the novelty of a sample puts it: the paper's tau_k and tau_u for learning, and tau for prediction.

    Samples up to ``known`` learn their class, samples from ``unknown`` on learn to be unknown, those between are left
    out. A sample above ``prediction`` is predicted as unknown.
    """

    known: float
    unknown: float
    prediction: float


@dataclass(frozen=True)
class Prediction:
    """What a method says about one batch of N images and C source classes.

    Attributes:
        labels: (N,) int64, source class or ``UNKNOWN``.
        scores: (N, C) class probabilities of the classifier, each row sums to 1.
        novelty: (N,) float64, larger = more unknown.
        pseudo_labels: (N,) int64, what the step learns from: source class, ``UNKNOWN`` or ``UNLABELED``.
        thresholds: the thresholds on ``novelty`` that made ``labels`` and ``pseudo_labels``.
        unknown_share: the method's own estimate of the share of unknown samples in the stream; NaN if it makes none.
        losses: what the step minimised, by name: scalars without gradient whose sum it was; empty where it learned
            nothing.
    """

    labels: Tensor
    scores: Tensor
    novelty: Tensor
    pseudo_labels: Tensor
    thresholds: Thresholds
    unknown_share: float = math.nan
    losses: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)


class Batch(NamedTuple):
    """Images (N, 3, H, W) in [0, 1] and, for scoring only, labels (N,): source class or ``UNKNOWN``."""

    images: Tensor
    labels: Tensor


@runtime_checkable
class Stream(Protocol):
    """Batches in an order fixed by the seed; can start anywhere, so that a stopped run can go on.

    What the loop needs of a stream, so that the core knows no data set; ``driftgate.lab.data`` has those that read
    pictures.
    """

    def __len__(self) -> int:
        """Number of batches."""
        ...

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The batches from number ``start`` on."""
        ...

    @property
    def skipped(self) -> list[str]:
        """Names of the samples that could not be read so far."""
        return []

    def restore_skipped(self, names: Iterable[str]) -> None:
        """Put back what a stopped run had skipped, so that the resumed one reports it too."""
        return None
