"""The folder of a sweep: records, failures, source models, locks, and what is going on in it right now.

Everything is a file that is written whole or not at all, and every job has a lock that dies with its process. So
several sweeps, also on several machines, can work on one folder, and a killed one leaves nothing that is half done.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from driftgate.files import write_text
from driftgate.lab.bench.plan import Job, ModelJob, RunJob, short
from driftgate.lab.bench.suite import Suite
from driftgate.types import DriftgateError

STALE_SECONDS = 600.0
"""A temporary file that is older belongs to nobody."""

State = Literal["done", "failed", "open"]

logger = logging.getLogger(__name__)


class SweepFolder:
    """The paths in a folder of results, and how to read and write them."""

    def __init__(self, path: Path) -> None:
        self.path, self.suite_file = path, path / "suite.json"
        self.records, self.failures, self.models = path / "records", path / "failures", path / "models"
        self.progress, self.locks = path / "progress", path / "locks"

    def prepare(self, suite: Suite) -> None:
        """Create the folder, sweep out what killed processes left, note the suite; refuses a folder of another."""
        for folder in (self.records, self.failures, self.models, self.progress, self.locks):
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(".*"):
                with suppress(OSError):
                    if time.time() - left.stat().st_mtime > STALE_SECONDS:
                        left.unlink()
        with FileLock(self.locks / "suite.lock"):
            self._note_suite(suite)

    def check_suite(self, suite: Suite) -> None:
        """Refuse a folder that holds another suite; nothing is written."""
        held = (read_json(self.suite_file) or {}).get("name", suite.name)
        if held != suite.name:
            raise DriftgateError(
                f"Expected a folder for suite {suite.name} but {self.path} holds suite {held}; name another --out."
            )

    def _note_suite(self, suite: Suite) -> None:
        """Write ``suite.json``: all pairs, shifts, methods and seeds that sweeps in this folder have had so far."""
        self.check_suite(suite)
        document = suite.model_dump(mode="json")
        before = read_json(self.suite_file) or {}
        named = {entry["name"]: entry for entry in [*before.get("methods", []), *document["methods"]]}
        merged = {
            key: [*before.get(key, []), *(item for item in document[key] if item not in before.get(key, []))]
            for key in ("pairs", "shifts", "seeds", "unknown_shares")
        }
        text = json.dumps({**document, **merged, "methods": list(named.values())}, indent=2)
        write_text(self.suite_file, text + "\n")

    def result_file(self, job: Job) -> Path:
        """What a job leaves when it is finished."""
        return self.model_file(job) if isinstance(job, ModelJob) else self.records / f"{job.id}.json"

    def model_file(self, job: ModelJob) -> Path:
        """Where a model is, or will be: older versions named it otherwise, but its name always ended in its digest."""
        if job.given is not None:
            return Path(job.given)
        own = self.models / f"{job.id}.safetensors"
        return own if own.exists() else next(self.models.glob(f"*-{short(job.digest)}.safetensors"), own)

    def checkpoint_file(self, job: Job) -> Path:
        """Where a job that was stopped goes on."""
        return self.progress / f"{job.id}.safetensors"

    def failure_file(self, job: Job) -> Path:
        return self.failures / f"{job.id}.json"

    def state(self, job: Job, since: float) -> State:
        """Whether a job is finished, or has failed since a moment, or is still to be done."""
        if self.is_done(job):
            return "done"
        failure = self.failure(job)
        return "failed" if failure is not None and failure["time"] >= since else "open"

    def is_done(self, job: Job) -> bool:
        return self.facts(job) is not None

    def facts(self, job: Job) -> dict[str, Any] | None:
        """The record of a finished run, or what stands beside a trained model; None for what is still to be done.

        A record that cannot be read is none, and the run is to be done; a model is there without its facts.
        """
        file = self.result_file(job)
        if isinstance(job, RunJob):
            return read_json(file)
        return (read_json(file.with_suffix(".json")) or {}) if file.exists() else None

    def failure(self, job: Job) -> dict[str, Any] | None:
        return read_json(self.failure_file(job))

    def all_records(self) -> list[dict[str, Any]]:
        """Every record in the folder, of whatever run; what cannot be read is passed over."""
        return read_all(self.records)

    def same_run(self, job: RunJob) -> dict[str, Any] | None:
        """A record of the same run under another name: an ablation's default is the suite's own run."""
        for file in self.records.glob(f"*-{short(job.digest)}.json"):
            record = None if file.name.startswith(".") else read_json(file)
            if record is not None and record.get("digest") == job.digest:
                return record
        return None

    def fail(self, job: Job, error: str, traceback: str) -> None:
        facts = {"id": job.id, "error": error, "traceback": traceback, "host": socket.gethostname()}
        write_text(self.failure_file(job), json.dumps({**facts, "time": time.time()}, indent=2) + "\n")

    def forget_failures(self, jobs: Iterable[Job], before: float) -> None:
        """Remove the notes of older failures of ``jobs``, which are done, also of those with other settings."""
        names = {job.id.removesuffix(short(job.digest)) for job in jobs}
        for file in self.failures.glob("*.json"):
            if file.stem.rpartition("-")[0] + "-" in names and (read_json(file) or {}).get("time", before) < before:
                file.unlink(missing_ok=True)

    @contextmanager
    def lock(self, digest: str) -> Iterator[bool]:
        """Hold a job's lock inside; answers False if somebody else holds it. The system frees a killed process's."""
        try:
            with FileLock(self.locks / f"{short(digest)}.lock", timeout=0):
                yield True
        except Timeout:
            yield False


def read_all(folder: Path) -> list[dict[str, Any]]:
    """The JSON objects of a folder by name."""
    return [document for file in json_files(folder) if (document := read_json(file)) is not None]


def json_files(folder: Path) -> list[Path]:
    """The JSON files of a folder by name; hidden ones are being written and do not count."""
    return sorted(file for file in folder.glob("*.json") if not file.name.startswith("."))


def _int64(digits: str) -> int:
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"a number of {len(digits)} digits is in it")
    return number


def load_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; OSError or ValueError if there is none."""
    try:
        document = json.loads(file.read_bytes(), parse_int=_int64)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(document, dict):
        raise ValueError("it holds no JSON object")
    return document


def read_json(file: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None if it is not there (any more) or cannot be read, which is warned of."""
    try:
        return load_object(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _warn_once(f"{file} cannot be read and counts as missing: {error}")
        return None


@lru_cache(maxsize=1000)
def _warn_once(message: str) -> None:
    """Warn of a file the first time only: whoever watches a sweep reads it twice a second."""
    logger.warning(message)
