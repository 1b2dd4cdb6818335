"""The gate: where known ends and unknown begins on the axis of a novelty score.

Every gate answers with three thresholds: samples up to ``known`` learn their class, samples from ``unknown`` on learn
to be unknown, those between are left out, and a sample above ``prediction`` is predicted as unknown.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from driftgate.types import UNKNOWN, UNLABELED, DriftgateError, Thresholds

QuantileRule = Literal["interpolated", "released"]


def pseudo_label(classes: Tensor, novelty: Tensor, thresholds: Thresholds) -> Tensor:
    """(N,), (N,) -> (N,): the class, ``UNKNOWN`` or ``UNLABELED`` (the paper's pseudo-labelling rule)."""
    labels = torch.full_like(classes, UNLABELED)
    labels[novelty >= thresholds.unknown] = UNKNOWN
    # Where the two thresholds meet, the sample is known: the paper's first case comes first.
    return torch.where(novelty <= thresholds.known, classes, labels)


def predict_label(classes: Tensor, novelty: Tensor, thresholds: Thresholds) -> Tensor:
    """(N,), (N,) -> (N,): the class or ``UNKNOWN`` (the paper's inference rule)."""
    return torch.where(novelty <= thresholds.prediction, classes, UNKNOWN)


class Gate(ABC):
    """State and rule that turn the stream of scores into thresholds; small, saved with the method, counted in bytes."""

    def __init__(self, p_reject: float = 0.5, init_batches: int = 30) -> None:
        if not 0 <= p_reject < 1:
            raise DriftgateError(f"Expected p_reject from 0 to below 1 but got {p_reject}.")
        if init_batches < 1:
            raise DriftgateError(f"Expected at least one initialisation batch but got {init_batches}.")
        self.p_reject, self.init_batches = p_reject, init_batches

    @abstractmethod
    def update(self, novelty: Tensor) -> Thresholds:
        """Take in the scores (N,) of one batch and answer with the thresholds that hold for it."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Everything that survives a batch."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what ``state_dict`` gave."""

    @abstractmethod
    def clone(self) -> Gate:
        """An independent copy: what ``predict`` may play with."""

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())


def batch_quantiles(novelty: Tensor, p_reject: float, rule: QuantileRule = "interpolated") -> Tensor:
    """(N,) -> (2,): the scores that cut off the lowest and the highest (1 - p_reject) / 2 of a batch.

    ``released`` takes the sorted entries the released code takes, one more known than unknown sample.
    """
    scores = novelty.detach().double()
    share = (1.0 - p_reject) / 2.0
    if rule == "released":
        ordered, last = scores.sort().values, len(scores) - 1
        low, high = (min(int(part * len(scores)), last) for part in (share, 1.0 - share))
        return torch.stack([ordered[low], ordered[high]])
    return torch.quantile(scores, torch.tensor([share, 1.0 - share], dtype=torch.float64))


class FrozenGate(Gate):
    """The paper's gate: the mean over the first ``init_batches`` batches of each batch's quantiles, then fixed.

    State: two sums and a counter.
    """

    def __init__(
        self, p_reject: float = 0.5, init_batches: int = 30, quantile_rule: QuantileRule = "interpolated"
    ) -> None:
        super().__init__(p_reject, init_batches)
        self.quantile_rule: QuantileRule = quantile_rule
        self.sums = torch.zeros(2, dtype=torch.float64)
        self.batches = torch.zeros((), dtype=torch.int64)

    def update(self, novelty: Tensor) -> Thresholds:
        if self.batches < self.init_batches:
            self.sums = self.sums + batch_quantiles(novelty, self.p_reject, self.quantile_rule)
            self.batches = self.batches + 1
        known, unknown = (self.sums / self.batches).tolist()
        return Thresholds(known, unknown, (known + unknown) / 2.0)

    def state_dict(self) -> dict[str, Tensor]:
        return {"sums": self.sums, "batches": self.batches}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.sums, self.batches = state["sums"].clone(), state["batches"].clone()

    def clone(self) -> FrozenGate:
        copy = FrozenGate(self.p_reject, self.init_batches, self.quantile_rule)
        copy.load_state_dict(self.state_dict())
        return copy


class TrackingGate(Gate):
    """Thresholds that keep following the stream: a running mean of the batch quantiles with a window.

    Like the paper's gate for the first ``init_batches`` batches; after that each batch weighs 1 / ``init_batches``.
    """

    def __init__(self, p_reject: float = 0.5, init_batches: int = 30) -> None:
        super().__init__(p_reject, init_batches)
        self.quantiles = torch.zeros(2, dtype=torch.float64)
        self.batches = torch.zeros((), dtype=torch.int64)

    def update(self, novelty: Tensor) -> Thresholds:
        self.batches = self.batches + 1
        rate = 1.0 / min(int(self.batches), self.init_batches)
        self.quantiles = self.quantiles + rate * (batch_quantiles(novelty, self.p_reject) - self.quantiles)
        known, unknown = self.quantiles.tolist()
        return Thresholds(known, unknown, (known + unknown) / 2.0)

    def state_dict(self) -> dict[str, Tensor]:
        return {"quantiles": self.quantiles, "batches": self.batches}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.quantiles, self.batches = state["quantiles"].clone(), state["batches"].clone()

    def clone(self) -> TrackingGate:
        copy = TrackingGate(self.p_reject, self.init_batches)
        copy.load_state_dict(self.state_dict())
        return copy
