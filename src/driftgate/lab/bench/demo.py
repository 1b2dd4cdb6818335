"""The demo: a model trained on rendered digits meets a stream of handwritten ones, under PDA, ODA and OPDA."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftgate.checkpoint import write_text
from driftgate.lab.bench.figures import FeatureView, demo_picture, project_mixture
from driftgate.lab.bench.jobs import Progress, run_jobs
from driftgate.lab.data.datasets import DataSet, open_dataset
from driftgate.lab.data.digits import CLASS_NAMES, load_digits
from driftgate.lab.data.domains import MemoryDomain
from driftgate.lab.data.streams import DomainStream
from driftgate.lab.pretrain import PretrainSettings, pretrain
from driftgate.log import StreamLog
from driftgate.memory import StreamingGMM
from driftgate.methods import create
from driftgate.methods.gmm import GMM
from driftgate.models import SourceModel
from driftgate.models.normalization import batch_statistics, preserved_buffers
from driftgate.shifts import ClassSplit, Shift
from driftgate.stream import RunResult, run_stream, score_name
from driftgate.types import DriftgateError

METHODS = ("source-only", "bn-stats", "gmm")
DATA, SOURCE, TARGET = "digits", "rendered", "mnist"
BATCH_SIZE = 64
PER_CLASS, QUICK_PER_CLASS = 500, 40
"""Rendered pictures of each digit: for the demo, and for a quick look at it."""

VIEW_SHIFT = Shift.OPDA
"""The shift whose feature space is drawn: it has shared, source-private and unknown classes."""


@dataclass(frozen=True)
class DemoRun:
    """One method over one stream."""

    shift: Shift
    method: str
    seed: int
    result: RunResult

    @property
    def name(self) -> str:
        return f"{self.shift.value}-{self.method}-seed{self.seed}"


@dataclass(frozen=True)
class DemoCell:
    """All methods for one seed and shift, and perhaps the feature space before and after."""

    runs: list[DemoRun]
    views: tuple[FeatureView, FeatureView] | None


@dataclass(frozen=True)
class DemoResult:
    """All runs of a demo, and the feature space of one of them before and after."""

    runs: list[DemoRun]
    views: tuple[FeatureView, FeatureView]
    seconds: float

    @property
    def summary(self) -> dict[str, dict[str, dict[str, float | None]]]:
        return summarise(self.runs)

    def save(self, out: str | Path) -> None:
        """Write ``summary.json``, a record a run and the picture into the folder ``out``."""
        folder = Path(out)
        for run in self.runs:
            run.result.save(folder / "records" / f"{run.name}.json")
        demo_picture([(run.shift, run.method, run.result) for run in self.runs], self.views, folder / "demo.png")
        write_text(folder / "summary.json", json.dumps(self.summary, indent=2, allow_nan=False) + "\n")


def run_demo(
    *, seeds: int = 3, limit: int | None = None, workers: int = 1, progress: Progress | None = None
) -> DemoResult:
    """Train a source model for each shift and seed, and stream the target through it with every method.

    Args:
        seeds: number of seeds; a seed decides the rendered digits, the weights and the order of the stream.
        limit: number of batches of each stream, after a short training; all if None. For a quick look.
        workers: processes that share the work; see ``run_jobs``.
        progress: called as the work goes on.
    """
    if seeds < 1 or (limit is not None and limit < 1):
        raise DriftgateError(f"Expected at least one seed and one batch but got {seeds} seeds and a limit of {limit}.")
    started = time.perf_counter()
    jobs = [(seed, shift, limit) for seed in range(seeds) for shift in Shift]
    cells = run_jobs(run_cell, jobs, workers=workers, progress=progress or _silent)
    views = next(cell.views for cell in cells if cell.views is not None)
    return DemoResult([run for cell in cells for run in cell.runs], views, time.perf_counter() - started)


def run_cell(seed: int, shift: Shift, limit: int | None, progress: Progress) -> DemoCell:
    """Every method over the stream of one seed and shift; the feature space for the one that is drawn."""
    data = open_dataset(DATA)
    split = data.split(shift)
    source = train_source(split, seed, limit, progress)
    stream = target_stream(data, source, split, seed, limit)
    runs = []
    views = None
    for name in METHODS:
        method = create(name, source.clone(), seed=seed)
        told = partial(progress, f"{shift.value}  seed {seed}  {name}")
        result = run_stream(
            method, stream, split, protocol=_protocol(seed, limit), on_batch=_counting(told, len(stream))
        )
        runs.append(DemoRun(shift, name, seed, result))
        if (seed, shift) == (0, VIEW_SHIFT) and isinstance(method, GMM):
            views = feature_views(source, method, stream)
    return DemoCell(runs, views)


def _silent(label: str, done: int, total: int) -> None:
    """Report to nobody."""


def _counting(told: Callable[[int, int], None], total: int) -> Callable[[StreamLog], None]:
    """What ``run_stream`` calls after each batch."""
    return lambda log: told(len(log), total)


def _protocol(seed: int, limit: int | None) -> dict[str, Any]:
    return {
        "data": DATA,
        "source": SOURCE,
        "target": TARGET,
        "seed": seed,
        "batch_size": BATCH_SIZE,
        "drop_last": False,
        "limit": limit,
    }


def train_source(split: ClassSplit, seed: int, limit: int | None, progress: Progress) -> SourceModel:
    """A small network that knows the rendered digits of the split's source classes."""
    per_class = PER_CLASS if limit is None else QUICK_PER_CLASS
    domain = MemoryDomain(SOURCE, *load_digits(SOURCE, seed=seed, per_class=per_class))
    model = SourceModel.build("cnn", CLASS_NAMES[: split.num_source], seed=seed)
    settings = PretrainSettings.for_dataset(DATA, seed=seed, epochs=None if limit is None else 1)
    told = partial(progress, f"{split.shift.value}  seed {seed}  source training")
    pretrain(model, domain, split, settings, workers=0, on_step=lambda step: told(step.step, step.steps))
    return model


def target_stream(
    data: DataSet, model: SourceModel, split: ClassSplit, seed: int, limit: int | None = None
) -> DomainStream:
    """The handwritten digits of the split's target classes, in an order of the seed's."""
    samples = None if limit is None else limit * BATCH_SIZE
    target, size = data.domain(TARGET), model.spec.image_size
    return DomainStream([target], split, input_size=size, batch_size=BATCH_SIZE, seed=seed, workers=0, limit=samples)


def feature_views(source: SourceModel, adapted: GMM, stream: DomainStream) -> tuple[FeatureView, FeatureView]:
    """The reduced feature space of the stream before and after adaptation, each with its mixture.

    Both networks stand still and show all samples to a mixture that starts empty, so that what differs between the
    two views is the adaptation alone.
    """
    fresh = GMM(source.clone(), adapted.settings)
    return _view(fresh, stream), _view(adapted, stream)


@torch.no_grad()
def _view(method: GMM, stream: DomainStream) -> FeatureView:
    mixture = StreamingGMM(method.model.num_classes, method.reducer.out_features, decay=1.0)
    reduced: list[Tensor] = []
    labels: list[Tensor] = []
    with preserved_buffers(method.model):
        for batch in stream.batches():
            with batch_statistics(method.model, len(batch.images)):
                output = method.model(batch.images)
            reduced.append(method.reducer(output.features))
            labels.append(batch.labels)
            mixture.update(reduced[-1], output.logits.softmax(dim=1))
    return project_mixture(mixture, torch.cat(reduced), torch.cat(labels), method.model.spec.class_names)


def summarise(runs: list[DemoRun]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Shift -> method -> metric -> mean over the seeds, as a fraction; None where a metric has nothing to measure."""
    summary: dict[str, dict[str, dict[str, float | None]]] = {}
    for shift, method in dict.fromkeys((run.shift, run.method) for run in runs):
        records = [run.result.record for run in runs if (run.shift, run.method) == (shift, method)]
        rows = [_numbers(record) for record in records]
        summary.setdefault(shift.value, {})[method] = {name: _mean([row[name] for row in rows]) for name in rows[0]}
    return summary


def _numbers(record: dict[str, Any]) -> dict[str, float | None]:
    metrics = dict(record["metrics"])
    if record["score"] != score_name(Shift.PDA):
        del metrics[score_name(Shift.PDA)]
    first, second = record["halves"]
    return {**metrics, "first_half": first, "second_half": second}


def costs(runs: list[DemoRun]) -> dict[tuple[str, str], tuple[float, int]]:
    """(shift, method) -> milliseconds a batch (median, mean over the seeds) and bytes of state."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        found.setdefault((run.shift.value, run.method), []).append(run.result.record)
    return {
        key: (
            1000.0 * sum(record["seconds"]["median_per_batch"] for record in records) / len(records),
            int(records[0]["state_bytes"]),
        )
        for key, records in found.items()
    }


def _mean(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None and math.isfinite(value)]
    return sum(present) / len(present) if present else None
