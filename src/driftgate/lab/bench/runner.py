"""Sweeps: all jobs of a plan through joblib, until each is finished or has failed.

What happened is read from the folder, not from the workers: so it makes no difference who did a job, when, and in which
process, and a sweep that was killed goes on where it was.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import BrokenProcessPool

from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.jobs import available_cores
from driftgate.lab.bench.plan import Job, ModelJob, Plan, RunJob
from driftgate.lab.bench.work import Sweep, work
from driftgate.methods import homes
from driftgate.types import DriftgateError

Backend = Literal["loky", "ray", "serial"]

WAIT_SECONDS = 1.0
"""Before looking again at jobs that another sweep is doing."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended.

    Attributes:
        records: of the plan's runs that are finished, now or before.
        failures: id -> what went wrong, for jobs that failed this time.
        seconds: how long it took.
    """

    records: list[dict[str, Any]]
    failures: dict[str, str]
    seconds: float


def check_backend(backend: str) -> Backend:
    """Refuse a backend that does not exist or is not installed."""
    if backend not in get_args(Backend):
        raise DriftgateError(f"Expected a backend out of {', '.join(get_args(Backend))} but got {backend!r}.")
    if backend == "ray":
        _register_ray()
    return backend  # type: ignore[return-value]  # just checked


def default_workers(backend: str) -> int:
    """Jobs at a time if nobody says how many: a core each, of this machine or of the whole Ray cluster."""
    if check_backend(backend) != "ray":
        return available_cores()
    return max(1, int(importlib.import_module("ray").cluster_resources().get("CPU", 1)))


def run_sweep(
    plan: Plan, out: str | Path, *, workers: int = 1, backend: str = "loky", device: str = "cpu"
) -> SweepResult:
    """Do all jobs of ``plan`` that are not done yet; results go to the folder ``out``.

    Args:
        plan: what to do.
        out: folder of records, models and failures; may be shared with other sweeps of the same suite.
        workers: jobs at a time. With one, everything happens in this process; Ray takes its number from the cluster if
            it is 0.
        backend: ``loky`` for processes on this machine, ``ray`` for an existing Ray cluster (the folder and the data
            must be at the same path everywhere), ``serial`` for this process.
    """
    chosen = check_backend(backend)
    started = time.perf_counter()
    folder = SweepFolder(Path(out).absolute())
    folder.prepare(plan.suite)
    owner = None if chosen == "ray" else os.getpid()
    imports = homes(dict.fromkeys(job.method for job in plan.runs))
    sweep = Sweep(folder.path, time.time(), owner, socket.gethostname(), imports, device)
    before, pending = -1, plan.jobs
    while pending := [job for job in pending if folder.state(job, sweep.since) == "open"]:
        if len(pending) == before:
            time.sleep(WAIT_SECONDS)  # nothing moved: what is left is in other hands
        before = len(pending)
        _do(_without_waiting(pending, folder), sweep, workers, chosen)
    folder.forget_failures([job for job in plan.jobs if folder.is_done(job)], sweep.since)
    failures = {
        job.id: str((folder.failure(job) or {}).get("error"))
        for job in plan.jobs
        if folder.state(job, sweep.since) == "failed"
    }
    return SweepResult(finished_records(plan, folder), failures, time.perf_counter() - started)


def finished_records(plan: Plan, folder: SweepFolder) -> list[dict[str, Any]]:
    """The records of the plan's runs that are there."""
    return [record for job in plan.runs if (record := folder.record(job)) is not None]


def _without_waiting(pending: Sequence[Job], folder: SweepFolder) -> list[Job]:
    """What can be done now; runs of models nobody has trained yet come last, when these may be there."""
    ready = [job for job in pending if isinstance(job, RunJob) and folder.is_done(job.model)]
    training = [job for job in pending if isinstance(job, ModelJob)]
    rest = [job for job in pending if isinstance(job, RunJob) and not folder.is_done(job.model)]
    return [*training, *ready, *rest]


def _do(jobs: Sequence[Job], sweep: Sweep, workers: int, backend: Backend) -> None:
    """One attempt at every job; a process that dies takes down only the job that killed it."""
    if backend == "serial" or (backend == "loky" and workers == 1):
        for job in jobs:
            work(job, sweep)
        return
    folder = SweepFolder(sweep.path)
    try:
        _in_parallel(jobs, sweep, workers, backend)
    except _death_of_a_worker(backend) as error:
        # Which one it was is not told, so those that were in flight are tried alone. Ray ends all workers of the sweep,
        # also on machines whose processes cannot be seen from here.
        reports = [*folder.reports(alive=False), *(folder.reports() if backend == "ray" else [])]
        in_flight = {report["id"] for report in reports}
        suspects = [job for job in jobs if job.id in in_flight and folder.state(job, sweep.since) == "open"]
        if not suspects:
            raise DriftgateError(
                "Expected worker processes to start but they died at once; look for lack of memory, or try --workers 1."
            ) from error
        logger.warning("a worker died; trying again: %s", ", ".join(job.label for job in suspects))
        for job in suspects:
            folder.report_file(job.id).unlink(missing_ok=True)
            _alone(job, sweep, folder, backend)


def _alone(job: Job, sweep: Sweep, folder: SweepFolder, backend: Backend) -> None:
    try:
        _in_parallel([job], sweep, 2, backend)  # two, for with one worker joblib would do it in this process
    except _death_of_a_worker(backend) as error:
        folder.report_file(job.id).unlink(missing_ok=True)
        folder.fail(job, "its process died twice; it was killed, or there was not enough memory", str(error))


def _in_parallel(jobs: Sequence[Job], sweep: Sweep, workers: int, backend: Backend) -> None:
    count = workers if workers > 0 else -1
    with parallel_config(backend=backend, n_jobs=count):
        # One job at a time, in order: they take long, and the models come first.
        Parallel(batch_size=1, pre_dispatch="n_jobs")(delayed(work)(job, sweep) for job in jobs)


def _death_of_a_worker(backend: Backend) -> type[Exception]:
    """What a backend raises if one of its processes is killed."""
    ray = backend == "ray"
    died: type[Exception] = importlib.import_module("ray.exceptions").RayActorError if ray else BrokenProcessPool
    return died


def _register_ray() -> None:
    try:
        ray, ray_joblib = importlib.import_module("ray"), importlib.import_module("ray.util.joblib")
    except ImportError as error:
        raise DriftgateError("Backend ray needs Ray, which is missing; pip install 'driftgate[ray]'.") from error
    if not ray.is_initialized():
        ray.init(ignore_reinit_error=True, log_to_driver=False)
    ray_joblib.register_ray()


def score_of(record: dict[str, Any]) -> float | None:
    """The score of the record's shift: accuracy for PDA, H-score otherwise; None if it has none."""
    value = record["metrics"].get(record["score"])
    return None if value is None or not math.isfinite(value) else float(value)


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Shift -> method, or variant of a study -> mean, standard deviation and number of runs.

    Runs with a share of unknown samples that was asked for have columns of their own: ``OPDA 0.3``.
    """
    cells: dict[tuple[str, str], list[float]] = {}
    for record in records:
        score = score_of(record)
        name = record["method"] if record["variant"] is None else record["variant"]
        share = (record.get("protocol") or {}).get("unknown_share")
        column = record["shift"] if share is None else f"{record['shift']} {share}"
        cells.setdefault((column, name), []).extend([] if score is None else [score])
    summary: dict[str, dict[str, dict[str, float | int | None]]] = {}
    for (shift, name), scores in cells.items():
        summary.setdefault(shift, {})[name] = {
            "mean": statistics.fmean(scores) if scores else None,
            "std": statistics.stdev(scores) if len(scores) > 1 else None,
            "runs": len(scores),
        }
    return summary
