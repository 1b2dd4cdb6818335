"""The numbers of the paper's tables, as torchmetrics metrics, each with its definition in words.

Labels: ``targets`` and ``predictions`` hold source classes or ``UNKNOWN``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.classification import binary_auroc

from driftgate.types import UNKNOWN, DriftgateError

DEFINITIONS = {
    "accuracy": "share of all samples predicted as their class; a rejected sample is wrong (used for PDA)",
    "known_accuracy": "mean over the shared classes that had a sample of the accuracy within each; a rejection is "
    "wrong. A class without a sample is left out, for a stream that was cut short says nothing about it",
    "unknown_accuracy": "share of the samples of unknown classes that were rejected",
    "h_score": "harmonic mean of known_accuracy and unknown_accuracy; 0 where either is 0 (used for ODA and OPDA)",
    "h_score_released": "the H-score as the authors' code counts it: a shared class without a sample has accuracy 0, "
    "and so has a side without samples; only to stand beside published numbers",
    "auroc": "probability that a sample of an unknown class has a higher novelty than one of a known class",
    "best_threshold_score": "the shift's score had one threshold, best in hindsight, been used on the same novelties",
}


class HScore(Metric):
    """Known accuracy, unknown accuracy and their harmonic mean over a stream; see ``DEFINITIONS``.

    ``compute`` gives a dict with ``h_score``, ``known_accuracy``, ``unknown_accuracy`` and ``h_score_released``.
    Without a sample of an unknown class (or of any shared class) the accuracy of that side, and so the H-score, is NaN.
    """

    full_state_update = False
    correct: Tensor
    total: Tensor

    def __init__(self, shared_classes: Sequence[int]) -> None:
        super().__init__()
        self.shared_classes = torch.tensor(list(shared_classes), dtype=torch.int64)
        size = len(self.shared_classes) + 1
        self.add_state("correct", torch.zeros(size, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(size, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        check_pairs(predictions, targets)
        columns = torch.cat([self.shared_classes, torch.tensor([UNKNOWN])])
        belongs = targets[:, None] == columns
        self.total += belongs.sum(dim=0)
        self.correct += (belongs & (predictions == targets)[:, None]).sum(dim=0)

    def compute(self) -> dict[str, Tensor]:
        accuracy = self.correct.double() / self.total
        known, unknown = accuracy[:-1][self.total[:-1] > 0].mean(), accuracy[-1]
        absent_as_zero = self.correct.double() / self.total.clamp_min(1)
        return {
            "h_score": harmonic_mean(known, unknown),
            "known_accuracy": known,
            "unknown_accuracy": unknown,
            "h_score_released": harmonic_mean(absent_as_zero[:-1].mean(), absent_as_zero[-1]),
        }


class OnlineAccuracy(Metric):
    """Share of all samples predicted as their class; a rejected sample is wrong."""

    full_state_update = False
    correct: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("correct", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        check_pairs(predictions, targets)
        self.correct += (predictions == targets).sum()
        self.total += len(targets)

    def compute(self) -> Tensor:
        return self.correct.double() / self.total


def check_pairs(predictions: Tensor, targets: Tensor) -> None:
    """Refuse predictions and targets that are not one for one: broadcast, they would count what nobody predicted."""
    if predictions.ndim != 1 or predictions.shape != targets.shape:
        raise DriftgateError(
            f"Expected a prediction for each target, both of shape (N,), but got {tuple(predictions.shape)} and "
            f"{tuple(targets.shape)}; pass the labels of the same samples."
        )


def harmonic_mean(first: Tensor, second: Tensor) -> Tensor:
    """2ab / (a + b); 0 where both are 0."""
    total = first + second
    return torch.where(total == 0, 0.0, 2.0 * first * second / total)


def novelty_auroc(novelty: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve of novelty for unknown against known; NaN where one side is missing."""
    unknown = targets == UNKNOWN
    if not bool(unknown.any()) or bool(unknown.all()):
        return float("nan")
    # Only the order counts: ranks keep scores that differ by less than float32 can tell.
    ranks = torch.unique(novelty.double(), return_inverse=True)[1]
    return float(binary_auroc(ranks / max(int(ranks.max()), 1), unknown.long()))


def best_threshold(
    novelty: Tensor, classes: Tensor, targets: Tensor, shared_classes: Sequence[int]
) -> tuple[float, float]:
    """The score of the best fixed threshold in hindsight, and that threshold.

    ``novelty`` (N,), ``classes`` (N,) the class predicted without rejection, ``targets`` (N,). The score is the H-score
    where unknown samples are present, the accuracy otherwise. What the gate loses is the difference to it.
    """
    order = novelty.argsort(stable=True)
    novelty, classes, targets = novelty[order], classes[order], targets[order]
    unknown = targets == UNKNOWN
    hit = (classes == targets) & ~unknown
    if bool(unknown.any()):
        per_class = [(targets == label) for label in shared_classes]
        shares = [(hit & mask).cumsum(0).double() / mask.sum() for mask in per_class if bool(mask.any())]
        known = torch.stack(shares).mean(dim=0) if shares else torch.zeros(len(novelty), dtype=torch.float64)
        rejected = 1.0 - unknown.cumsum(0).double() / unknown.sum()
        score = harmonic_mean(known, rejected)
    else:
        score = hit.cumsum(0).double() / len(hit)
    # A threshold cannot cut between equal novelties: only the last of each run counts.
    last_of_run = torch.cat([novelty[1:] != novelty[:-1], torch.tensor([True])])
    score = torch.where(last_of_run, score, -1.0)
    best = int(score.argmax())
    return float(score[best]), float(novelty[best])
