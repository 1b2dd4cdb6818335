"""A finished run, and all runs of a suite."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from driftgate.shifts import Shift

SHIFTS = tuple(shift.value for shift in Shift)
METRIC_WORDS = {"accuracy": "accuracy", "h_score": "H-score"}
DIGITS = 8
"""An id ends in so many digits of a hash; whatever stands before them may be named anew."""


@dataclass(frozen=True)
class Run:
    """One finished run: what it was, and its record. ``written`` is when, in seconds since 1970."""

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
    written: float = 0.0

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
        value = self.number("metrics", self.record["score"])
        return None if value is None else 100.0 * value

    @property
    def score_as_released(self) -> float | None:
        """The score as the paper's authors count it, in per cent; None in records that do not tell."""
        if self.record["score"] != "h_score":
            return self.score
        value = self.number("metrics", "h_score_released")
        return None if value is None else 100.0 * value

    @property
    def settings(self) -> dict[str, Any]:
        """The method's settings but for the seed, which belongs to the run."""
        return {name: value for name, value in self.record.get("settings", {}).items() if name != "seed"}

    @property
    def protocol(self) -> dict[str, Any]:
        """How the stream was made, and on which model."""
        protocol: dict[str, Any] = self.record["protocol"]
        return protocol

    @property
    def limit(self) -> int | None:
        """Batches of the stream that were run at most."""
        limit: int | None = self.protocol.get("limit_batches") or self.protocol.get("limit")
        return limit

    @property
    def unknown_share(self) -> str | None:
        """The share of unknown samples that was asked for; None where it is that of the data."""
        share: str | None = self.protocol.get("unknown_share")
        return share

    @property
    def model_id(self) -> str:
        """The source model; empty where the record does not name it."""
        return str(self.protocol.get("model_id") or "")

    @property
    def model_digits(self) -> str:
        """What stays of the model's id when it is named anew."""
        return self.model_id[-DIGITS:]

    def number(self, *path: str) -> float | None:
        """A finite number of the record by its keys, if it is there."""
        value: Any = self.record
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            return None
        return float(value)

    @property
    def peak_bytes(self) -> float | None:
        """Peak memory above the loaded model; records of format 1 have that of the whole process, which is not it."""
        return self.number("peak_memory_bytes") if (self.number("format") or 0) >= 2 else None

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
    """All runs of one suite, from one folder or several.

    ``left_out`` holds the ids of runs that are listed but kept from tables and statistics (``comparable.py``).
    """

    name: str
    info: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)

    @property
    def title(self) -> str:
        return str(self.info.get("title") or self.name)

    @property
    def main(self) -> list[Run]:
        """The runs of the main table."""
        return [run for run in self._kept(None) if run.unknown_share is None]

    @property
    def swept(self) -> list[Run]:
        """The runs whose streams have a share of unknown samples that was asked for."""
        return [run for run in self._kept(None) if run.unknown_share is not None]

    @property
    def studies(self) -> dict[str, list[Run]]:
        """The runs of each ablation study."""
        names = dict.fromkeys(run.study for run in self.runs if run.study is not None)
        found = {name: self._kept(name) for name in names}
        return {name: runs for name, runs in found.items() if runs}

    def _kept(self, study: str | None) -> list[Run]:
        return [run for run in self.runs if run.study == study and run.id not in self.left_out]
