"""How long a plan takes, and how far it is: before it starts, and looked at from outside while it goes on.

Times are those of runs of the same kind in the folder, else of two real steps of a method. A run waits for its source
model, so the whole follows the longest chain: ``makespan``. Only files are read, so that the work of other sweeps and
other machines is seen too.
"""

from __future__ import annotations

import heapq
import logging
import os
import statistics
import time
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

from driftgate.lab.bench.folder import SweepFolder, read_all
from driftgate.lab.bench.plan import Job, ModelJob, Plan, RunJob
from driftgate.lab.bench.step_cost import Setting, loaded_model
from driftgate.lab.bench.sweep import score_of, single_thread, summarise
from driftgate.lab.data.datasets import few_per_class
from driftgate.lab.pretrain import PretrainSettings
from driftgate.lab.pretrain import estimate as estimate_training
from driftgate.methods import create
from driftgate.models import SourceModel
from driftgate.models.backbones import UNTRAINED, build_backbone
from driftgate.types import DriftgateError, Progress

COSTLY = ("adapt_layers", "memory")
"""Settings that change the time of a step by a factor; the others hardly do."""

Speeds = dict[Hashable, list[float]]
"""What takes as long a unit of work (``_kind``) -> seconds that each job took for it: a batch of a run, an image of an
epoch. Empty where it cannot be measured."""

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
    speeds = known_speeds(folder)
    open_jobs = [job for job in plan.jobs if not folder.is_done(job)]
    found: dict[str, float | None] = {}
    for number, job in enumerate(open_jobs, 1):
        if _kind(job) not in speeds:
            with single_thread():
                speeds[_kind(job)] = _measured(job)
        found[job.id] = _seconds(job, speeds)
        if progress is not None:
            progress("estimating", number, len(open_jobs))
    batches = {job.id: work_units(job) for job in plan.runs}
    return [Expected(job, job.id not in found, found.get(job.id, 0.0), batches.get(job.id)) for job in plan.jobs]


def total_seconds(expected: Iterable[Expected], workers: int) -> float | None:
    """Seconds until the last job is done; None if nothing is known of some."""
    left = [item for item in expected if not item.done]
    return makespan([item.job for item in left], {item.job.id: item.seconds for item in left}, workers)


def makespan(jobs: Iterable[Job], seconds: Mapping[str, float | None], workers: int) -> float | None:
    """When the last of ``jobs`` ends if models are trained first and a run waits for its model, on so many workers.

    None where the ``seconds`` of one are not known.
    """
    free = [0.0] * max(1, workers)
    ready: dict[str, float] = {}
    for job in sorted(jobs, key=lambda job: not isinstance(job, ModelJob)):
        took = seconds[job.id]
        if took is None:
            return None
        start = heapq.heappop(free)
        if isinstance(job, RunJob):
            start = max(start, ready.get(job.model.id, 0.0))
        ready[job.id] = start + took
        heapq.heappush(free, ready[job.id])
    return max(free)


def known_speeds(folder: SweepFolder) -> Speeds:
    """Of whatever has run in the folder; records of other commands and versions tell nothing."""
    speeds: Speeds = {}
    for record in folder.all_records():
        with suppress(KeyError):
            model, protocol = record["model"], record["protocol"]
            network = (model["backbone"], tuple(model["input_size"]))
            kind = _run_kind(record["method"], network, record["settings"], protocol["batch_size"])
            seconds = record["wall_seconds"] / protocol["batches"]
            speeds.setdefault(kind, []).append(seconds)
    for facts in read_all(folder.models):
        with suppress(KeyError):
            network = (facts["backbone"], tuple(facts["input_size"]))
            seconds = facts["seconds"] / (facts["samples"] * facts["training"]["epochs"])
            speeds.setdefault(network, []).append(seconds)
    return speeds


def _kind(job: Job) -> Hashable:
    """What decides how long a job takes for a unit of work: the network (whose classes hardly do), and the method."""
    model = job if isinstance(job, ModelJob) else job.model
    network = (model.backbone, model.input_size or _own_size(model.backbone))
    return network if isinstance(job, ModelJob) else _run_kind(job.method, network, job.settings, job.batch_size)


def _run_kind(method: str, network: Hashable, settings: Mapping[str, Any], batch_size: int) -> Hashable:
    return method, network, batch_size, tuple(str(settings.get(name)) for name in COSTLY)


@lru_cache(maxsize=4)
def _own_size(backbone: str) -> tuple[int, int]:
    """Height and width of the images a backbone takes if nobody says anything else."""
    return build_backbone(backbone, weights=UNTRAINED).input_size


def _seconds(job: Job, speeds: Speeds) -> float | None:
    """What jobs of its kind took for as much work; if there are none, what any run or any training took."""
    speed = speeds.get(_kind(job)) or speeds.get(type(job))
    return statistics.fmean(speed) * work_units(job) if speed else None


def _measured(job: Job) -> list[float]:
    """Seconds for a unit of work; an estimate that fails says so and stops nothing."""
    try:
        return [_time_training(job) if isinstance(job, ModelJob) else _time_step(job)]
    except DriftgateError as error:
        logger.warning("no estimate for %s: %s", job.label, error)
        return []


def _time_step(job: RunJob) -> float:
    """Seconds of the second of two batches, loading included, on a network that knows nothing."""
    model = _untrained(job.model)
    method = create(job.method, model, **job.settings)
    moments = [time.perf_counter()]
    for batch in islice(job.open_stream(model.spec.image_size).batches(), 2):
        method.step(batch.images)
        moments.append(time.perf_counter())
    return moments[-1] - moments[-2]


def _time_training(job: ModelJob) -> float:
    """Seconds for an image in an epoch."""
    domain = few_per_class(job.open_data().domain(job.source, seed=job.seed), job.per_class)
    settings = PretrainSettings(**job.training)
    return estimate_training(_untrained(job), domain, job.class_split, settings, workers=0) / work_units(job)


def _untrained(job: ModelJob) -> SourceModel:
    """The network without its weights, which decide nothing about time."""
    return loaded_model(Setting(job.backbone, job.num_classes, job.input_size))


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


@dataclass(frozen=True)
class Snapshot:
    """A sweep at one moment.

    Attributes:
        done, failed, total: runs (not counting models).
        models_done, models: source models.
        running: reports of the jobs being done, ours and others'.
        scores: as ``summarise`` gives them, of what is done.
        seconds_left: None as long as nothing is known.
        news: a line for each job that ended since the last look.
    """

    done: int
    failed: int
    total: int
    models_done: int
    models: int
    running: list[dict[str, Any]]
    scores: dict[str, dict[str, dict[str, float | int | None]]]
    seconds_left: float | None
    news: list[str] = field(default_factory=list)


class Watcher:
    """Looks at a folder again and again; reads each record once."""

    def __init__(self, plan: Plan, folder: SweepFolder, workers: int) -> None:
        self.plan, self.folder, self.workers, self.since = plan, folder, max(1, workers), time.time()
        self._ended: dict[str, dict[str, Any]] = {}  # what is kept of the results of finished jobs
        self._failed: set[str] = set()
        self._speeds: Speeds = {}
        self.look()  # what was there before is no news

    def look(self) -> Snapshot:
        news = self._news()
        ours = {job.id for job in self.plan.jobs}
        running = [report for report in self.folder.reports() if report["id"] in ours]
        runs = [self._ended[job.id] for job in self.plan.runs if job.id in self._ended]
        return Snapshot(
            done=len(runs),
            failed=sum(job.id in self._failed for job in self.plan.runs),
            total=len(self.plan.runs),
            models_done=len(self._ended) - len(runs),
            models=len(self.plan.models),
            running=running,
            scores=summarise(runs),
            seconds_left=self._seconds_left(running),
            news=news,
        )

    def _news(self) -> list[str]:
        """A line for each job that ended since the last look."""
        # A name in a list is cheaper than a file that is not there, and this is done twice a second.
        places = (self.folder.records, self.folder.failures)
        written = {name.removesuffix(".json") for place in places for name in os.listdir(place)}
        lines = []
        for job in (job for job in self.plan.jobs if job.id not in self._ended):
            if isinstance(job, RunJob) and job.id not in written:
                continue
            facts = self.folder.facts(job)
            if facts is not None:
                took, words = facts.get("wall_seconds" if isinstance(job, RunJob) else "seconds"), ""
                if took is not None:
                    words = f" ({took:.0f} s)"
                    for kind in (_kind(job), type(job)):
                        self._speeds.setdefault(kind, []).append(took / max(1, work_units(job)))
                self._ended[job.id] = {key: facts.get(key) for key in KEPT}
                self._failed.discard(job.id)
                lines.append(f"{job.label}{_result_words(job, facts)}{words}")
            elif job.id not in self._failed and self.folder.state(job, self.since) == "failed":
                self._failed.add(job.id)
                lines.append(f"{job.label}: FAILED, {(self.folder.failure(job) or {}).get('error')}")
        return lines

    def _seconds_left(self, running: list[dict[str, Any]]) -> float | None:
        """Of each open job, what jobs of its kind took for as much work; less for those that are half done."""
        part_left = {report["id"]: 1.0 - report["done"] / max(report["total"], 1) for report in running}
        left = [job for job in self.plan.jobs if job.id not in self._ended.keys() | self._failed]
        seconds = {}
        for job in left:
            took = _seconds(job, self._speeds)
            seconds[job.id] = None if took is None else took * part_left.get(job.id, 1.0)
        return makespan(left, seconds, self.workers)


KEPT = ("method", "variant", "shift", "score", "metrics", "protocol")
"""What a watcher keeps of a record: all that its scores need."""


def _result_words(job: Job, facts: dict[str, Any]) -> str:
    if isinstance(job, RunJob):
        score = score_of(facts)
        return ": -" if score is None else f": {100 * score:.1f}"
    held = facts.get("held_out_accuracy")
    return "" if held is None else f", {100 * held:.1f} % on what was held out"
