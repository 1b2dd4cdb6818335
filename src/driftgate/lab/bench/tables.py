"""Tables in the paper's layout: methods down, pairs and shifts across, means at the end.

Scores are in per cent. ``table_writers.py`` turns a table into CSV, Markdown and LaTeX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import get_args

from driftgate.lab.bench.ablations import STUDIES, Variant
from driftgate.lab.bench.palette import JOINED, row_look
from driftgate.lab.bench.published import PublishedSuite, published_suite
from driftgate.lab.bench.runs import METRIC_WORDS, SHIFTS, Run, SuiteRuns
from driftgate.lab.bench.statistics import Summary, summarise
from driftgate.lab.data.layouts import RECIPES
from driftgate.methods.look import Block

MAX_PAIRS_IN_ONE_TABLE = 2
"""With ± in every cell more columns than these for each of three shifts fit no page; then each shift has a table."""

RANK_DECIMALS = 1
"""Marks follow what is printed: equal when printed means equal in rank."""

Rows = Mapping[str, Sequence[Run]]
Scores = Mapping[int, float]
"""Seed -> score of one cell."""


@dataclass(frozen=True)
class Column:
    """A pair under a shift, the mean over the pairs of a shift, or the mean over all shifts."""

    shift: str | None
    source: str | None = None
    target: str | None = None

    @property
    def is_mean(self) -> bool:
        return self.source is None

    @property
    def label(self) -> str:
        return "Mean" if self.is_mean else pair_label(self.source or "", self.target or "")


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        summary: mean and spread over the seeds; None if nothing ran.
        missing: cells a mean lacks; such a mean is shown but neither ranked nor compared.
        rank: 1 for the best of its column, 2 for the second best, by ``common``.
        published: the paper's number.
        as_released: the mean as the paper's authors count it; None where a run does not tell.
        runs: how many runs it is made of.
        fewer: whether another cell of its column has more runs.
        common: the same over the seeds that all ranked cells of the column have; None if it is not ranked.
    """

    summary: Summary | None
    missing: int = 0
    rank: int | None = None
    published: float | None = None
    as_released: float | None = None
    runs: int = 0
    fewer: bool = False
    common: Summary | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.summary is None or self.published is None or self.missing:
            return None
        return self.summary.mean - self.published


@dataclass(frozen=True)
class Row:
    """A method (or a variant of a study) and its cells."""

    key: str
    name: str
    block: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ResultTable:
    """A table ready to be written in any format."""

    name: str
    title: str
    head: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The upper line of the header: each shift with its metric, and over how many columns it stands."""
        return [
            (column_group(shift), len(list(columns)))
            for shift, columns in groupby(self.columns, key=lambda column: column.shift)
        ]

    @property
    def has_published(self) -> bool:
        return any(cell.published is not None for row in self.rows for cell in row.cells)

    @property
    def is_uneven(self) -> bool:
        """Whether cells of a column have different numbers of runs."""
        return any(cell.fewer for row in self.rows for cell in row.cells)


def pair_label(source: str, target: str) -> str:
    """``clipart → real``; the mix of all other domains of a known data set is called so, another mix is spelled out."""
    domains = {source, *target.split("+")}
    is_rest = "+" in target and any(domains == set(recipe.domains) for recipe in RECIPES.values())
    return f"{source} → {'mix of others' if is_rest else target}"


def metric_of(shift: str) -> str:
    """The metric the paper reports for a shift, in words."""
    return METRIC_WORDS["accuracy" if shift == "PDA" else "h_score"]


def column_group(shift: str | None) -> str:
    """Name of a block of columns."""
    return "All shifts" if shift is None else f"{shift}, {metric_of(shift)}"


def method_name(method: str) -> str:
    """A method as it is printed."""
    return row_look(method).label


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by method in the order of the paper's tables.

    SHOT has a version for PDA and one for the rest. Where each ran only where it belongs they are one row, as in the
    paper.
    """
    shifts: dict[str, set[str]] = {}
    for run in runs:
        shifts.setdefault(run.method, set()).add(run.shift)
    joined = shifts.get("shot-p") == {"PDA"} and "PDA" not in shifts.get("shot-o", {"PDA"})
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(JOINED if joined and run.method in {"shot-o", "shot-p"} else run.method, []).append(run)
    return {method: found[method] for method in sorted(found, key=lambda name: (row_look(name).place, name))}


def suite_tables(suite: SuiteRuns) -> list[ResultTable]:
    """The main tables of a suite: one, or an overview and a table a shift where there are many pairs."""
    runs = suite.main
    if not runs:
        return []
    shifts, pairs = shifts_of(runs), pairs_of(runs)
    rows = by_method(runs)
    paper = published_suite(suite.name)

    def table(name: str, title: str, columns: Sequence[Column]) -> ResultTable:
        return build_table(name, title, "Method", rows, columns, name_of=method_name, paper=paper)

    if len(pairs) <= MAX_PAIRS_IN_ONE_TABLE:
        return [table(suite.name, suite.title, result_columns(shifts, pairs))]
    overview = [Column(shift) for shift in shifts] + ([Column(None)] if len(shifts) > 1 else [])
    return [
        table(f"{suite.name}-means", f"{suite.title}: means over {len(pairs)} pairs", overview),
        *(
            table(f"{suite.name}-{shift}", f"{suite.title}: {column_group(shift)}", result_columns([shift], pairs))
            for shift in shifts
        ),
    ]


def study_table(suite: SuiteRuns, study: str) -> ResultTable:
    """A study: variants down, shifts across (each the mean over its pairs)."""
    runs = suite.studies[study]
    shifts = shifts_of(runs)
    columns = [Column(shift) for shift in shifts] + ([Column(None)] if len(shifts) > 1 else [])
    return build_table(
        f"{suite.name}-{study}", f"{suite.title}: {study_title(study)}", "Variant", by_variant(runs), columns
    )


def study_title(study: str) -> str:
    """What a study varies, in words."""
    return STUDIES[study].title if study in STUDIES else study


def shifts_of(runs: Sequence[Run]) -> list[str]:
    """The shifts of some runs in the paper's order."""
    present = {run.shift for run in runs}
    return [shift for shift in SHIFTS if shift in present] + sorted(present - set(SHIFTS))


def pairs_of(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The pairs of some runs."""
    return sorted({run.pair for run in runs})


def by_variant(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by variant: by size where all are numbers, otherwise in the study's order."""
    several = len({run.method for run in runs}) > 1
    found: dict[str, list[Run]] = {}
    for run in runs:
        variant = run.variant or "default"
        found.setdefault(f"{run.method}: {variant}" if several else variant, []).append(run)
    sizes = {name: variant_number(name) for name in found}
    if all(size is not None for size in sizes.values()) and len({name.rpartition("=")[0] for name in found}) == 1:
        return {name: found[name] for name in sorted(found, key=lambda name: sizes[name] or 0.0)}
    known = [variant.name for study in {run.study for run in runs} for variant in _variants(study)]
    order = [name for name in known if name in found] + sorted(set(found) - set(known))
    return {name: found[name] for name in order}


def _variants(study: str | None) -> tuple[Variant, ...]:
    return STUDIES[study].variants if study in STUDIES else ()


def variant_number(variant: str) -> float | None:
    """``decay=0.99`` -> 0.99; None for anything else."""
    try:
        return float(variant.rpartition("=")[2])
    except ValueError:
        return None


def result_columns(shifts: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[Column]:
    """Each shift with its pairs and, where there are several, their mean; at the end the mean of all shifts."""
    columns: list[Column] = []
    for shift in shifts:
        columns += [Column(shift, source, target) for source, target in pairs]
        if len(pairs) > 1:
            columns.append(Column(shift))
    return columns + ([Column(None)] if len(shifts) > 1 else [])


def build_table(
    name: str,
    title: str,
    head: str,
    rows: Rows,
    columns: Sequence[Column],
    *,
    name_of: Callable[[str], str] = str,
    paper: PublishedSuite | None = None,
) -> ResultTable:
    """Fill the cells and mark the best two of every column; beside them the ``paper``'s numbers."""
    everything = [run for runs in rows.values() for run in runs]
    filled = []
    for column in columns:
        parts = _parts(column, everything)
        found = _column([[_scores(runs, part) for part in parts] for runs in rows.values()])
        if paper is not None:
            places = [(part.shift or "", part.source or "", part.target or "") for part in parts]
            found = [
                replace(cell, published=paper.average(key, places), as_released=_as_released(runs, parts))
                for cell, (key, runs) in zip(found, rows.items(), strict=True)
            ]
        filled.append(found)
    cells = zip(*filled, strict=True)
    return ResultTable(
        name,
        title,
        head,
        tuple(columns),
        tuple(Row(key, name_of(key), _block(key), row) for key, row in zip(rows, cells, strict=True)),
    )


def _parts(column: Column, runs: Sequence[Run]) -> list[Column]:
    """The pairs under a shift that a column stands for: itself, or all that a mean is taken over."""
    if not column.is_mean:
        return [column]
    shifts = shifts_of(runs) if column.shift is None else [column.shift]
    return [Column(shift, *pair) for shift in shifts for pair in pairs_of([run for run in runs if run.shift == shift])]


def _column(scores: Sequence[Sequence[Scores]]) -> list[Cell]:
    """The cells of a column: ``scores`` holds for each row the scores of every part of the column."""
    common = _common(scores)
    places = ranks([common.get(place) for place in range(len(scores))])
    runs = [sum(map(len, parts)) for parts in scores]
    most = max((count for count, parts in zip(runs, scores, strict=True) if all(parts)), default=0)
    cells = []
    for place, parts in enumerate(scores):
        present = [found for found in parts if found]
        missing = len(parts) - len(present) if present else 0
        cells.append(
            Cell(
                mean_summary(present) if present else None,
                missing=missing,
                rank=places[place],
                runs=runs[place],
                fewer=bool(present) and not missing and runs[place] < most,
                common=common.get(place),
            )
        )
    return cells


def _common(scores: Sequence[Sequence[Scores]]) -> dict[int, Summary]:
    """Row -> its mean over the seeds that all rows have, so that none is ranked by an easier seed; gaps are not ranked.

    Where no seed is common to all, the row with the fewest runs goes until one is.
    """
    rows = [place for place, parts in enumerate(scores) if parts and all(parts)]
    while rows:
        seeds = [
            set.intersection(*(set(part) for part in parts))
            for parts in zip(*(scores[row] for row in rows), strict=True)
        ]
        if all(seeds):
            return {
                row: mean_summary(
                    [
                        {seed: part[seed] for seed in sorted(shared)}
                        for part, shared in zip(scores[row], seeds, strict=True)
                    ]
                )
                for row in rows
            }
        rows.remove(min(rows, key=lambda row: (sum(map(len, scores[row])), -row)))
    return {}


def _scores(runs: Sequence[Run], part: Column, score: Callable[[Run], float | None] = lambda run: run.score) -> Scores:
    wanted = (part.shift, part.source, part.target)
    found = {run.seed: score(run) for run in runs if (run.shift, run.source, run.target) == wanted}
    return {seed: value for seed, value in found.items() if value is not None}


def _as_released(runs: Sequence[Run], parts: Sequence[Column]) -> float | None:
    """The mean of ``mean_summary``, of the scores as the authors count them; None where a run has a score but not this.

    A run whose own score had nothing to measure is left out here too.
    """
    theirs: list[Scores] = []
    for part in parts:
        ours, counted = _scores(runs, part), _scores(runs, part, lambda run: run.score_as_released)
        if not ours.keys() <= counted.keys():
            return None
        theirs += [{seed: counted[seed] for seed in ours}] if ours else []
    return mean_summary(theirs).mean if theirs else None


def mean_summary(cells: Sequence[Scores]) -> Summary:
    """Mean of the cells' means; its spread is that of the seeds' own means, over the seeds all cells have."""
    seeds = [seed for seed in cells[0] if all(seed in cell for cell in cells)]
    mean = sum(sum(cell.values()) / len(cell) for cell in cells) / len(cells)
    if not seeds:
        return Summary(0, mean, None, None, None)
    spread = summarise([sum(cell[seed] for cell in cells) / len(cells) for seed in seeds])
    if len(cells) == 1 or all(len(cell) == len(seeds) for cell in cells):
        return spread
    return Summary(spread.n, mean, spread.std, None, None)  # no interval around a mean of other runs


def ranks(means: Sequence[Summary | None]) -> list[int | None]:
    """1 for the best of a column, 2 for the second best; nobody leads alone."""
    values = [None if mean is None else round(mean.mean, RANK_DECIMALS) for mean in means]
    present = [value for value in values if value is not None]
    leading = sorted(set(present), reverse=True)[:2] if len(present) > 1 else []
    return [leading.index(value) + 1 if value in leading else None for value in values]


def _block(method: str) -> int:
    """Which of the paper's blocks of rows a method belongs to."""
    return get_args(Block).index(row_look(method).block)
