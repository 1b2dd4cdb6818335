"""The one loop: predict, score, learn. It writes the run record, and can be stopped and resumed."""

from __future__ import annotations

import json
import logging
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftgate.checkpoint import (
    CHECKPOINT_SECONDS,
    Pace,
    read_checkpoint,
    under_prefix,
    with_prefix,
    write_checkpoint,
    write_text,
)
from driftgate.methods.base import Method
from driftgate.methods.persistence import method_info, method_tensors, restore_method
from driftgate.resources import give_back_memory, peak_memory, reset_peak_memory, resident_memory
from driftgate.shifts import ClassSplit, Shift
from driftgate.types import UNKNOWN, UNLABELED, DriftgateError, Prediction, Stream

RECORD_FORMAT = 2
"""Since 2, peak memory is that above the loaded model."""
PROGRESS = "run-in-progress"
LONG_STREAM = 200
"""Batches from which on the tenths of a stream are long enough to be looked at one by one."""

logger = logging.getLogger(__name__)


@dataclass
class StreamLog:
    """What happened to every sample and batch so far; enough to compute every metric and draw every curve."""

    predictions: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    classes: list[Tensor] = field(default_factory=list)
    novelty: list[Tensor] = field(default_factory=list)
    pseudo_labels: list[Tensor] = field(default_factory=list)
    thresholds: list[Tensor] = field(default_factory=list)
    unknown_share: list[Tensor] = field(default_factory=list)
    seconds: list[Tensor] = field(default_factory=list)

    def add(self, prediction: Prediction, targets: Tensor, seconds: float) -> None:
        self.predictions.append(prediction.labels)
        self.targets.append(targets)
        self.classes.append(prediction.scores.argmax(dim=1))
        self.novelty.append(prediction.novelty)
        self.pseudo_labels.append(prediction.pseudo_labels)
        self.thresholds.append(torch.tensor(prediction.thresholds, dtype=torch.float64))
        self.unknown_share.append(torch.tensor(prediction.unknown_share, dtype=torch.float64))
        self.seconds.append(torch.tensor(seconds, dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.predictions)

    def tensors(self) -> dict[str, Tensor]:
        """The log as tensors to save, batches end to end."""
        sizes = torch.tensor([len(batch) for batch in self.predictions])
        per_sample = {name: torch.cat(getattr(self, name)) for name in _PER_SAMPLE}
        per_batch = {name: torch.stack(getattr(self, name)) for name in _PER_BATCH}
        return {"sizes": sizes, **per_sample, **per_batch}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> StreamLog:
        sizes = tensors["sizes"].tolist()
        per_sample = {name: list(torch.split(tensors[name], sizes)) for name in _PER_SAMPLE}
        per_batch = {name: list(tensors[name].unbind()) for name in _PER_BATCH}
        return cls(**per_sample, **per_batch)


_PER_SAMPLE = ("predictions", "targets", "classes", "novelty", "pseudo_labels")
_PER_BATCH = ("thresholds", "unknown_share", "seconds")


@dataclass(frozen=True)
class RunResult:
    """The record of a run, ready for JSON, and the log it was computed from."""

    record: dict[str, Any]
    log: StreamLog

    @property
    def score(self) -> float:
        """The shift's own score: accuracy for PDA, H-score otherwise."""
        return float(self.record["metrics"][self.record["score"]])

    def save(self, path: str | Path) -> None:
        """Write the record as JSON."""
        write_text(path, json.dumps(self.record, indent=2, allow_nan=False) + "\n")


def score_name(shift: Shift) -> str:
    """The metric the paper reports for a category shift."""
    return "accuracy" if shift is Shift.PDA else "h_score"


def run_stream(
    method: Method,
    stream: Stream,
    split: ClassSplit,
    *,
    protocol: dict[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
    on_batch: Callable[[StreamLog], None] | None = None,
) -> RunResult:
    """Run ``method`` over ``stream`` once and score it.

    Args:
        method: adapted in place, batch by batch.
        stream: batches of images and labels; the labels only score.
        split: the class split, which says what is scored and how.
        protocol: anything to keep in the record about where the stream came from.
        checkpoint: file that holds method and log. If it is there, the run goes on from it, bit for bit as if it had
            never stopped, provided that method, settings, split and protocol are the same. It is left in its place:
            remove it once the result is safe.
        checkpoint_every: seconds between two checkpoints; 0 for one after each batch.
        on_batch: called after each batch with the log so far.
    """
    if split.num_source != method.model.num_classes:
        raise DriftgateError(
            f"Expected a split with {method.model.num_classes} source classes, as the model has, but {split} has "
            f"{split.num_source}."
        )
    identity = _identity(method, stream, split, protocol or {})
    log = StreamLog()
    if checkpoint is not None and Path(checkpoint).exists():
        log = _resume(method, stream, identity, checkpoint)
    give_back_memory()  # what earlier work of this process left must count neither for nor against this run
    loaded = resident_memory() or 0
    reset_peak_memory()
    pace = Pace(checkpoint_every)
    for batch in stream.batches(start=len(log)):
        started = time.perf_counter()
        prediction = method.step(batch.images)
        log.add(prediction, batch.labels, time.perf_counter() - started)
        if on_batch is not None:
            on_batch(log)
        if checkpoint is not None and pace.due():
            _save_progress(method, stream, log, identity, checkpoint)
    if len(log) == 0:
        raise DriftgateError("Expected a stream with at least one batch but it is empty.")
    record = _record(method, log, split, protocol or {}, stream.skipped)
    return RunResult({**record, "peak_memory_bytes": max(peak_memory() - loaded, 0)}, log)


def evaluate(log: StreamLog, split: ClassSplit, first: int = 0, last: int | None = None) -> dict[str, float]:
    """All metrics over the batches ``first`` to ``last`` of a log; NaN where a metric has nothing to measure."""
    # Imported where a stream is scored: torchmetrics takes as long to import as torch, and a step needs none of it.
    from driftgate.metrics import HScore, OnlineAccuracy, best_threshold, novelty_auroc

    predictions, targets, classes, novelty = (
        torch.cat(getattr(log, name)[first:last]) for name in ("predictions", "targets", "classes", "novelty")
    )
    accuracy, h_score = OnlineAccuracy(), HScore(split.shared_classes)
    accuracy.update(predictions, targets)
    h_score.update(predictions, targets)
    metrics = {"accuracy": float(accuracy.compute())}
    if split.shift is not Shift.PDA:
        metrics |= {name: float(value) for name, value in h_score.compute().items()}
        metrics["auroc"] = novelty_auroc(novelty, targets)
    metrics["best_threshold_score"] = best_threshold(novelty, classes, targets, split.shared_classes)[0]
    return metrics


def running_scores(log: StreamLog, split: ClassSplit) -> list[float]:
    """The shift's score after each batch, over all samples up to it."""
    from driftgate.metrics import HScore, OnlineAccuracy

    metric = OnlineAccuracy() if split.shift is Shift.PDA else HScore(split.shared_classes)
    scores = []
    for predictions, targets in zip(log.predictions, log.targets, strict=True):
        metric.update(predictions, targets)
        value = metric.compute()
        scores.append(float(value["h_score"] if isinstance(value, dict) else value))
    return scores


def part_scores(log: StreamLog, split: ClassSplit, parts: int) -> list[float]:
    """The shift's score over each of ``parts`` equal stretches of the stream; NaN for one without a batch."""
    score = score_name(split.shift)
    ends = [len(log) * number // parts for number in range(parts + 1)]
    return [evaluate(log, split, first, last)[score] if first < last else math.nan for first, last in pairwise(ends)]


def used_share(log: StreamLog) -> list[float]:
    """Share of each batch that got a pseudo-label, known or unknown: the samples used for adaptation."""
    return [float((labels != UNLABELED).double().mean()) for labels in log.pseudo_labels]


def share_series(log: StreamLog) -> dict[str, list[float]]:
    """Shares of each batch: truly unknown, predicted as unknown and, for a method that estimates it, the estimate."""
    found = {
        "true_share": [float((labels == UNKNOWN).double().mean()) for labels in log.targets],
        "rejected_share": [float((labels == UNKNOWN).double().mean()) for labels in log.predictions],
    }
    estimates = torch.stack(log.unknown_share)
    return found if bool(estimates.isnan().all()) else {**found, "estimated_share": estimates.tolist()}


def mean_shares(log: StreamLog) -> dict[str, float]:
    """``true``, ``rejected`` and ``estimated`` share over all samples; an estimate counts once for each sample."""
    sizes = torch.tensor([len(batch) for batch in log.targets], dtype=torch.float64)
    found = {}
    for name, values in share_series(log).items():
        shares = torch.tensor(values, dtype=torch.float64)
        there = ~shares.isnan()
        found[name.removesuffix("_share")] = float((shares * sizes)[there].sum() / sizes[there].sum())
    return found


def _record(
    method: Method, log: StreamLog, split: ClassSplit, protocol: dict[str, Any], skipped: list[str]
) -> dict[str, Any]:
    from driftgate.metrics import DEFINITIONS

    score = score_name(split.shift)
    metrics = evaluate(log, split)
    seconds = torch.stack(log.seconds)
    thresholds = torch.stack(log.thresholds).tolist()
    record: dict[str, Any] = {
        "format": RECORD_FORMAT,
        "method": method.name,
        "settings": method.settings.model_dump(mode="json"),
        "model": method.model.spec.model_dump(mode="json"),
        "protocol": {
            **protocol,
            "shift": split.shift.value,
            "split": str(split),
            "class_order": split.order,
            "batches": len(log),
            "samples": int(sum(len(batch) for batch in log.targets)),
            "skipped": list(skipped),
        },
        "score": score,
        "metrics": metrics,
        "halves": part_scores(log, split, 2),
        "tenths": part_scores(log, split, 10),
        "shares": mean_shares(log),
        "definitions": {name: DEFINITIONS[name] for name in metrics},
        "series": {
            "running_score": running_scores(log, split),
            "used_share": used_share(log),
            **share_series(log),
            "tau_known": [row[0] for row in thresholds],
            "tau_unknown": [row[1] for row in thresholds],
            "tau": [row[2] for row in thresholds],
        },
        "seconds": {"total": float(seconds.sum()), "median_per_batch": float(seconds.median())},
        "state_bytes": method.num_bytes,
        "versions": versions(),
    }
    finite: dict[str, Any] = _without_nan(record)
    return finite


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    packages = ("driftgate", "torch", "torchmetrics", "kornia", "scikit-learn", "numpy")
    found = {name: _version(name) for name in packages}
    return {"python": platform.python_version(), "platform": platform.platform(), **found}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "not installed"


def _without_nan(value: Any) -> Any:
    """JSON knows neither NaN nor infinity: None instead."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def _identity(method: Method, stream: Stream, split: ClassSplit, protocol: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for a run to be the continuation of another; as it comes back from JSON."""
    facts = {
        **method_info(method),
        "protocol": protocol,
        "split": f"{split} {split.order}",
        "batches": len(stream),
    }
    identity: dict[str, Any] = json.loads(json.dumps(facts))
    return identity


def _save_progress(method: Method, stream: Stream, log: StreamLog, identity: dict[str, Any], path: str | Path) -> None:
    tensors = {**with_prefix("method", method_tensors(method)), **with_prefix("log", log.tensors())}
    write_checkpoint(path, PROGRESS, tensors, {**identity, "skipped": list(stream.skipped)})


def _resume(method: Method, stream: Stream, identity: dict[str, Any], path: str | Path) -> StreamLog:
    tensors, info = read_checkpoint(path, PROGRESS)
    for name, mine in identity.items():
        if info.get(name) != mine:
            raise DriftgateError(
                f"Expected to resume a run with {name} {mine} but {path} holds one with {info.get(name)}; "
                "remove the file to start anew."
            )
    restore_method(method, under_prefix("method", tensors))
    stream.restore_skipped(info["skipped"])
    return StreamLog.from_tensors(under_prefix("log", tensors))
