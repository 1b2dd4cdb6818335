"""How long a plan would take: from runs of the same kind in the folder, else from two real steps of a method."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from driftgate.lab.bench.folder import SweepFolder, read_all
from driftgate.lab.bench.jobs import single_thread
from driftgate.lab.bench.plan import Job, ModelJob, Plan, RunJob, open_cached
from driftgate.lab.bench.work import few_per_class, target_stream
from driftgate.lab.pretrain import PretrainSettings
from driftgate.lab.pretrain import estimate as estimate_training
from driftgate.methods import create
from driftgate.models import SourceModel
from driftgate.models.backbones import UNTRAINED, build_backbone
from driftgate.models.statistics import SourceStatistics
from driftgate.rng import seeded
from driftgate.types import DriftgateError

Progress = Callable[[str, int, int], None]

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
    speeds, trainings = _known_speeds(folder), _known_trainings(folder)
    open_jobs = [job for job in plan.jobs if not folder.is_done(job)]
    found: dict[str, float | None] = {}
    batches = {job.id: work_units(job) for job in plan.runs}
    for number, job in enumerate(open_jobs, 1):
        with single_thread():
            if isinstance(job, ModelJob):
                found[job.id] = _training_seconds(job, trainings)
            else:
                found[job.id] = _run_seconds(job, speeds)
        if progress is not None:
            progress("estimating", number, len(open_jobs))
    return [Expected(job, job.id not in found, found.get(job.id, 0.0), batches.get(job.id)) for job in plan.jobs]


def total_seconds(expected: list[Expected], workers: int) -> float | None:
    """Seconds until the last job is done; None if nothing is known of some."""
    seconds = [item.seconds for item in expected if not item.done]
    if any(value is None for value in seconds):
        return None
    return sum(value for value in seconds if value is not None) / max(1, min(workers, len(seconds)))


class Network(NamedTuple):
    """What decides how long a network takes for an image; the number of classes hardly does."""

    backbone: str
    input_size: tuple[int, int]


Kind = tuple[str, Network, int, tuple[str, ...]]
"""Runs that take as long a batch: method, network, batch size, and its settings out of ``COSTLY``."""

COSTLY = ("adapt_layers", "memory")
"""Settings that change the time of a step by a factor; the others hardly do."""

Speeds = dict[Kind, float | None]
"""Kind of run -> seconds a batch."""

Trainings = dict[Network, float | None]
"""Network -> seconds for one image in one epoch."""


def _known_speeds(folder: SweepFolder) -> Speeds:
    seen: dict[Kind, list[float]] = {}
    for record in folder.all_records():
        try:
            model, protocol = record["model"], record["protocol"]
            network = Network(model["backbone"], tuple(model["input_size"]))
            key = _kind(record["method"], record["settings"], network, protocol["batch_size"])
            seconds = record["wall_seconds"] / protocol["batches"]
        except KeyError:
            continue  # of another command, or of an older version
        seen.setdefault(key, []).append(seconds)
    return {key: statistics.fmean(values) for key, values in seen.items()}


def _known_trainings(folder: SweepFolder) -> Trainings:
    seen: dict[Network, list[float]] = {}
    for facts in read_all(folder.models):
        try:
            network = Network(facts["backbone"], tuple(facts["input_size"]))
            seconds = facts["seconds"] / (facts["samples"] * facts["training"]["epochs"])
        except KeyError:
            continue  # of an older version, which did not note the input size
        seen.setdefault(network, []).append(seconds)
    return {key: statistics.fmean(values) for key, values in seen.items()}


def _run_seconds(job: RunJob, speeds: Speeds) -> float | None:
    key = _kind(job.method, job.settings, _network(job.model), job.batch_size)
    if key not in speeds:
        speeds[key] = _told(partial(_time_step, job), job.label)
    speed = speeds[key]
    return None if speed is None else speed * work_units(job)


def _kind(method: str, settings: Mapping[str, Any], network: Network, batch_size: int) -> Kind:
    return method, network, batch_size, tuple(str(settings.get(name)) for name in COSTLY)


def _training_seconds(job: ModelJob, trainings: Trainings) -> float | None:
    images, network = work_units(job), _network(job)
    if network not in trainings:
        trainings[network] = _told(lambda: _time_training(job) / images, job.label)
    speed = trainings[network]
    return None if speed is None else speed * images


def _network(job: ModelJob) -> Network:
    return Network(job.backbone, job.input_size or _own_size(job.backbone))


@lru_cache(maxsize=4)
def _own_size(backbone: str) -> tuple[int, int]:
    """Height and width of the images a backbone takes if nobody says anything else."""
    return build_backbone(backbone, weights=UNTRAINED).input_size


def _told(measure: Callable[[], float], label: str) -> float | None:
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
    stream = target_stream(job, model.spec.image_size)
    seconds = []
    started = time.perf_counter()
    for batch, _ in zip(stream.batches(), range(2), strict=False):
        method.step(batch.images)
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
    return seconds[-1]


def _time_training(job: ModelJob) -> float:
    data = open_cached(job.data, job.root)
    domain = few_per_class(data.domain(job.source, seed=job.seed), job.per_class)
    return estimate_training(_untrained(job), domain, job.class_split, PretrainSettings(**job.training), workers=0)


def _untrained(job: ModelJob) -> SourceModel:
    """The network without its weights, which decide nothing about time."""
    names = open_cached(job.data, job.root).class_names[: job.num_classes]
    return SourceModel.build(job.backbone, names, input_size=job.input_size, weights=UNTRAINED)


def work_units(job: Job) -> int:
    """What the time of a job is proportional to: batches of a run, images of a training times its epochs."""
    if isinstance(job, ModelJob):
        per_epoch = _num_images(job.data, job.root, (job.source,), job.class_split.source_classes, job.per_class)
        return per_epoch * int(job.training["epochs"])
    # The same for all methods and seeds of a stream.
    facts = (job.model.data, job.model.root, job.targets, job.split, job.class_order, job.unknown_share)
    stream = (*facts, job.batch_size, job.drop_last, job.limit, job.playing)
    if stream not in _LENGTHS:
        _LENGTHS[stream] = len(target_stream(job, _network(job.model).input_size))
    return _LENGTHS[stream]


_LENGTHS: dict[Hashable, int] = {}
"""Stream -> its batches, as far as they were asked for."""


@lru_cache(maxsize=1000)
def _num_images(
    data: str, root: str | None, domains: tuple[str, ...], classes: tuple[int, ...] | range, per_class: int | None
) -> int:
    """Images of some classes in some domains, at most ``per_class`` of each class and domain."""
    wanted = torch.tensor(classes)
    found = (few_per_class(open_cached(data, root).domain(name), per_class).classes for name in domains)
    return sum(int(torch.isin(labels, wanted).sum()) for labels in found)
