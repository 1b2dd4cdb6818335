"""Finished runs as they lie on the disk, read into one pandas frame for each suite: a row a run.

A folder holds ``suite.json``, ``models/<id>.json``, ``records/<id>.json`` and ``failures/<id>.json``. Whatever in it
cannot be read is named in a warning and left out: one broken file must not hide a week of runs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from scipy import signal

from driftgate.lab.bench.comparable import choose, mixed_runs
from driftgate.lab.bench.folder import json_files, load_object
from driftgate.lab.bench.plan import DIGITS
from driftgate.record import RECORD_FORMAT, Numbers, Protocol, Record
from driftgate.shifts import Shift
from driftgate.text import problems
from driftgate.types import DriftgateError

SHIFTS = tuple(shift.value for shift in Shift)
CURVE_POINTS = 90
"""More points than this no screen shows; long streams are thinned, so that ten thousand runs fit into memory."""

METRICS = {name: name for name in ("accuracy", "h_score", "known_accuracy", "unknown_accuracy", "auroc")}
METRICS["best_threshold"] = "best_threshold_score"
"""Column of the frame, in per cent -> metric of the record."""

SMOOTHED = {"used_share": 5, "rejected_share": 0.1, "running_score": 1}
"""Curves that are kept -> batches they are smoothed over, or the part of the stream."""

logger = logging.getLogger(__name__)
Array = NDArray[np.float64]


class Failure(NamedTuple):
    """A run that ended with an error."""

    id: str
    error: str
    traceback: str


class ModelFacts(BaseModel, strict=True, extra="ignore"):
    """What the report takes from the file beside a source model."""

    held_out_accuracy: float | None = None
    backbone: str | None = None
    training: dict[str, Any] | None = None
    per_class: int | None = None


@dataclass
class Results:
    """All runs of one suite, from one folder or several; ``frame.kept`` says which of them fit together."""

    name: str
    info: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)
    failures: list[Failure] = field(default_factory=list)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    definitions: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return str(self.info.get("title") or self.name)

    @property
    def main(self) -> pd.DataFrame:
        """The runs of the main table."""
        return self._part(self.frame.study.isna() & self.frame.unknown_share.isna())

    @property
    def swept(self) -> pd.DataFrame:
        """The runs whose streams have a share of unknown samples that was asked for."""
        return self._part(self.frame.study.isna() & self.frame.unknown_share.notna())

    @property
    def studies(self) -> dict[str, pd.DataFrame]:
        """The runs of each ablation study."""
        found = {str(name): self._part(self.frame.study == name) for name in self.frame.study.dropna().unique()}
        return {name: frame for name, frame in found.items() if len(frame)}

    def _part(self, wanted: pd.Series[bool]) -> pd.DataFrame:
        return self.frame[(wanted & self.frame.kept).astype(bool)]  # of no run at all the columns have no type


def read_results(folders: Sequence[str | Path]) -> list[Results]:
    """Read the runs of all folders, grouped by suite in the order they come."""
    suites: dict[str, Results] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            found = "it is a file" if folder.exists() else "there is no such folder"
            raise DriftgateError(f"Expected a folder of runs at {folder} but {found}; give the --out of 'bench'.")
        _read_folder(folder, suites)
    kept = [suite for suite in suites.values() if suite.rows or suite.failures]
    if not kept:
        raise DriftgateError(
            f"Expected finished runs in {', '.join(map(str, folders))} but found none; run 'driftgate bench' first."
        )
    for suite in kept:
        _finish(suite)
        for warning in suite.warnings:
            logger.warning("%s: %s", suite.name, warning)
    return kept


def _finish(suite: Results) -> None:
    """Make the frame, and keep what does not fit together from the tables."""
    frame = pd.DataFrame(list(suite.rows.values()), columns=list(COLUMNS))
    place = frame["shift"].map(lambda shift: SHIFTS.index(shift) if shift in SHIFTS else len(SHIFTS))
    order = frame.assign(place=place).sort_values(["source", "target", "place", "seed", "id"]).index
    suite.frame, suite.rows = frame.loc[order].reset_index(drop=True).assign(kept=True), {}
    done = set(suite.frame.id) | set(suite.models)
    # The note of a failure stays behind when the job is done again and succeeds.
    suite.failures = [failure for failure in suite.failures if failure.id not in done]
    for group in (suite.main, suite.swept, *suite.studies.values()):
        chosen, notes = choose(group, suite.models)
        suite.frame.loc[group.index.difference(chosen.index), "kept"] = False
        suite.warnings += notes
    suite.warnings += mixed_runs(suite.main)
    older = suite.frame.format[suite.frame.format < RECORD_FORMAT].value_counts().sort_index()
    for number, count in older.items():
        suite.warnings.append(
            f"{count} of {len(suite.frame)} records have format {number}, now it is {RECORD_FORMAT}: "
            "what they lack is left out"
        )


def _read_folder(folder: Path, suites: dict[str, Results]) -> None:
    problems: list[str] = []
    info = next((document for _, document in _documents([folder / "suite.json"], problems)), {})
    name = str(info.get("name") or "")
    rows, definitions = [], {}
    for path, document in _documents(json_files(folder / "records"), problems):
        try:
            record = Record.model_validate(document)
            rows.append(run_row(record, path, name))
            definitions.update(record.definitions)
        except (ValidationError, ValueError) as error:
            problems.append(f"{path} is no record and was left out: {_wrong(error)}")
    name = name or (rows[0]["suite"] if rows else folder.name)
    own = suites.setdefault(name, Results(name))
    own.info = {**info, **own.info}
    own.warnings += problems
    for row in rows:
        suite = suites.setdefault(row["suite"], Results(row["suite"]))
        suite.definitions.update(definitions)
        if row["id"] in suite.rows:
            suite.warnings.append(f"{row['id']} repeats a run that is there already; left out")
        else:
            suite.rows[row["id"]] = row
    for path, document in _documents(json_files(folder / "failures"), own.warnings):
        facts = (document.get(key, other) for key, other in (("error", "no reason given"), ("traceback", "")))
        own.failures.append(Failure(str(document.get("id", path.stem)), *map(str, facts)))
    for path, document in _documents(json_files(folder / "models"), own.warnings):
        try:
            ModelFacts.model_validate(document)
            own.models[path.stem] = document
        except ValidationError as error:
            own.warnings.append(f"{path} describes no model and was left out: {_wrong(error)}")


def _documents(paths: Sequence[Path], problems: list[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The JSON objects in files; what is no such object goes to ``problems``, a file that is not there to nobody."""
    for path in paths:
        try:
            yield path, load_object(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{path} cannot be read and was left out: {error}")


def _wrong(error: ValidationError | ValueError) -> str:
    """What is wrong, in a line."""
    return problems(error) if isinstance(error, ValidationError) else str(error)


def run_row(record: Record, path: Path, suite: str = "") -> dict[str, Any]:
    """A row of the frame; what a record of ``demo`` or ``adapt`` lacks is in its protocol. Scores are in per cent."""
    protocol = record.protocol
    source, target, shift = (getattr(record, name) or getattr(protocol, name) for name in ("source", "target", "shift"))
    seed = next((s for s in (record.seed, protocol.seed, record.settings.get("seed", 0)) if isinstance(s, int)), None)
    named = {"source": source, "target": target, "shift": shift, "seed": seed is not None}
    missing = [name for name, value in named.items() if not value]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    halves, tenths = [*record.halves, None, None][:2], [*record.tenths, *[None] * 10][:10]
    size, alike = record.model.input_size, ("method", "study", "variant", "classes", "versions", "digest", "format")
    return {
        "id": record.id or path.stem,
        "suite": record.suite or suite or protocol.data or path.parent.parent.name,
        **{"source": _domains(source), "target": _domains(target), "shift": shift, "seed": seed},
        **{name: getattr(record, name) for name in alike},
        **{name: getattr(protocol, name) for name in ("unknown_share", "samples", "batches")},
        **{"metric": record.score, "score": _percent(record.metrics.get(record.score or ""))},
        **{column: _percent(record.metrics.get(metric)) for column, metric in METRICS.items()},
        **{"first_half": _percent(halves[0]), "second_half": _percent(halves[1])},
        "tenths": tuple(map(_percent, tenths)),
        **{name: _percent(record.shares.get(name)) for name in ("rejected", "estimated")},
        "skipped": len(protocol.skipped),
        "state_bytes": _finite(record.state_bytes),
        "peak_bytes": _finite(record.peak_memory_bytes if record.format >= 2 else None),
        "seconds": _finite(record.seconds.median_per_batch),
        **{"network": record.model.backbone, "input_size": "x".join(map(str, size)) if size else None},
        **{"model_id": protocol.model_id or "", "model": (protocol.model_id or "")[-DIGITS:]},
        **{"limit": protocol.limit_batches or protocol.limit, "protocol": protocol},
        "settings": {name: value for name, value in record.settings.items() if name != "seed"},
        "class_names": tuple(record.model.class_names),
        "curves": {
            name: curve(values, SMOOTHED[name], protocol.samples, protocol.batch_size)
            for name, values in record.series.items()
            if name in SMOOTHED
        },
        "written": path.stat().st_mtime if path.exists() else 0.0,
    }


@np.errstate(over="ignore", invalid="ignore")  # of a file that somebody changed: what leaves the range is not drawn
def curve(values: Numbers, smooth: float, samples: int | None, batch_size: int | None) -> Array:
    """(points, 2): samples seen and a series in per cent, smoothed, thinned, without what had nothing to measure.

    ``smooth`` is a number of batches, or below 1 a part of the stream.
    """
    heights = 100.0 * np.array(values, dtype=np.float64)  # of None it makes NaN
    total = float(samples or len(heights))
    seen = np.minimum((batch_size or total / max(len(heights), 1)) * np.arange(1, len(heights) + 1), total)
    reach = round(smooth * len(heights) / 2) if smooth < 1 else int(smooth) // 2
    if reach and len(heights):
        # By samples, fewer at both ends: the last batch may hold a few only.
        near, sizes = np.ones(2 * reach + 1), np.diff(seen, prepend=0.0).clip(min=1e-6)
        sums, counts = (signal.convolve(row, near, "same", "direct") for row in (heights * sizes, sizes))
        heights = sums / counts
    known = np.flatnonzero(np.isfinite(heights))
    if len(known) > CURVE_POINTS:
        known = known[np.unique(np.linspace(0, len(known) - 1, CURVE_POINTS).round().astype(int))]
    return np.stack([seen[known], heights[known]], axis=1)


def _domains(value: str | list[str]) -> str:
    """One domain, or several that were mixed."""
    return value if isinstance(value, str) else "+".join(value)


def _finite(value: float | None) -> float:
    return float(value) if value is not None and math.isfinite(value) else math.nan


def _percent(value: float | None) -> float:
    return 100.0 * _finite(value)


EMPTY = Record(method="none", source="none", target="none", shift="none", protocol=Protocol(), score="", metrics={})
COLUMNS = tuple(run_row(EMPTY, Path("none")))
"""Of the frame of runs."""
