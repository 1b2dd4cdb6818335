"""What happened to a stream: one step, all steps so far, and the sums that are left of an endless one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from driftgate.types import UNKNOWN, UNLABELED, Prediction

LOSSES = "losses."
"""Before a loss's name among the tensors of a log."""


@dataclass(frozen=True)
class Step:
    """One step of a stream, as hooks and loggers see it.

    Attributes:
        number: of the batch in the stream, from 1.
        prediction: what the method said of it.
        targets: (N,) the truth, for scoring only, ``UNLABELED`` where it is not known; None for a batch without labels.
        seconds: that ``method.step`` took.
        batch: as it came from the loader.
        delay: seconds from its coming until its prediction stood; NaN for a stream that waits.
    """

    number: int
    prediction: Prediction
    targets: Tensor | None = None
    seconds: float = math.nan
    batch: Any = None
    delay: float = math.nan

    def scalars(self) -> dict[str, float]:
        """The numbers worth a curve, by name; only those that are finite."""
        said, targets = self.prediction, self.targets
        found = {
            "share/rejected": _share(said.labels == UNKNOWN),
            "share/learned": _share(said.pseudo_labels != UNLABELED),
            "share/estimated": said.unknown_share,
            "novelty/mean": float(said.novelty.mean()),
            "threshold/known": said.thresholds.known,
            "threshold/unknown": said.thresholds.unknown,
            "threshold/prediction": said.thresholds.prediction,
            "seconds": self.seconds,
            "delay": self.delay,
            **{f"loss/{name}": float(value) for name, value in said.losses.items()},
        }
        if targets is not None:
            labelled = targets != UNLABELED
            found["accuracy"] = _share((said.labels.cpu() == targets)[labelled])
            found["share/true"] = _share((targets == UNKNOWN)[labelled])
        return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _share(mask: Tensor) -> float:
    return float(mask.double().mean()) if len(mask) else math.nan


@dataclass
class StreamLog:
    """What happened to every sample and batch so far; enough to compute every metric and draw every curve.

    ``targets`` hold ``UNLABELED`` where nobody knows the truth. ``losses`` have a number a batch, NaN where the batch
    had no such loss.
    """

    predictions: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    classes: list[Tensor] = field(default_factory=list)
    novelty: list[Tensor] = field(default_factory=list)
    pseudo_labels: list[Tensor] = field(default_factory=list)
    thresholds: list[Tensor] = field(default_factory=list)
    unknown_share: list[Tensor] = field(default_factory=list)
    seconds: list[Tensor] = field(default_factory=list)
    losses: dict[str, list[float]] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        said = step.prediction
        labels = said.labels.cpu()
        for name in said.losses:
            self.losses.setdefault(name, [math.nan] * len(self))
        for name, values in self.losses.items():
            values.append(float(said.losses[name]) if name in said.losses else math.nan)
        self.predictions.append(labels)
        self.targets.append(torch.full_like(labels, UNLABELED) if step.targets is None else step.targets)
        self.classes.append(said.scores.argmax(dim=1).cpu())
        self.novelty.append(said.novelty.cpu())
        self.pseudo_labels.append(said.pseudo_labels.cpu())
        self.thresholds.append(torch.tensor(said.thresholds, dtype=torch.float64))
        self.unknown_share.append(torch.tensor(said.unknown_share, dtype=torch.float64))
        self.seconds.append(torch.tensor(step.seconds, dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.predictions)

    @property
    def has_labels(self) -> bool:
        """Whether the truth of any sample is known."""
        return any(bool((targets != UNLABELED).any()) for targets in self.targets)

    def tensors(self, first: int = 0) -> dict[str, Tensor]:
        """The batches from number ``first`` on as tensors to save, end to end."""
        sizes = torch.tensor([len(batch) for batch in self.predictions[first:]])
        per_sample = {name: torch.cat(getattr(self, name)[first:]) for name in _PER_SAMPLE}
        per_batch = {name: torch.stack(getattr(self, name)[first:]) for name in _PER_BATCH}
        losses = {
            LOSSES + name: torch.tensor(values[first:], dtype=torch.float64) for name, values in self.losses.items()
        }
        return {"sizes": sizes, **per_sample, **per_batch, **losses}

    def extend(self, other: StreamLog) -> None:
        """Add the batches of another log; a loss that only one of the two knows is NaN in the other's batches."""
        missing = [math.nan] * len(self), [math.nan] * len(other)
        for name in {**self.losses, **other.losses}:
            self.losses[name] = self.losses.get(name, missing[0]) + other.losses.get(name, missing[1])
        for name in (*_PER_SAMPLE, *_PER_BATCH):
            getattr(self, name).extend(getattr(other, name))

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> StreamLog:
        sizes = tensors["sizes"].tolist()
        per_sample = {name: list(torch.split(tensors[name], sizes)) for name in _PER_SAMPLE}
        per_batch = {name: list(tensors[name].unbind()) for name in _PER_BATCH}
        losses = {name.removeprefix(LOSSES): tensors[name].tolist() for name in tensors if name.startswith(LOSSES)}
        return cls(**per_sample, **per_batch, losses=losses)


_PER_SAMPLE = ("predictions", "targets", "classes", "novelty", "pseudo_labels")
_PER_BATCH = ("thresholds", "unknown_share", "seconds")


class Tally:
    """What can be known of a stream without labels, in memory that does not grow with it: counts and sums."""

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = tuple(class_names)
        self.batches = self.samples = self.learned = 0
        self._counts = torch.zeros(len(self.class_names) + 1, dtype=torch.int64)  # the unknown ones first
        self._novelty = 0.0
        self._losses: dict[str, tuple[float, int]] = {}

    def add(self, labels: Tensor, pseudo_labels: Tensor, novelty: Tensor, losses: dict[str, float]) -> None:
        """Count a batch: labels (N,), pseudo-labels (N,), novelties (N,), and losses by name, NaN for none."""
        self.batches += 1
        self.samples += len(labels)
        self.learned += int((pseudo_labels != UNLABELED).sum())
        self._counts += torch.bincount(labels - UNKNOWN, minlength=len(self._counts)).cpu()
        self._novelty += float(novelty.double().sum())
        for name, value in losses.items():
            if math.isfinite(value):
                total, count = self._losses.get(name, (0.0, 0))
                self._losses[name] = (total + value, count + 1)

    def add_prediction(self, said: Prediction) -> None:
        """Count a prediction."""
        losses = {name: float(value) for name, value in said.losses.items()}
        self.add(said.labels, said.pseudo_labels, said.novelty, losses)

    @classmethod
    def of(cls, log: StreamLog, class_names: Sequence[str]) -> Tally:
        """The tally of a log."""
        tally = cls(class_names)
        rows = zip(log.predictions, log.pseudo_labels, log.novelty, strict=True)
        for place, (labels, pseudo_labels, novelty) in enumerate(rows):
            tally.add(labels, pseudo_labels, novelty, {name: values[place] for name, values in log.losses.items()})
        return tally

    def as_dict(self) -> dict[str, Any]:
        """Shares of the samples that were rejected, learned from, and of each class; mean novelty; mean losses."""
        count = max(self.samples, 1)
        shares = (self._counts.double() / count).tolist()
        return {
            "rejected_share": shares[0],
            "learned_share": self.learned / count,
            "class_shares": dict(zip(self.class_names, shares[1:], strict=True)),
            "mean_novelty": self._novelty / count,
            "mean_losses": {name: total / number for name, (total, number) in self._losses.items()},
        }
