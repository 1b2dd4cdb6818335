"""What a worker does with a job: take its lock, do it, write the result whole; tell of failures, end with the sweep.

A job computes the same in any process and on any number of workers, because it uses one thread and its own seeds.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftgate.checkpoint import write_text
from driftgate.lab.bench.folder import SweepFolder, process_is_alive
from driftgate.lab.bench.jobs import single_thread
from driftgate.lab.bench.plan import Job, ModelJob, RunJob, open_cached
from driftgate.lab.data.domains import Domain
from driftgate.lab.data.loading import Transform
from driftgate.lab.data.streams import DomainStream
from driftgate.lab.pretrain import PretrainSettings, pretrain
from driftgate.log import StreamLog
from driftgate.methods import create
from driftgate.methods.registry import check_device
from driftgate.metrics import HScore, OnlineAccuracy
from driftgate.models import SourceModel
from driftgate.plugins import import_module
from driftgate.progress import remove_progress
from driftgate.shifts import ClassSplit, Shift
from driftgate.stream import run_stream, versions
from driftgate.types import DriftgateError

REPORT_SECONDS = 0.5
"""Between two reports of a job; a report is a small file."""

OWNER_SECONDS = 1.0
"""Between two looks whether the process that owns the sweep is still there."""


@dataclass(frozen=True)
class Sweep:
    """What all jobs of a sweep are told: where, since when, and whose they are.

    ``owner`` is the process that started them, if it runs on ``host`` and its end should end them. ``imports`` are the
    modules with methods of the user's own, which every worker has to import. ``device`` is where they compute.
    """

    path: Path
    since: float
    owner: int | None = None
    host: str = ""
    imports: tuple[str, ...] = ()
    device: str = "cpu"


_guarded: set[int] = set()
"""Owners whose end this process is waiting for."""


def work(job: Job, sweep: Sweep) -> None:
    """Do ``job`` unless it is done or somebody else is at it; the result is a file, and so is a failure."""
    end_with(sweep)
    folder = SweepFolder(sweep.path)
    with folder.lock(job) as mine:
        if not mine or folder.state(job, sweep.since) != "open":
            return
        reporter = Reporter(folder, job)
        reporter(0, 1)  # at once: if this process dies, it is known what it was doing
        try:
            with single_thread():
                for name in sweep.imports:
                    import_module(name)
                if isinstance(job, ModelJob):
                    train(job, folder, reporter, sweep.device)
                elif _model_is_ready(job, folder, sweep):
                    run(job, folder, reporter, sweep.device)
                else:
                    return
        except Exception as error:  # whatever it is, the other jobs go on
            # Whatever is in the checkpoint may be the reason: the next try starts anew.
            remove_progress(folder.checkpoint_file(job))
            folder.fail(job, f"{type(error).__name__}: {error}", traceback.format_exc())
        else:
            remove_progress(folder.checkpoint_file(job))
            folder.failure_file(job).unlink(missing_ok=True)
        finally:
            folder.report_file(job.id).unlink(missing_ok=True)


def end_with(sweep: Sweep) -> None:
    """Let this process end as soon as the one that owns the sweep is gone: a killed sweep must not go on in secret.

    At once and without a word, for nothing that is half done is ever seen: files are renamed when they are whole, and
    the system frees the locks.
    """
    owner = sweep.owner
    if owner is None or owner in _guarded or owner == os.getpid() or sweep.host != socket.gethostname():
        return

    def watch() -> None:
        while process_is_alive(owner):
            time.sleep(OWNER_SECONDS)
        os._exit(1)

    _guarded.add(owner)
    threading.Thread(target=watch, name="end with the sweep", daemon=True).start()


class Reporter:
    """Tells how far a job is, not too often."""

    def __init__(self, folder: SweepFolder, job: Job) -> None:
        self.folder, self.job = folder, job
        self.started = time.time()
        self._last = 0.0

    def due(self) -> bool:
        """Whether it is time for a report."""
        return time.monotonic() - self._last >= REPORT_SECONDS

    def __call__(self, done: int, total: int, score: float | None = None) -> None:
        self._last = time.monotonic()
        self.folder.report(self.job, done, total, score, self.started)


def _model_is_ready(job: RunJob, folder: SweepFolder, sweep: Sweep) -> bool:
    """Whether the source model is there; False if somebody is still training it."""
    state = folder.state(job.model, sweep.since)
    if state == "failed":
        failure = folder.failure(job.model) or {}
        raise DriftgateError(f"Expected the source model {job.model.id} but its training failed: {failure['error']}")
    return state == "done"


def train(job: ModelJob, folder: SweepFolder, reporter: Reporter, device: str = "cpu") -> None:
    """Train a source model; one that was stopped goes on."""
    data = open_cached(job.data, job.root)
    settings = PretrainSettings(**job.training)
    model = SourceModel.build(
        job.backbone,
        data.class_names[: job.num_classes],
        seed=job.seed,
        input_size=job.input_size,
        weights=job.weights,
    ).to(check_device(device))
    report = pretrain(
        model,
        few_per_class(data.domain(job.source, seed=job.seed), job.per_class),
        job.class_split,
        settings,
        workers=0,
        checkpoint=folder.checkpoint_file(job),
        on_step=lambda step: reporter(step.step, step.steps) if reporter.due() else None,
    )
    facts = {
        "id": job.id,
        "source": job.source,
        "num_classes": job.num_classes,
        "seed": job.seed,
        "data": job.data,
        "backbone": job.backbone,
        "input_size": model.spec.image_size,
        "training": job.training,
        "per_class": job.per_class,
        **report.as_dict(),
        "versions": versions(),
        "digest": job.digest,
    }
    file = folder.model_file(job)
    # The model last: where it is, everything about it is.
    write_text(file.with_suffix(".json"), json.dumps(facts, indent=2) + "\n")
    model.save(file)


def run(job: RunJob, folder: SweepFolder, reporter: Reporter, device: str = "cpu") -> None:
    """One method over one stream; one that was stopped goes on, one that is known by another name is not done again."""
    record = folder.same_run(job)
    if record is None:
        record = _stream(job, folder, reporter, device)
    named = {
        "id": job.id,
        "suite": job.suite,
        "source": job.source,
        "target": job.target,
        "shift": job.shift.value,
        "seed": job.seed,
        "study": job.study,
        "variant": job.variant,
    }
    text = json.dumps({**named, **{key: value for key, value in record.items() if key not in named}}, indent=2)
    write_text(folder.result_file(job), text + "\n")


def _stream(job: RunJob, folder: SweepFolder, reporter: Reporter, device: str) -> dict[str, Any]:
    data, split = open_cached(job.model.data, job.model.root), job.class_split
    file = folder.model_file(job.model)
    model = SourceModel.load(file)
    model.check_class_names(data.class_names[: split.num_source])
    stream = target_stream(job, model.spec.image_size)
    method = create(job.method, model, device=device, **job.settings)
    total = len(stream)
    reporter(0, total)
    started, batches = time.perf_counter(), 0

    def on_batch(log: StreamLog) -> None:
        nonlocal batches
        batches += 1
        if reporter.due():
            reporter(len(log), total, score_so_far(log, split))

    result = run_stream(
        method,
        stream,
        split,
        protocol={
            "data": job.model.data,
            "source": job.source,
            "target": list(job.targets),
            "seed": job.seed,
            "batch_size": job.batch_size,
            "drop_last": job.drop_last,
            "limit_batches": job.limit,
            **job.playing.as_dict(),
            "unknown_share": job.unknown_share,
            "preset": job.preset,
            "model_id": file.stem,
        },
        checkpoint=folder.checkpoint_file(job),
        on_batch=on_batch,
    )
    # Loading included, but neither the opening of the data nor what a stopped run had done before.
    seconds = (time.perf_counter() - started) / max(batches, 1) * len(result.log)
    return {**result.record, "digest": job.digest, "wall_seconds": seconds}


def target_stream(job: RunJob, input_size: tuple[int, int]) -> DomainStream:
    """The stream of a run, in an order of its seed's."""
    data = open_cached(job.model.data, job.model.root)
    return DomainStream(
        [data.domain(name, seed=job.seed) for name in job.targets],
        job.class_split,
        input_size=input_size,
        batch_size=job.batch_size,
        seed=job.seed,
        drop_last=job.drop_last,
        workers=0,
        limit=None if job.limit is None else job.limit * job.batch_size,
        unknown_share=job.share,
        **job.playing.model_dump(),
    )


def score_so_far(log: StreamLog, split: ClassSplit) -> float:
    """The shift's score over all batches of a log."""
    metric = OnlineAccuracy() if split.shift is Shift.PDA else HScore(split.shared_classes)
    metric.update(torch.cat(log.predictions), torch.cat(log.targets))
    value = metric.compute()
    return float(value["h_score"] if isinstance(value, dict) else value)


class FewPerClass:
    """The first images of each class of a domain, for a quick training."""

    def __init__(self, domain: Domain, count: int) -> None:
        self.domain, self.name = domain, domain.name
        classes = domain.classes
        places = [(classes == label).nonzero().flatten()[:count] for label in torch.unique(classes)]
        self.places = torch.cat(places).sort().values
        self.classes: Tensor = classes[self.places]

    def __len__(self) -> int:
        return len(self.places)

    def describe(self, index: int) -> str:
        return self.domain.describe(int(self.places[index]))

    def load(self, index: int, transform: Transform) -> Tensor:
        return self.domain.load(int(self.places[index]), transform)


def few_per_class(domain: Domain, count: int | None) -> Domain:
    """The domain, or the first ``count`` images of each of its classes."""
    return domain if count is None else FewPerClass(domain, count)
