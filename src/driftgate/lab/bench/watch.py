"""Looking at a sweep from outside: what is done, what is going on, how it scores, how long it will take.

Only files are read, so that it sees the work of other sweeps and other machines too.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftgate.lab.bench.estimate import makespan, work_units
from driftgate.lab.bench.folder import SweepFolder, read_json
from driftgate.lab.bench.jobs import ModelJob
from driftgate.lab.bench.plan import Plan
from driftgate.lab.bench.sweep import score_of, summarise


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
        self._runs = {job.id: job for job in plan.runs}
        self._models = {job.id: job for job in plan.models}
        self._units = {job.id: max(1, work_units(job)) for job in plan.jobs}
        self._records: dict[str, dict[str, Any]] = {}
        self._trained: dict[str, float | None] = {}
        self._failed: dict[str, str] = {}
        self.look()  # what was there before is no news

    def look(self) -> Snapshot:
        """The sweep now."""
        news = [*self._new_models(), *self._new_records(), *self._new_failures()]
        known = self._runs.keys() | self._models.keys()
        running = [report for report in self.folder.reports() if report["id"] in known]
        return Snapshot(
            done=len(self._records),
            failed=sum(name in self._runs for name in self._failed),
            total=len(self._runs),
            models_done=len(self._trained),
            models=len(self._models),
            running=running,
            scores=summarise(list(self._records.values())),
            seconds_left=self._seconds_left(running),
            news=news,
        )

    def _new_models(self) -> list[str]:
        lines = []
        for name, job in sorted(self._models.items()):
            if name in self._trained or not self.folder.is_done(job):
                continue
            facts = read_json(self.folder.model_file(job).with_suffix(".json")) or {}
            self._trained[name] = facts.get("seconds")
            self._failed.pop(name, None)
            held = facts.get("held_out_accuracy")
            accuracy = "" if held is None else f", {100 * held:.1f} % on what was held out"
            lines.append(f"{job.label}{accuracy}{_took(facts.get('seconds'))}")
        return lines

    def _new_records(self) -> list[str]:
        lines = []
        for name in sorted((_names(self.folder.records) & self._runs.keys()) - self._records.keys()):
            record = self.folder.record(self._runs[name])
            if record is None:
                continue
            kept = ("method", "variant", "shift", "score", "metrics", "protocol", "wall_seconds")
            self._records[name] = {key: record.get(key) for key in kept}
            self._failed.pop(name, None)
            score = score_of(record)
            shown = "-" if score is None else f"{100 * score:.1f}"
            lines.append(f"{self._runs[name].label}: {shown}{_took(record.get('wall_seconds'))}")
        return lines

    def _new_failures(self) -> list[str]:
        lines = []
        for name in sorted(_names(self.folder.failures) - self._failed.keys()):
            job = self._runs.get(name) or self._models.get(name)
            failure = None if job is None else self.folder.failure(job)
            if job is not None and failure is not None and failure["time"] >= self.since:
                self._failed[name] = failure["error"]
                lines.append(f"{job.label}: FAILED, {failure['error']}")
        return lines

    def _seconds_left(self, running: list[dict[str, Any]]) -> float | None:
        """Of each open job, what jobs of its kind took for as much work; less for those that are half done."""
        by_method: dict[str, list[float]] = {}
        for name, record in self._records.items():
            if record["wall_seconds"] is not None:
                by_method.setdefault(record["method"], []).append(record["wall_seconds"] / self._units[name])
        means = {name: statistics.fmean(values) for name, values in by_method.items()}
        run_mean = statistics.fmean(means.values()) if means else None
        trained = [value / self._units[name] for name, value in self._trained.items() if value is not None]
        model_mean = statistics.fmean(trained) if trained else None
        part_done = {report["id"]: report["done"] / max(report["total"], 1) for report in running}
        ended = self._records.keys() | self._trained.keys() | self._failed.keys()
        left = [job for job in self.plan.jobs if job.id not in ended]
        seconds = {}
        for job in left:
            speed = model_mean if isinstance(job, ModelJob) else means.get(job.method, run_mean)
            if speed is None:
                return None
            seconds[job.id] = speed * self._units[job.id] * (1.0 - part_done.get(job.id, 0.0))
        return makespan(left, seconds, self.workers)


def _took(seconds: float | None) -> str:
    return "" if seconds is None else f" ({seconds:.0f} s)"


def _names(folder: Path) -> set[str]:
    """Names of the finished JSON files in a folder, without their ending."""
    return {name.removesuffix(".json") for name in os.listdir(folder) if name.endswith(".json") and name[0] != "."}
