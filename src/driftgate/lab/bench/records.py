"""Finished runs as they lie on the disk: read, checked, and grouped by suite.

A folder holds ``suite.json``, ``models/<id>.json``, ``records/<job id>.json`` and ``failures/<job id>.json``. Whatever
in it cannot be read is named in a warning and left out: one broken file must not hide a week of runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftgate.lab.bench.comparable import choose, mixed_runs
from driftgate.lab.bench.folder import json_files, load_object
from driftgate.lab.bench.runs import SHIFTS, Failure, Run, SuiteRuns
from driftgate.types import DriftgateError

logger = logging.getLogger(__name__)


class _Strict(BaseModel):
    """Types as JSON has them; what else a file holds is not looked at."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Protocol(_Strict):
    source: str | list[str] | None = None
    target: str | list[str] | None = None
    shift: str | None = None
    seed: int | None = None
    data: str | None = None
    split: str | None = None
    class_order: str | None = None
    model_id: str | None = None
    preset: str | None = None
    batch_size: int | None = None
    drop_last: bool | None = None
    limit_batches: int | None = None
    limit: int | None = None
    order: str | None = None
    concentration: float | None = None
    arrangement: str | None = None
    repeat: int | None = None
    unknown_share: str | None = None
    skipped: list[Any] = []


class _Network(_Strict):
    backbone: str | None = None
    input_size: list[int] | None = None


class _Record(_Strict):
    """What the report takes from a run's record; a field may be missing, but not of another kind."""

    id: str | None = None
    suite: str | None = None
    method: str = Field(min_length=1)
    source: str | list[str] | None = None
    target: str | list[str] | None = None
    shift: str | None = None
    seed: int | None = None
    study: str | None = None
    variant: str | None = None
    settings: dict[str, Any] = {}
    model: _Network = _Network()
    protocol: _Protocol
    score: str
    metrics: dict[str, Any]
    halves: list[float | None] = Field(default=[None, None], min_length=2, max_length=2)
    tenths: list[float | None] = Field(default=[None] * 10, min_length=10, max_length=10)
    shares: dict[str, float | None] = {}
    definitions: dict[str, Any] = {}
    series: dict[str, list[float | None]] = {}
    versions: dict[str, Any] = {}
    digest: str | None = None


class _Model(_Strict):
    """What the report takes from the file beside a source model."""

    held_out_accuracy: float | None = None
    backbone: str | None = None
    training: dict[str, Any] | None = None
    per_class: int | None = None


def read_results(folders: Sequence[str | Path]) -> list[SuiteRuns]:
    """Read the runs of all folders, grouped by suite in the order they come."""
    suites: dict[str, SuiteRuns] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            found = "it is a file" if folder.exists() else "there is no such folder"
            raise DriftgateError(f"Expected a folder of runs at {folder} but {found}; give the --out of 'bench'.")
        _read_folder(folder, suites)
    if not any(suite.runs or suite.failures for suite in suites.values()):
        raise DriftgateError(
            f"Expected finished runs in {', '.join(map(str, folders))} but found none; run 'driftgate bench' first."
        )
    for suite in suites.values():
        suite.runs.sort(key=_place)
        done = {run.id for run in suite.runs} | set(suite.models)
        # The note of a failure stays behind when the job is done again and succeeds.
        suite.failures = [failure for failure in suite.failures if failure.id not in done]
        _leave_out(suite)
        for warning in suite.warnings:
            logger.warning("%s: %s", suite.name, warning)
    return [suite for suite in suites.values() if suite.runs or suite.failures]


def _leave_out(suite: SuiteRuns) -> None:
    """Keep what does not fit together from the tables, and say so."""
    for group in (suite.main, suite.swept, *suite.studies.values()):
        chosen, notes = choose(group, suite.models)
        suite.left_out |= {run.id for run in group} - {run.id for run in chosen}
        suite.warnings += notes
    suite.warnings += mixed_runs(suite.main)


def _place(run: Run) -> tuple[Any, ...]:
    shift = SHIFTS.index(run.shift) if run.shift in SHIFTS else len(SHIFTS)
    return run.source, run.target, shift, run.seed, run.id


def _read_folder(folder: Path, suites: dict[str, SuiteRuns]) -> None:
    info = _read_json(folder / "suite.json") if (folder / "suite.json").exists() else {}
    problems = [info] if isinstance(info, str) else []
    info = {} if isinstance(info, str) else info
    name = str(info.get("name") or "")
    runs: list[Run] = []
    for path, document in _documents(folder / "records", problems):
        run = _run(path, document, name)
        if isinstance(run, Run):
            runs.append(run)
        else:
            problems.append(run)
    name = name or (runs[0].suite if runs else folder.name)
    own = suites.setdefault(name, SuiteRuns(name))
    own.info = {**info, **own.info}
    own.warnings += problems
    for run in runs:
        suite = suites.setdefault(run.suite, SuiteRuns(run.suite))
        if any(known.id == run.id for known in suite.runs):
            suite.warnings.append(f"{folder / 'records' / run.id}.json repeats a run that is there already; left out")
        else:
            suite.runs.append(run)
    for path, document in _documents(folder / "failures", own.warnings):
        own.failures.append(
            Failure(
                str(document.get("id", path.stem)),
                str(document.get("error", "no reason given")),
                str(document.get("traceback", "")),
            )
        )
    for path, document in _documents(folder / "models", own.warnings):
        problem = _problem(_Model, path, document)
        if problem is None:
            own.models[path.stem] = document
        else:
            own.warnings.append(problem)


def _documents(folder: Path, problems: list[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The JSON objects of a folder by name; what is no such object goes to ``problems``."""
    for path in json_files(folder):
        document = _read_json(path)
        if isinstance(document, str):
            problems.append(document)
        else:
            yield path, document


def _read_json(path: Path) -> dict[str, Any] | str:
    """The object in a file, or what is wrong with it."""
    try:
        return load_object(path)
    except (OSError, ValueError) as error:
        return f"{path} cannot be read and was left out: {error}"


def _problem(kind: type[BaseModel], path: Path, document: dict[str, Any]) -> str | None:
    """What is wrong with the content of a file, if anything is."""
    try:
        kind.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{path} is no {kind.__name__.strip('_').lower()} and was left out: {place}: {first['msg']}"
    return None


def _run(path: Path, document: dict[str, Any], suite: str) -> Run | str:
    """The run of a record, or what is wrong with it; what a record of ``demo`` lacks is in its protocol."""
    problem = _problem(_Record, path, document)
    if problem is not None:
        return problem
    protocol = document["protocol"]
    given = {**protocol, **{key: value for key, value in document.items() if value is not None}}
    missing = [key for key in ("source", "target", "shift") if not given.get(key)]
    seed = given.get("seed", document.get("settings", {}).get("seed", 0))
    if missing or not isinstance(seed, int):
        return f"{path} is no record and was left out: it has no {', '.join(missing) or 'seed'}"
    return Run(
        id=str(given.get("id") or path.stem),
        suite=str(document.get("suite") or suite or protocol.get("data") or path.parent.parent.name),
        method=str(given["method"]),
        source=_domains(given["source"]),
        target=_domains(given["target"]),
        shift=str(given["shift"]),
        seed=seed,
        study=document.get("study"),
        variant=document.get("variant"),
        record=document,
        written=path.stat().st_mtime,
    )


def _domains(value: Any) -> str:
    """One domain, or several that were mixed."""
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
