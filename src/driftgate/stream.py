"""The one loop: predict, score, learn. It writes the run record, and can be stopped and resumed."""

from __future__ import annotations

import json
import logging
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from importlib import metadata
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from driftgate.checkpoint import CHECKPOINT_SECONDS
from driftgate.files import write_text
from driftgate.log import Step, StreamLog, Tally
from driftgate.methods.base import Method, method_info
from driftgate.models.input import labels_of
from driftgate.pacing import Learner, Pacing
from driftgate.progress import Progress
from driftgate.record import RECORD_FORMAT, Record
from driftgate.resources import give_back_memory, peak_memory, reset_peak_memory, resident_memory
from driftgate.shifts import ClassSplit, Shift
from driftgate.types import UNKNOWN, UNLABELED, DriftgateError, Stream

LONG_STREAM = 200
"""Batches from which on the tenths of a stream are long enough to be looked at one by one."""

logger = logging.getLogger(__name__)


Hook = Callable[[Step], None]
"""Told of every step; ``driftgate.loggers`` has some."""


class SeenSplit(NamedTuple):
    """What a labelled stream turned out to be, where no split was told: its classes, and the shift that makes."""

    shift: Shift
    shared_classes: tuple[int, ...]

    @classmethod
    def of(cls, log: StreamLog, num_classes: int) -> SeenSplit:
        seen = torch.unique(torch.cat(log.targets)).tolist()
        shared = tuple(label for label in seen if label >= 0)
        if UNKNOWN not in seen:
            return cls(Shift.PDA, shared)
        return cls(Shift.ODA if len(shared) == num_classes else Shift.OPDA, shared)


@dataclass(frozen=True)
class RunResult:
    """The record of a run, ready for JSON, and the log it was computed from."""

    record: dict[str, Any]
    log: StreamLog

    @property
    def score(self) -> float:
        """The shift's own score: accuracy for PDA, H-score otherwise; NaN for a stream without labels."""
        return float(self.record["metrics"][self.record["score"]]) if self.record["metrics"] else math.nan

    def save(self, path: str | Path) -> None:
        """Write the record as JSON."""
        write_text(path, json.dumps(self.record, indent=2, allow_nan=False) + "\n")


def score_name(shift: Shift) -> str:
    """The metric the paper reports for a category shift."""
    return "accuracy" if shift is Shift.PDA else "h_score"


def run_stream(
    method: Method,
    stream: Stream | Iterable[Any],
    split: ClassSplit | None = None,
    *,
    protocol: dict[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
    on_step: Hook | Sequence[Hook] = (),
    on_batch: Callable[[StreamLog], None] | None = None,
    learner: Learner | None = None,
    max_delay: float | None = None,
) -> RunResult:
    """Run ``method`` over ``stream`` once, and score it where labels are known.

    Args:
        method: adapted in place, batch by batch.
        stream: anything that gives batches ``method.step`` takes: tensors, (x, y) pairs, dictionaries, a DataLoader.
            Labels, a class of the model or ``UNKNOWN``, only score; without any the record tells what can be known
            without: shares rejected, learned from and of each class, novelty and losses.
        split: the class split, which says what is scored and how; None for what the labels show.
        protocol: anything to keep in the record about where the stream came from.
        checkpoint: file that holds the method, beside it ``.log`` with the log. If it is there, the run goes on from
            it, bit for bit as if it had never stopped, provided that method, settings, split and protocol are the same,
            and that the stream gives the same batches again: those done are drawn and left. Ctrl-C and SIGTERM leave
            one, too, and a second run on the same file is refused. The files are left in their place:
            ``driftgate.progress.remove_progress`` removes them once the result is safe.
        checkpoint_every: seconds between two checkpoints; 0 for one after each batch.
        on_step: called after each batch with the step, one function or several; see ``driftgate.loggers``.
        on_batch: called after each batch with the log so far.
        learner: answers in the method's place, as a guard around it does; None for the method itself.
        max_delay: seconds within which a prediction shall stand once its batch has come, for a stream that does not
            wait: learning is skipped where there is no time for it, and the record's ``pace`` tells how often; see
            ``driftgate.pacing``. What is learned then hangs on the clock, so that no such run can be resumed.
    """
    if max_delay is not None and checkpoint is not None:
        raise DriftgateError("Expected max_delay without a checkpoint: what is learned hangs on the clock; drop one.")
    if split is not None and split.num_source != method.model.num_classes:
        raise DriftgateError(
            f"Expected a split with {method.model.num_classes} source classes, as the model has, but {split} has "
            f"{split.num_source}; give the split of the model."
        )
    stream = stream if isinstance(stream, Stream) else PlainStream(stream)
    hooks = [on_step] if callable(on_step) else on_step
    pacing = None if max_delay is None else Pacing(max_delay)
    identity = _identity(method, stream, split, protocol or {})
    with Progress(checkpoint, identity, checkpoint_every) as progress:
        log = progress.resume(method, stream)
        give_back_memory()  # what earlier work of this process left must count neither for nor against this run
        loaded = resident_memory() or 0
        reset_peak_memory()
        for step in _steps(method, stream, len(log), learner or method, pacing):
            log.add(step)
            for hook in hooks:
                hook(step)
            if on_batch is not None:
                on_batch(log)
            progress.after_batch(method, stream, log)
    if len(log) == 0:
        raise DriftgateError("Expected a stream with at least one batch but it is empty; give it samples.")
    record = _record(method, log, split, protocol or {}, stream.skipped)
    if pacing is not None:
        record["pace"] = pacing.as_dict()
    return RunResult({**record, "peak_memory_bytes": max(peak_memory() - loaded, 0)}, log)


def stream_steps(
    method: Method, stream: Stream | Iterable[Any], *, max_delay: float | Pacing | None = None
) -> Iterator[Step]:
    """The steps of ``method`` over ``stream``, one by one, for a loop of your own; nothing of them is kept.

    ``max_delay`` as in ``run_stream``; a ``Pacing`` of your own keeps the counts.
    """
    pacing = Pacing(max_delay) if isinstance(max_delay, int | float) else max_delay
    return _steps(method, stream if isinstance(stream, Stream) else PlainStream(stream), 0, method, pacing)


def _steps(
    method: Method, stream: Stream, start: int, learner: Learner, pacing: Pacing | None = None
) -> Iterator[Step]:
    spec, num_classes = method.model.spec, method.model.num_classes
    if pacing is not None:
        for number, (batch, prediction, seconds, delay) in enumerate(
            pacing.steps(learner, _labelled(stream.batches(start=start), method)), start + 1
        ):
            yield Step(number, prediction, labels_of(batch, spec, num_classes), seconds, batch, delay)
        return
    for number, batch in enumerate(stream.batches(start=start), start + 1):
        targets = labels_of(batch, spec, num_classes)  # first: a bad batch must not be learned from
        started = time.perf_counter()
        prediction = learner.step(batch)
        yield Step(number, prediction, targets, time.perf_counter() - started, batch)


def _labelled(batches: Iterator[Any], method: Method) -> Iterator[Any]:
    """The same batches, a bad one refused before it could be learned from."""
    for batch in batches:
        labels_of(batch, method.model.spec, method.model.num_classes)
        yield batch


class PlainStream(Stream):
    """Any iterable as a stream; what is before ``start`` is drawn and left."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.source = batches

    def __len__(self) -> int:
        return len(self.source) if isinstance(self.source, Sized) else 0

    def batches(self, start: int = 0) -> Iterator[Any]:
        return islice(iter(self.source), start, None)


def evaluate(
    log: StreamLog, split: ClassSplit | SeenSplit, first: int = 0, last: int | None = None
) -> dict[str, float]:
    """All metrics over the labelled samples of batches ``first`` to ``last``; NaN for one with nothing to measure."""
    # Imported where a stream is scored: torchmetrics takes as long to import as torch, and a step needs none of it.
    from driftgate.metrics import HScore, OnlineAccuracy, best_threshold, novelty_auroc

    predictions, targets, classes, novelty = (
        torch.cat(getattr(log, name)[first:last]) for name in ("predictions", "targets", "classes", "novelty")
    )
    labelled = targets != UNLABELED
    predictions, targets, classes, novelty = (part[labelled] for part in (predictions, targets, classes, novelty))
    accuracy, h_score = OnlineAccuracy(), HScore(split.shared_classes)
    accuracy.update(predictions, targets)
    h_score.update(predictions, targets)
    metrics = {"accuracy": float(accuracy.compute())}
    if split.shift is not Shift.PDA:
        metrics |= {name: float(value) for name, value in h_score.compute().items()}
        metrics["auroc"] = novelty_auroc(novelty, targets)
    best = best_threshold(novelty, classes, targets, split.shared_classes)[0] if len(targets) else math.nan
    metrics["best_threshold_score"] = best
    return metrics


def running_scores(log: StreamLog, split: ClassSplit | SeenSplit) -> list[float]:
    """The shift's score after each batch, over all samples up to it."""
    from driftgate.metrics import HScore, OnlineAccuracy

    metric = OnlineAccuracy() if split.shift is Shift.PDA else HScore(split.shared_classes)
    scores = []
    for predictions, targets in zip(log.predictions, log.targets, strict=True):
        labelled = targets != UNLABELED
        metric.update(predictions[labelled], targets[labelled])
        value = metric.compute()
        scores.append(float(value["h_score"] if isinstance(value, dict) else value))
    return scores


def part_scores(log: StreamLog, split: ClassSplit | SeenSplit, parts: int) -> list[float]:
    """The shift's score over each of ``parts`` equal stretches of the stream; NaN for one without a batch."""
    score = score_name(split.shift)
    ends = [len(log) * number // parts for number in range(parts + 1)]
    return [evaluate(log, split, first, last)[score] if first < last else math.nan for first, last in pairwise(ends)]


def used_share(log: StreamLog) -> list[float]:
    """Share of each batch that got a pseudo-label, known or unknown: the samples used for adaptation."""
    return [float((labels != UNLABELED).double().mean()) for labels in log.pseudo_labels]


def share_series(log: StreamLog) -> dict[str, list[float]]:
    """Shares of each batch: truly unknown, where there are labels, predicted as unknown and, for a method that
    estimates it, the estimate."""
    found = {"rejected_share": [float((labels == UNKNOWN).double().mean()) for labels in log.predictions]}
    if log.has_labels:
        truth = [labels[labels != UNLABELED] for labels in log.targets]
        found = {"true_share": [float((labels == UNKNOWN).double().mean()) for labels in truth], **found}
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


def class_counts(log: StreamLog, num_classes: int) -> dict[str, list[int]]:
    """Samples of each source class: how many came, were right, were rejected; and how many unknown ones it took."""
    predictions, targets = torch.cat(log.predictions), torch.cat(log.targets)

    def count(labels: torch.Tensor, chosen: torch.Tensor) -> list[int]:
        found: list[int] = torch.bincount(labels[chosen], minlength=num_classes)[:num_classes].tolist()
        return found

    known, unknown = targets >= 0, targets == UNKNOWN
    return {
        "samples": count(targets, known),
        "right": count(targets, known & (predictions == targets)),
        "rejected": count(targets, known & (predictions == UNKNOWN)),
        "unknown_taken": count(predictions, unknown & (predictions >= 0)),
    }


def _record(
    method: Method, log: StreamLog, split: ClassSplit | None, protocol: dict[str, Any], skipped: list[str]
) -> dict[str, Any]:
    seconds = torch.stack(log.seconds)
    thresholds = torch.stack(log.thresholds).tolist()
    scored = _scores(log, split, method.model.num_classes)
    running = scored.pop("running_score")
    record: dict[str, Any] = {
        "format": RECORD_FORMAT,
        "method": method.name,
        "settings": method.settings.model_dump(mode="json"),
        "model": method.model.spec.model_dump(mode="json"),
        "protocol": {
            **protocol,
            "shift": scored.pop("shift"),
            "split": None if split is None else str(split),
            "class_order": None if split is None else split.order,
            "batches": len(log),
            "samples": int(sum(len(batch) for batch in log.targets)),
            "skipped": list(skipped),
        },
        **scored,
        "shares": mean_shares(log),
        "without_labels": Tally.of(log, method.model.spec.class_names).as_dict(),
        "series": {
            **running,
            "used_share": used_share(log),
            **share_series(log),
            **{f"loss_{name}": values for name, values in log.losses.items()},
            "tau_known": [row[0] for row in thresholds],
            "tau_unknown": [row[1] for row in thresholds],
            "tau": [row[2] for row in thresholds],
        },
        "seconds": {"total": float(seconds.sum()), "median_per_batch": float(seconds.median())},
        "state_bytes": method.num_bytes,
        "versions": versions(),
    }
    finite: dict[str, Any] = _without_nan(record)
    Record.model_validate(finite)  # what is written must be what every reader understands
    return finite


def _scores(log: StreamLog, split: ClassSplit | None, num_classes: int) -> dict[str, Any]:
    """What only labels can tell, for the record; empty places without any."""
    from driftgate.metrics import DEFINITIONS

    if not log.has_labels:
        shift = None if split is None else split.shift.value
        nothing: dict[str, Any] = {"metrics": {}, "halves": [], "tenths": [], "definitions": {}}
        return {"shift": shift, "score": None, **nothing, "running_score": {}}
    scored = SeenSplit.of(log, num_classes) if split is None else split
    metrics = evaluate(log, scored)
    return {
        "shift": scored.shift.value,
        "score": score_name(scored.shift),
        "metrics": metrics,
        "halves": part_scores(log, scored, 2),
        "tenths": part_scores(log, scored, 10),
        "classes": class_counts(log, num_classes),
        "definitions": {name: DEFINITIONS[name] for name in metrics},
        "running_score": {"running_score": running_scores(log, scored)},
    }


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


def _identity(method: Method, stream: Stream, split: ClassSplit | None, protocol: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for a run to be the continuation of another."""
    return {
        **method_info(method),
        "protocol": protocol,
        "split": None if split is None else f"{split} {split.order}",
        "batches": len(stream),
    }
