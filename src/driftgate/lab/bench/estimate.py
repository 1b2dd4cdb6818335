"""How long a plan takes: from runs of the same kind in the folder, else from two real steps of a method.

A run waits for its source model, so the time follows the longest chain: ``makespan``.
"""

from __future__ import annotations

import heapq
import logging
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from driftgate.lab.bench.folder import SweepFolder, read_all
from driftgate.lab.bench.jobs import Job, ModelJob, RunJob
from driftgate.lab.bench.plan import Plan
from driftgate.lab.bench.sweep import single_thread
from driftgate.lab.data.named import few_per_class
from driftgate.lab.pretrain import PretrainSettings
from driftgate.lab.pretrain import estimate as estimate_training
from driftgate.methods import create
from driftgate.models import SourceModel
from driftgate.models.backbones import UNTRAINED, build_backbone
from driftgate.models.statistics import SourceStatistics
from driftgate.rng import seeded
from driftgate.types import DriftgateError, Progress

COSTLY = ("adapt_layers", "memory")
"""Settings that change the time of a step by a factor; the others hardly do."""

Speeds = dict[Hashable, float | None]
"""What takes as long a unit of work (``_kind``) -> seconds for it: a batch of a run, an image of an epoch."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Expected:
    """A job, whether it is finished, the seconds it will take (None if that cannot be told), a run's batches."""

    job: Job
    done: bool
    seconds: float | None
    batches: int | None = None


def estimate_plan(plan: Plan, folder: SweepFolder, progress: Progress | None = None) -> list[Expected]:
    """Every job of the plan with the time it will take on one core; nothing is written."""
    speeds = _known_speeds(folder)
    open_jobs = [job for job in plan.jobs if not folder.is_done(job)]
    found: dict[str, float | None] = {}
    for number, job in enumerate(open_jobs, 1):
        with single_thread():
            found[job.id] = _seconds(job, speeds)
        if progress is not None:
            progress("estimating", number, len(open_jobs))
    batches = {job.id: work_units(job) for job in plan.runs}
    return [Expected(job, job.id not in found, found.get(job.id, 0.0), batches.get(job.id)) for job in plan.jobs]


def total_seconds(expected: Iterable[Expected], workers: int) -> float | None:
    """Seconds until the last job is done; None if nothing is known of some."""
    left = {item.job.id: item for item in expected if not item.done}
    if any(item.seconds is None for item in left.values()):
        return None
    return makespan(
        [item.job for item in left.values()], {key: item.seconds or 0.0 for key, item in left.items()}, workers
    )


def makespan(jobs: Iterable[Job], seconds: Mapping[str, float], workers: int) -> float:
    """When the last of ``jobs`` ends if models are trained first and a run waits for its model, on so many workers."""
    free = [0.0] * max(1, workers)
    ready: dict[str, float] = {}
    for job in sorted(jobs, key=lambda job: not isinstance(job, ModelJob)):
        start = heapq.heappop(free)
        if isinstance(job, RunJob):
            start = max(start, ready.get(job.model.id, 0.0))
        ready[job.id] = start + seconds[job.id]
        heapq.heappush(free, ready[job.id])
    return max(free)


def _known_speeds(folder: SweepFolder) -> Speeds:
    """Of whatever has run in the folder; records of other commands and versions tell nothing."""
    seen: dict[Hashable, list[float]] = {}
    for record in folder.all_records():
        try:
            model, protocol = record["model"], record["protocol"]
            network = (model["backbone"], tuple(model["input_size"]))
            kind = _kind(record["method"], network, record["settings"], protocol["batch_size"])
            seconds = record["wall_seconds"] / protocol["batches"]
        except KeyError:
            continue
        seen.setdefault(kind, []).append(seconds)
    for facts in read_all(folder.models):
        try:
            network = (facts["backbone"], tuple(facts["input_size"]))
            seconds = facts["seconds"] / (facts["samples"] * facts["training"]["epochs"])
        except KeyError:
            continue
        seen.setdefault(network, []).append(seconds)
    return {key: statistics.fmean(values) for key, values in seen.items()}


def _kind(method: str, network: Hashable, settings: Mapping[str, Any], batch_size: int) -> Hashable:
    return method, network, batch_size, tuple(str(settings.get(name)) for name in COSTLY)


def _seconds(job: Job, speeds: Speeds) -> float | None:
    if isinstance(job, ModelJob):
        kind, measure = _network(job), partial(_time_training, job)
    else:
        kind, measure = _kind(job.method, _network(job.model), job.settings, job.batch_size), partial(_time_step, job)
    if kind not in speeds:
        speeds[kind] = _measured(measure, job.label)
    speed = speeds[kind]
    return None if speed is None else speed * work_units(job)


def _network(job: ModelJob) -> Hashable:
    """What decides how long a network takes for an image; the number of classes hardly does."""
    return job.backbone, job.input_size or _own_size(job.backbone)


@lru_cache(maxsize=4)
def _own_size(backbone: str) -> tuple[int, int]:
    """Height and width of the images a backbone takes if nobody says anything else."""
    return build_backbone(backbone, weights=UNTRAINED).input_size


def _measured(measure: Callable[[], float], label: str) -> float | None:
    """What was measured; an estimate that fails says so and stops nothing."""
    try:
        return measure()
    except DriftgateError as error:
        logger.warning("no estimate for %s: %s", label, error)
        return None


def _time_step(job: RunJob) -> float:
    """Seconds of the second of two batches, loading included, on a network that knows nothing."""
    model = _untrained(job.model)
    random, size = seeded(0), model.spec.feature_dim
    model.statistics = SourceStatistics(
        torch.randn(model.num_classes, size, generator=random), torch.zeros(size), torch.eye(size)
    )
    method = create(job.method, model, **job.settings)
    seconds = []
    started = time.perf_counter()
    for batch, _ in zip(job.open_stream(model.spec.image_size).batches(), range(2), strict=False):
        method.step(batch.images)
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
    return seconds[-1]


def _time_training(job: ModelJob) -> float:
    """Seconds for an image in an epoch."""
    domain = few_per_class(job.open_data().domain(job.source, seed=job.seed), job.per_class)
    settings = PretrainSettings(**job.training)
    return estimate_training(_untrained(job), domain, job.class_split, settings, workers=0) / work_units(job)


def _untrained(job: ModelJob) -> SourceModel:
    """The network without its weights, which decide nothing about time."""
    names = job.open_data().class_names[: job.num_classes]
    return SourceModel.build(job.backbone, names, input_size=job.input_size, weights=UNTRAINED)


_LENGTHS: dict[Hashable, int] = {}
"""Stream, or source of a model -> its length, as far as it was asked for."""


def work_units(job: Job) -> int:
    """What the time of a job is proportional to: batches of a run, images of a training times its epochs."""
    if isinstance(job, ModelJob):
        key: Hashable = (job.data, job.root, job.classes, job.source, job.num_classes, job.per_class)
        if key not in _LENGTHS:
            domain = few_per_class(job.open_data().domain(job.source), job.per_class)
            _LENGTHS[key] = int((domain.classes < job.num_classes).sum())
        return _LENGTHS[key] * int(job.training["epochs"])
    # The same for all methods and seeds of a stream.
    facts = (job.model.data, job.model.root, job.model.classes, job.targets, job.split, job.class_order)
    key = (*facts, job.unknown_share, job.batch_size, job.drop_last, job.limit, job.playing)
    if key not in _LENGTHS:
        _LENGTHS[key] = len(job.open_stream(job.model.input_size or _own_size(job.model.backbone)))
    return _LENGTHS[key]
