"""The board: what the page and ``GET /v1/state`` show, gathered batch by batch in a window of the recent past."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import asdict
from typing import Any

import torch

from driftgate.guard import SignalHealth
from driftgate.guard.signals import MEANINGS
from driftgate.resources import resident_memory
from driftgate.serve.answers import BatchReport, class_name, finite
from driftgate.serve.clock import timestamp
from driftgate.serve.engine import Engine
from driftgate.types import UNKNOWN, Prediction

BATCHES, SAMPLES, BINS, TOP_CLASSES = 180, 2000, 36, 12


class Board:
    """Listens to the engine; ``describe`` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[dict[str, float | None]] = deque(maxlen=BATCHES)
        self._predictions: deque[Prediction] = deque()
        self._kept = 0
        self.totals = {"samples": 0, "unknown": 0, "batches": 0, "steps": 0, "steps_that_taught_nothing": 0}

    def __call__(self, report: BatchReport) -> None:
        """Take in one batch."""
        prediction, count = report.prediction, len(report.answers)
        unknown = int((prediction.labels == UNKNOWN).sum())
        memory = resident_memory()
        row = {
            "samples": float(count),
            "rejected": unknown / count,
            "estimated": finite(prediction.unknown_share),
            **{f"threshold_{name}": finite(value) for name, value in prediction.thresholds._asdict().items()},
            "answer_ms": 1000 * report.seconds_to_answer,
            "step_ms": 1000 * report.seconds,
            "memory_mb": None if memory is None else memory / 1e6,
        }
        with self._lock:
            self._batches.append(row)
            self._predictions.append(prediction)
            self._kept += count
            while self._kept - len(self._predictions[0]) >= SAMPLES:
                self._kept -= len(self._predictions.popleft())
            self.totals["samples"] += count
            self.totals["unknown"] += unknown
            self.totals["batches"] += 1
            self.totals["steps"] += report.learned
            self.totals["steps_that_taught_nothing"] += report.learned and not report.taught

    def describe(self, engine: Engine) -> dict[str, Any]:
        """All of it as JSON."""
        with self._lock:
            batches, predictions = list(self._batches), list(self._predictions)
            totals = dict(self.totals)
        names = engine.method.model.spec.class_names
        health = engine.health
        return {
            "time": timestamp(),
            "version": engine.version,
            "mode": health.mode,
            "steps": engine.method.steps,
            "steps_lost_at_start": engine.folder.lost,
            "queue": engine.queue_length,
            "state_bytes": engine.method.num_bytes,
            "resident_bytes": resident_memory(),
            "totals": totals,
            "problems": [*engine.folder.problems, *([engine.save_problem] if engine.save_problem else [])],
            "health": {
                "mode": health.mode,
                "alarms": health.alarms,
                "signals": {
                    name: {"meaning": MEANINGS.get(name, ""), **_numbers(signal)}
                    for name, signal in health.signals.items()
                },
            },
            "events": [asdict(event) for event in list(engine.events)[-20:]],
            "snapshots": [asdict(snapshot) for snapshot in engine.snapshots],
            "series": {name: [row[name] for row in batches] for name in batches[0]} if batches else {},
            "novelty": _histogram(predictions),
            "classes": _class_shares(predictions, names),
        }


def _numbers(signal: SignalHealth) -> dict[str, float | None]:
    return {name: finite(value) for name, value in asdict(signal).items()}


def _histogram(predictions: list[Prediction]) -> dict[str, Any] | None:
    """Counts of the recent novelty in equal bins, those answered as a class and as unknown apart."""
    if not predictions:
        return None
    novelty = torch.cat([prediction.novelty.double() for prediction in predictions])
    unknown = torch.cat([prediction.labels == UNKNOWN for prediction in predictions])
    # A few samples far out must not squeeze all others into one bin; they are counted in the last one.
    low, high = torch.quantile(novelty, torch.tensor([0.0, 0.995], dtype=torch.float64)).tolist()
    high = high if high > low else low + 1.0
    inside = novelty.clamp(low, high)
    known_counts, unknown_counts = (
        torch.histc(inside[chosen], BINS, low, high).long().tolist() for chosen in (~unknown, unknown)
    )
    thresholds = predictions[-1].thresholds._asdict()
    return {
        "low": low,
        "high": high,
        "known": known_counts,
        "unknown": unknown_counts,
        "thresholds": {name: finite(value) for name, value in thresholds.items()},
    }


def _class_shares(predictions: list[Prediction], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Share of the recent answers, the most frequent classes first, unknown before all, the rest together."""
    if not predictions:
        return []
    labels = torch.cat([prediction.labels for prediction in predictions])
    shares = (torch.bincount(labels + 1, minlength=len(names) + 1) / len(labels)).tolist()
    rows = [{"name": class_name(names, UNKNOWN), "share": shares[0], "unknown": True}]
    order = sorted(range(len(names)), key=lambda index: -shares[index + 1])
    shown = order if len(order) <= TOP_CLASSES else order[: TOP_CLASSES - 1]
    # In the model's own order: bars that change places every second cannot be read.
    rows += [{"name": names[index], "share": shares[index + 1], "unknown": False} for index in sorted(shown)]
    if len(shown) < len(names):
        rest = sum(shares[index + 1] for index in order[len(shown) :])
        rows.append({"name": f"{len(names) - len(shown)} others", "share": rest, "unknown": False})
    return rows
