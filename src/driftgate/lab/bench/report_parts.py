"""What a report shows of a suite, before it becomes a page and tables."""

from __future__ import annotations

from dataclasses import dataclass

from driftgate.lab.bench import findings
from driftgate.lab.bench.charts import Chart
from driftgate.lab.bench.runs import SuiteRuns
from driftgate.lab.bench.shares import ShareSweep
from driftgate.lab.bench.statistics import Summary
from driftgate.lab.bench.tables import ResultTable
from driftgate.lab.bench.tenths import Tenths


@dataclass(frozen=True)
class Cost:
    """What a method costs: means over its runs."""

    method: str
    name: str
    score: Summary | None
    state_bytes: float | None
    peak_bytes: float | None
    seconds_per_batch: float | None
    source_free: bool


@dataclass(frozen=True)
class StudyPart:
    """A study: its figure, its table, and what the paper says of it."""

    name: str
    title: str
    chart: Chart
    table: ResultTable
    paper: str | None


@dataclass(frozen=True)
class SettingsPart:
    """One set of settings, and how many runs used it."""

    label: str
    method: str
    runs: int
    settings: dict[str, str]


@dataclass(frozen=True)
class SuitePart:
    """Everything the page shows of one suite."""

    suite: SuiteRuns
    anchor: str
    facts: list[str]
    sentences: list[str]
    tables: list[ResultTable]
    notes: list[str]
    comparisons: dict[str, list[findings.ComparisonRow]]
    shared_models: bool
    costs: list[Cost]
    cost_charts: list[Chart]
    studies: list[StudyPart]
    curves: list[Chart]
    tenths: list[Tenths]
    sweeps: list[ShareSweep]
    used: Chart | None
    settings: list[SettingsPart]
    settings_of: dict[str, str]
    versions: dict[str, str]
