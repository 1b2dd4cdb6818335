"""Finished runs as they lie on the disk: read, checked, and grouped by suite.

A folder holds ``suite.json``, ``models/<id>.json``, ``records/<job id>.json`` and ``failures/<job id>.json``. Whatever
in it cannot be read is named in a warning and left out: one broken file must not hide a week of runs.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftgate.data.shifts import Shift
from driftgate.types import DriftgateError

logger = logging.getLogger(__name__)

SHIFTS = tuple(shift.value for shift in Shift)
METRIC_WORDS = {"accuracy": "accuracy", "h_score": "H-score"}


@dataclass(frozen=True)
class Run:
    """One finished run: what it was, and its record."""

    id: str
    suite: str
    method: str
    source: str
    target: str
    shift: str
    seed: int
    study: str | None
    variant: str | None
    record: dict[str, Any]

    @property
    def pair(self) -> tuple[str, str]:
        return self.source, self.target

    @property
    def unit(self) -> tuple[str, str, str, int]:
        """What two methods must share for their scores to be compared: shift, source, target, seed."""
        return self.shift, self.source, self.target, self.seed

    @property
    def score(self) -> float | None:
        """The shift's own score in per cent; None where it had nothing to measure."""
        value = self.record["metrics"].get(self.record["score"])
        return 100.0 * value if isinstance(value, int | float) and math.isfinite(value) else None

    @property
    def settings(self) -> dict[str, Any]:
        """The method's settings but for the seed, which belongs to the run."""
        return {name: value for name, value in self.record.get("settings", {}).items() if name != "seed"}

    def number(self, *path: str) -> float | None:
        """A number of the record by its keys, if it is there."""
        value: Any = self.record
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def series(self, name: str) -> list[float]:
        """A series of the record; NaN where it had nothing to measure."""
        values = self.record.get("series", {}).get(name, [])
        return [math.nan if value is None else float(value) for value in values]


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error."""

    id: str
    error: str
    traceback: str


@dataclass
class SuiteRuns:
    """All runs of one suite, from one folder or several."""

    name: str
    info: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return str(self.info.get("title") or self.name)

    @property
    def main(self) -> list[Run]:
        """The runs of the main table."""
        return [run for run in self.runs if run.study is None]

    @property
    def studies(self) -> dict[str, list[Run]]:
        """The runs of each ablation study."""
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            if run.study is not None:
                found.setdefault(run.study, []).append(run)
        return found


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
        suite.warnings += mixed_runs(suite.main)
        for warning in suite.warnings:
            logger.warning("%s: %s", suite.name, warning)
    return [suite for suite in suites.values() if suite.runs or suite.failures]


def mixed_runs(runs: Sequence[Run]) -> list[str]:
    """Say where one cell of a table would mix what should not be mixed: settings, or lengths of the stream."""
    settings: dict[tuple[str, str], set[str]] = {}
    lengths: dict[str, set[int]] = {}
    for run in runs:
        where = " ".join((*run.pair, run.shift))
        settings.setdefault((run.method, where), set()).add(json.dumps(run.settings, sort_keys=True))
        lengths.setdefault(where, set()).add(int(run.number("protocol", "samples") or 0))
    mixed = dict.fromkeys(method for (method, _), found in settings.items() if len(found) > 1)
    warnings = [f"runs of {method} with different settings share a cell of the table" for method in mixed]
    if any(len(found) > 1 for found in lengths.values()):
        warnings.append("runs over streams of different lengths share a column of the table")
    return warnings


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
        own.models[path.stem] = document


def _documents(folder: Path, problems: list[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The JSON objects of a folder by name; hidden files are being written and do not count."""
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        if path.name.startswith("."):
            continue
        document = _read_json(path)
        if isinstance(document, str):
            problems.append(document)
        else:
            yield path, document


def _read_json(path: Path) -> dict[str, Any] | str:
    """The object in a file, or what is wrong with it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{path} cannot be read and was left out: {error}"
    return document if isinstance(document, dict) else f"{path} holds no JSON object and was left out"


def _run(path: Path, document: dict[str, Any], suite: str) -> Run | str:
    """The run of a record, or what is wrong with it; what a record of ``demo`` lacks is in its protocol."""
    protocol = document.get("protocol")
    metrics = document.get("metrics")
    if not isinstance(protocol, dict) or not isinstance(metrics, dict) or "score" not in document:
        return f"{path} is no run record and was left out: it has no protocol, metrics or score"
    given = {**protocol, **{key: value for key, value in document.items() if value is not None}}
    missing = [key for key in ("method", "source", "target", "shift") if not given.get(key)]
    seed = given.get("seed", document.get("settings", {}).get("seed", 0))
    if missing or not isinstance(seed, int):
        return f"{path} is no run record and was left out: it has no {', '.join(missing) or 'seed'}"
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
    )


def _domains(value: Any) -> str:
    """One domain, or several that were mixed."""
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
