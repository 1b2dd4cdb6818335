"""Sweeps: all jobs of a plan through joblib, until each is finished or has failed.

What happened is read from the folder, not from the workers: so it makes no difference who did a job, when, and in which
process, and a sweep that was killed goes on where it was. A job computes the same in any process and on any number of
workers, because it uses one thread and its own seeds.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import joblib
import pandas as pd
import torch
from joblib.externals.loky.process_executor import BrokenProcessPool
from threadpoolctl import threadpool_limits

from driftgate.checkpoint import Pace
from driftgate.files import write_text
from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.plan import Job, ModelJob, Plan, RunJob
from driftgate.lab.data.datasets import few_per_class
from driftgate.lab.pretrain import PretrainSettings, pretrain
from driftgate.methods import create, homes
from driftgate.methods.registry import check_device
from driftgate.models import SourceModel
from driftgate.plugins import import_module
from driftgate.progress import remove_progress
from driftgate.stream import run_stream, versions
from driftgate.types import DriftgateError

Backend = Literal["loky", "ray", "serial"]
Say = Callable[[str], None]

LINE_SECONDS = 60.0
"""Between two lines about a job that is going on."""

OWNER_SECONDS = 1.0
"""Between two looks whether the process that started the workers is still there."""

WAIT_SECONDS = 1.0
"""Before looking again at jobs that another sweep is doing."""


def _silent(_: str) -> None:
    """What happens is not told."""


@dataclass(frozen=True)
class Sweep:
    """What all jobs of a sweep are told.

    Attributes:
        path: the folder.
        since: when it began; older failures count for nothing.
        owner: the process whose end should end its workers.
        imports: modules with methods of the user's own, which every worker has to import.
        device: where they compute.
        say: takes a line about every job that ends, and one a minute about those that go on.
    """

    path: Path
    since: float
    owner: int | None = None
    imports: tuple[str, ...] = ()
    device: str = "cpu"
    say: Say = _silent


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
        raise DriftgateError(f"Expected a backend out of {', '.join(get_args(Backend))} but got {backend!r}; name one.")
    if backend == "ray":
        try:
            ray, ray_joblib = importlib.import_module("ray"), importlib.import_module("ray.util.joblib")
        except ImportError as error:
            raise DriftgateError("Backend ray needs Ray, which is missing; pip install 'driftgate[ray]'.") from error
        if not ray.is_initialized():
            ray.init(ignore_reinit_error=True, log_to_driver=False)
        ray_joblib.register_ray()
    return backend  # type: ignore[return-value]  # just checked


def default_workers(backend: str) -> int:
    """Jobs at a time if nobody says how many: a core each, of this machine or of the whole Ray cluster."""
    if check_backend(backend) != "ray":
        return int(joblib.cpu_count())
    return max(1, int(importlib.import_module("ray").cluster_resources().get("CPU", 1)))


def run_sweep(
    plan: Plan, out: str | Path, *, workers: int = 1, backend: str = "loky", device: str = "cpu", say: Say = _silent
) -> SweepResult:
    """Do all jobs of ``plan`` that are not done yet; results go to the folder ``out``.

    Args:
        plan: what to do.
        out: folder of records, models and failures; may be shared with other sweeps of the same suite.
        workers: jobs at a time. With one, everything happens in this process.
        backend: ``loky`` for processes on this machine, ``ray`` for an existing Ray cluster (the folder and the data
            must be at the same path everywhere), ``serial`` for this process.
        device: where networks compute.
        say: takes a line of progress; it is called in the workers.
    """
    chosen = check_backend(backend)
    started = time.perf_counter()
    folder = SweepFolder(Path(out).absolute())
    folder.prepare(plan.suite)
    imports = homes(dict.fromkeys(job.method for job in plan.runs))
    sweep = Sweep(folder.path, time.time(), None if chosen == "ray" else os.getpid(), imports, device, say)
    before, pending, pace = -1, plan.jobs, Pace(LINE_SECONDS)
    while pending := [job for job in pending if folder.state(job, sweep.since) == "open"]:
        if len(pending) == before:
            time.sleep(WAIT_SECONDS)  # nothing moved: what is left is in other hands
            if pace.due():
                say(f"Waiting for another sweep, which does {len(pending)} jobs.")
        before = len(pending)
        _attempt(_in_order(pending, folder), sweep, workers, chosen)
    folder.forget_failures([job for job in plan.jobs if folder.is_done(job)], sweep.since)
    failures = {
        job.id: str((folder.failure(job) or {}).get("error"))
        for job in plan.jobs
        if folder.state(job, sweep.since) == "failed"
    }
    records = [record for job in plan.runs if (record := folder.facts(job)) is not None]
    return SweepResult(records, failures, time.perf_counter() - started)


def _in_order(pending: Sequence[Job], folder: SweepFolder) -> list[Job]:
    """Models, then what can be done now; runs of models nobody has trained yet come last, when these may be there."""

    def turn(job: Job) -> int:
        return 0 if isinstance(job, ModelJob) else 1 if folder.model_file(job.model).exists() else 2

    return sorted(pending, key=turn)


def _attempt(jobs: Sequence[Job], sweep: Sweep, workers: int, backend: Backend) -> None:
    """One attempt at every job; a process that dies takes down only the job that killed it."""
    if backend == "serial" or (backend == "loky" and workers == 1):
        for number, job in enumerate(jobs, 1):
            work(job, sweep, (number, len(jobs)))
        return
    # Which job it was is not told, so those that were being done are tried alone.
    for suspect in _in_parallel(jobs, sweep, workers, backend):
        if _in_parallel([suspect], sweep, 2, backend):  # two, for with one worker joblib would do it in this process
            SweepFolder(sweep.path).fail(
                suspect, "its process died twice; it was killed, or there was not enough memory", ""
            )


def _in_parallel(jobs: Sequence[Job], sweep: Sweep, workers: int, backend: Backend) -> list[Job]:
    """Do the jobs; if a worker was killed, answers those that were begun and are not done."""
    ray = backend == "ray"
    died: type[Exception] = importlib.import_module("ray.exceptions").RayActorError if ray else BrokenProcessPool
    begun: list[Job] = []

    def tasks() -> Iterator[Any]:
        for number, job in enumerate(jobs, 1):
            begun.append(job)
            yield joblib.delayed(work)(job, sweep, (number, len(jobs)))

    try:
        with joblib.parallel_config(backend=backend, n_jobs=workers):
            # One job at a time, in order: they take long, and the models come first.
            joblib.Parallel(batch_size=1, pre_dispatch="n_jobs")(tasks())
    except died:
        folder = SweepFolder(sweep.path)
        return [job for job in begun if folder.state(job, sweep.since) == "open"]
    return []


def work(job: Job, sweep: Sweep, turn: tuple[int, int] = (1, 1)) -> None:
    """Do ``job`` unless it is done or somebody else is at it; the result is a file, and so is a failure.

    ``turn`` is which job of how many it is, for the lines.
    """
    end_with_owner(sweep.owner)
    folder = SweepFolder(sweep.path)
    with folder.lock(job.digest) as mine:
        if not mine or folder.state(job, sweep.since) != "open":
            return
        started, pace = time.monotonic(), Pace(LINE_SECONDS)

        def on_step(done: int, total: int) -> None:
            if pace.due():
                sweep.say(f"{job.label} {done}/{total}")

        try:
            with single_thread():
                for name in sweep.imports:
                    import_module(name)
                if isinstance(job, ModelJob):
                    train(job, folder, on_step, sweep.device)
                elif _model_is_ready(job, folder, sweep):
                    run(job, folder, on_step, sweep.device)
                else:
                    return
        except Exception as error:  # whatever it is, the other jobs go on
            # Whatever is in the checkpoint may be the reason: the next try starts anew.
            remove_progress(folder.checkpoint_file(job))
            folder.fail(job, f"{type(error).__name__}: {error}", traceback.format_exc())
            ended = f"FAILED, {type(error).__name__}: {error}"
        else:
            remove_progress(folder.checkpoint_file(job))
            folder.failure_file(job).unlink(missing_ok=True)
            score = score_of(folder.facts(job) or {})
            ended = "done" if score is None else f"{100 * score:.1f}"
        number, total = turn
        minutes = (time.time() - sweep.since) / 60 * (total - number) / number
        took = time.monotonic() - started
        sweep.say(f"[{number}/{total}, {minutes:.0f} min left] {job.label}: {ended} ({took:.0f} s)")


_watched: set[int] = set()
"""Owners whose end this process is waiting for."""


def end_with_owner(owner: int | None) -> None:
    """Let a worker end as soon as the process that started it is gone: a killed sweep must not go on in secret.

    At once and without a word, for nothing that is half done is ever seen: files are renamed when they are whole, and
    the system frees the locks. An orphan has another parent.
    """
    if owner is None or owner in _watched or os.getppid() != owner:
        return

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(OWNER_SECONDS)
        os._exit(1)

    _watched.add(owner)
    threading.Thread(target=watch, name="end with the sweep", daemon=True).start()


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch and the libraries under NumPy and scikit-learn use one thread inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


def _model_is_ready(job: RunJob, folder: SweepFolder, sweep: Sweep) -> bool:
    """Whether the source model is there; False if somebody is still training it."""
    state = folder.state(job.model, sweep.since)
    if state == "failed":
        failure = folder.failure(job.model) or {}
        raise DriftgateError(
            f"Expected the source model {job.model.id} but its training failed: {failure['error']}; the same command "
            "tries it again."
        )
    return state == "done"


OnStep = Callable[[int, int], None]


def train(job: ModelJob, folder: SweepFolder, on_step: OnStep, device: str = "cpu") -> None:
    """Train a source model; one that was stopped goes on."""
    data, suite = job.open_data(), job.suite
    names = data.class_names[: job.num_classes]
    model = SourceModel.build(suite.backbone, names, seed=job.seed, input_size=suite.input_size, weights=suite.weights)
    model.to(check_device(device))
    report = pretrain(
        model,
        few_per_class(data.domain(job.source, seed=job.seed), job.per_class),
        job.class_split,
        PretrainSettings(**job.training),
        workers=0,
        checkpoint=folder.checkpoint_file(job),
        on_step=lambda step: on_step(step.step, step.steps),
    )
    facts = {
        **{"id": job.id, "data": suite.data, "source": job.source, "num_classes": job.num_classes, "seed": job.seed},
        **{"backbone": suite.backbone, "input_size": model.spec.image_size, "training": job.training},
        "per_class": job.per_class,
        **asdict(report),
        "versions": versions(),
        "digest": job.digest,
    }
    file = folder.model_file(job)
    # The model last: where it is, everything about it is.
    write_text(file.with_suffix(".json"), json.dumps(facts, indent=2) + "\n")
    model.save(file)


def run(job: RunJob, folder: SweepFolder, on_step: OnStep, device: str = "cpu") -> None:
    """One method over one stream; one that was stopped goes on, one that is known by another name is not done again."""
    record = folder.same_run(job)
    if record is None:
        record = _stream(job, folder, on_step, device)
    named = job.named
    text = json.dumps({**named, **{key: value for key, value in record.items() if key not in named}}, indent=2)
    write_text(folder.result_file(job), text + "\n")


def _stream(job: RunJob, folder: SweepFolder, on_step: OnStep, device: str) -> dict[str, Any]:
    split, file, suite = job.class_split, folder.model_file(job.model), job.suite
    model = SourceModel.load(file)
    model.check_class_names(job.model.open_data().class_names[: split.num_source])
    stream = job.open_stream(model.spec.image_size)
    method = create(job.method, model, device=device, **job.settings)
    started, first = time.perf_counter(), [0]
    protocol = {
        **{"data": suite.data, "source": job.model.source, "target": list(job.targets), "seed": job.seed},
        **{"batch_size": job.batch_size, "drop_last": suite.drop_last, "limit_batches": job.limit},
        **suite.playing.as_dict(),
        **{"unknown_share": job.unknown_share, "preset": job.entry.preset_for(suite.data)},
        "model_id": file.stem if job.model.given is None else job.model.id,
    }

    def on_batch(log: Any) -> None:
        first[0] = first[0] or len(log)
        on_step(len(log), len(stream))

    checkpoint = folder.checkpoint_file(job)
    result = run_stream(method, stream, split, protocol=protocol, checkpoint=checkpoint, on_batch=on_batch)
    # Loading included, but neither the opening of the data nor what a stopped run had done before.
    done = len(result.log)
    seconds = (time.perf_counter() - started) / max(done - first[0] + 1, 1) * done
    return {**result.record, "digest": job.digest, "wall_seconds": seconds}


def score_of(record: dict[str, Any]) -> float | None:
    """The score of the record's shift: accuracy for PDA, H-score otherwise; None if it has none."""
    value = record.get("metrics", {}).get(record.get("score"))
    return None if value is None or not math.isfinite(value) else float(value)


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Shift -> method, or variant of a study -> mean, standard deviation and number of runs.

    Runs with a share of unknown samples that was asked for have columns of their own: ``OPDA 0.3``.
    """
    summary: dict[str, dict[str, dict[str, float | int | None]]] = {}
    if not records:
        return summary
    shares = ((record.get("protocol") or {}).get("unknown_share") for record in records)
    frame = pd.DataFrame(
        {
            "column": [" ".join(filter(None, (r["shift"], share))) for r, share in zip(records, shares, strict=True)],
            "name": [record["variant"] or record["method"] for record in records],
            "score": pd.Series([score_of(record) for record in records], dtype=float),
        }
    )
    table = frame.groupby(["column", "name"], sort=False).score.agg(mean="mean", std="std", runs="count")
    for (column, name), cell in table.astype(object).where(table.notna(), None).iterrows():
        summary.setdefault(column, {})[name] = {**cell, "runs": int(cell.runs)}
    return summary
