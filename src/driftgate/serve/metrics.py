"""What Prometheus reads at ``/metrics``: names by its rules, base units, one registry a service."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import torch
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from driftgate.guard import Event
from driftgate.serve.answers import BatchReport, class_name
from driftgate.serve.engine import Engine
from driftgate.types import UNKNOWN, Prediction

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUANTILES = (0.1, 0.5, 0.9, 0.99)
WINDOW = 20
"""Batches that gauges of the recent past look back on."""


class Metrics:
    """Listens to the engine and to the front door."""

    def __init__(self, class_names: Sequence[str]) -> None:
        registry = CollectorRegistry()
        self.registry, self._names = registry, tuple(class_names)
        self._recent: deque[Prediction] = deque(maxlen=WINDOW)
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "driftgate_requests", "HTTP requests by path and status.", ["path", "code"], registry=registry
        )
        self.request_seconds = Histogram(
            "driftgate_request_duration_seconds", "Time to answer.", ["path"], buckets=SECONDS, registry=registry
        )
        self.batch_samples = Histogram(
            "driftgate_batch_samples", "Samples gathered into a batch.", buckets=SIZES, registry=registry
        )
        self.answer_seconds = Histogram(
            "driftgate_batch_answer_seconds",
            "From a complete batch to its answers.",
            buckets=SECONDS,
            registry=registry,
        )
        self.step_seconds = Histogram(
            "driftgate_batch_duration_seconds", "The same, with the learning.", buckets=SECONDS, registry=registry
        )
        self.answers = Counter("driftgate_answers", "Answers by class.", ["class_name"], registry=registry)
        self.steps = Counter("driftgate_steps", "Learning steps.", registry=registry)
        self.skipped = Counter(
            "driftgate_skipped_steps", "Batches that taught nothing while learning was on.", registry=registry
        )
        self.events = Counter("driftgate_guard_events", "What the guard did.", ["kind"], registry=registry)
        self.alarms = Counter("driftgate_alarms", "Alarms of the guard by signal.", ["signal"], registry=registry)
        self.refused = Counter("driftgate_refused_pictures", "Refused pictures by status.", ["code"], registry=registry)
        for name in (*self._names, class_name((), UNKNOWN)):
            self.answers.labels(name)  # so that each exists from the start, at zero

    def __call__(self, report: BatchReport) -> None:
        """Take in one batch."""
        self._recent.append(report.prediction)
        self.batch_samples.observe(len(report.answers))
        self.answer_seconds.observe(report.seconds_to_answer)
        self.step_seconds.observe(report.seconds)
        for answer in report.answers:
            self.answers.labels(answer.name).inc()
        self.steps.inc(report.learned)
        self.skipped.inc(report.learned and not report.taught)

    def event(self, event: Event) -> None:
        """Something the guard did."""
        self.events.labels(event.kind).inc()
        if event.kind == "alarm":
            self.alarms.labels(event.signal or "none").inc()

    def watch(self, engine: Engine) -> None:
        """Read the gauges off an engine whenever somebody asks."""
        self.registry.register(_Gauges(engine, self._recent))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Gauges(Collector):
    """What is true now."""

    def __init__(self, engine: Engine, recent: deque[Prediction]) -> None:
        self.engine, self.recent = engine, recent

    def collect(self) -> Iterable[Metric]:
        engine, predictions = self.engine, list(self.recent)
        learning = engine.health.mode in ("learning", "slow")
        yield _gauge("driftgate_learning", "1 while the service learns.", float(learning))
        yield _gauge("driftgate_queue_samples", "Samples that wait.", engine.queue_length)
        yield _gauge("driftgate_state_bytes", "What the method remembers beside the network.", engine.method.num_bytes)
        yield _gauge("driftgate_steps_lost_at_start", "Steps the last service had not saved.", engine.folder.lost)
        yield _gauge("driftgate_save_failing", "1 while the state cannot be saved.", float(bool(engine.save_problem)))
        yield _gauge("driftgate_failures", "Batches or listeners that failed since the start.", engine.failures)
        yield _gauge("driftgate_snapshots", "Snapshots in the ring.", len(engine.snapshots))
        if not predictions:
            return
        labels = torch.cat([prediction.labels for prediction in predictions])
        rejected = float((labels == UNKNOWN).double().mean())
        yield _gauge("driftgate_rejected_ratio", f"Share answered as unknown, last {WINDOW} batches.", rejected)
        estimate = predictions[-1].unknown_share
        yield _gauge("driftgate_unknown_ratio", "Share of unknown samples as the method estimates it.", estimate)
        novelty = GaugeMetricFamily("driftgate_novelty", f"Novelty, last {WINDOW} batches.", labels=["quantile"])
        found = torch.cat([prediction.novelty.double() for prediction in predictions])
        levels = torch.quantile(found, torch.tensor(QUANTILES, dtype=torch.float64)).tolist()
        for quantile, level in zip(QUANTILES, levels, strict=True):
            novelty.add_metric([f"{quantile:g}"], level)
        yield novelty
        cuts = GaugeMetricFamily("driftgate_threshold", "Thresholds on the novelty.", labels=["name"])
        for name, value in predictions[-1].thresholds._asdict().items():
            cuts.add_metric([name], value)
        yield cuts


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)
