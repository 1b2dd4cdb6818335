"""Tables in the paper's layout: methods down, pairs and shifts across, means at the end. Scores are in per cent.

A table holds its numbers as a tidy frame, a line a cell, and beside it what people read; ``table_writers.py`` turns it
into CSV, Markdown and LaTeX, the report into HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from driftgate.lab.bench.names import JOINED, method_block, method_name, row_look
from driftgate.lab.bench.published import PublishedSuite, published_suite
from driftgate.lab.bench.results import SHIFTS, Results
from driftgate.lab.bench.statistics import Summary, summarise
from driftgate.lab.bench.studies import STUDIES
from driftgate.lab.data.layouts import RECIPES

MAX_PAIRS_IN_ONE_TABLE = 2
"""With ± in every cell more columns than these for each of three shifts fit no page; then each shift has a table."""

RANK_DECIMALS = 1
"""Ranks follow what is printed: equal when printed means equal in rank."""

EMPTY, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
UNEVEN = (
    "In square brackets: the number of runs, where another cell of the column has more. Such a column is ranked by the "
    "mean over the seeds that all its cells have."
)
Groups = Mapping[str, pd.DataFrame]
"""Name of a row -> its runs."""

Array = NDArray[np.float64]


class Column(NamedTuple):
    """A pair under a shift, the mean over the pairs of a shift (no source), or over all shifts (no shift)."""

    shift: str | None
    source: str | None = None
    target: str | None = None

    @property
    def label(self) -> str:
        return "Mean" if self.source is None else pair_label(self.source, self.target or "")


class Cell(NamedTuple):
    """What is printed, what it sorts by, its mark (``best``, ``second`` or none), and the line below."""

    text: str
    value: str
    mark: str
    below: str


@dataclass(frozen=True)
class Table:
    """A table ready to be written in any format.

    Attributes:
        name, title: for its file and its caption.
        data: what a program reads: a line a cell or a line a row, full precision.
        text: what people read; the index names the rows, columns may have two levels.
        value: what ``text`` sorts by; NaN where there is nothing.
        rank: of each cell in its column; 1 and 2 are marked. None where nothing is ranked.
        below: a second, smaller line of each cell, such as the paper's number. None where there is none.
        starts: places of the rows that begin a block.
        notes: what must be said below it for its cells to be understood.
        below_is: what the second line has.
    """

    name: str
    title: str
    data: pd.DataFrame
    text: pd.DataFrame
    value: pd.DataFrame
    rank: pd.DataFrame | None = None
    below: pd.DataFrame | None = None
    starts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    below_is: str = f"paper (ours {MINUS} paper)"

    def heads(self) -> list[tuple[str, str, bool]]:
        """Of each column the block it belongs to, its own head, and whether its values are numbers."""
        parts = [("", head) if isinstance(head, str) else head for head in self.text.columns]
        numbers = [pd.api.types.is_numeric_dtype(self.value.iloc[:, place]) for place in range(len(parts))]
        return [(group, label, is_number) for (group, label), is_number in zip(parts, numbers, strict=True)]

    def rows(self) -> Iterator[tuple[str, bool, list[Cell]]]:
        """Of each row its name, whether a block begins with it, and its cells."""
        words, nothing = {1.0: "best", 2.0: "second"}, pd.DataFrame(index=self.text.index, columns=self.text.columns)
        ranks = nothing if self.rank is None else self.rank
        below = nothing.fillna("") if self.below is None else self.below
        frames = (frame.to_numpy(dtype=object) for frame in (self.text, self.value, ranks, below))
        for place, (name, *lines) in enumerate(zip(self.text.index, *frames, strict=True)):
            found = [
                Cell(text, "" if pd.isna(value) else str(value), words.get(rank, ""), second)
                for text, value, rank, second in zip(*lines, strict=True)
            ]
            yield str(name), place in self.starts, found


def pair_label(source: str, target: str) -> str:
    """``clipart → real``; the mix of all other domains of a known data set is called so, another mix is spelled out."""
    domains = {source, *target.split("+")}
    is_rest = "+" in target and any(domains == set(recipe.domains) for recipe in RECIPES.values())
    return f"{source} → {'mix of others' if is_rest else target}"


def metric_of(shift: str) -> str:
    """The metric the paper reports for a shift, in words."""
    return "accuracy" if shift == "PDA" else "H-score"


def column_group(shift: str | None) -> str:
    """Name of a block of columns."""
    return "All shifts" if shift is None else f"{shift}, {metric_of(shift)}"


def number(value: float, decimals: int = 1) -> str:
    """A number as it is printed."""
    return EMPTY if value is None or math.isnan(value) else f"{value:.{decimals}f}"


def signed(value: float) -> str:
    """With its sign, a real minus."""
    if math.isnan(value):
        return EMPTY
    text = f"{value:+.1f}"
    return text.replace("-", MINUS) if float(text) != 0 else "±0.0"


def shifts_of(runs: pd.DataFrame) -> list[str]:
    """The shifts of some runs in the paper's order."""
    present = set(runs["shift"])
    return [shift for shift in SHIFTS if shift in present] + sorted(present - set(SHIFTS))


def pairs_of(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """The pairs of some runs."""
    return sorted(set(zip(runs.source, runs.target, strict=True)))


def by_method(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Runs by method in the order of the paper's tables; one of the user's own stands after those everybody knows.

    SHOT has a version for PDA and one for the rest. Where each ran only where it belongs they are one row, as in the
    paper.
    """
    shifts = {method: set(group) for method, group in runs.groupby("method")["shift"]}
    joined = shifts.get("shot-p") == {"PDA"} and "PDA" not in shifts.get("shot-o", {"PDA"})
    names = runs.method.replace({"shot-o": JOINED, "shot-p": JOINED}) if joined else runs.method
    order = sorted(set(names), key=lambda name: (row_look(name).place, name))
    return {name: runs[names == name] for name in order}


def by_variant(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Runs by variant: by size where all are numbers of one setting, otherwise in the study's order."""
    names = runs.variant.fillna("default")
    if runs.method.nunique() > 1:
        names = runs.method + ": " + names
    known = [variant.name for study in runs.study.unique() if study in STUDIES for variant in STUDIES[study].variants]
    found = sorted(dict.fromkeys(names), key=lambda name: (known.index(name) if name in known else len(known), name))
    if len({name.rpartition("=")[0] for name in found}) == 1 and not any(map(math.isnan, map(variant_number, found))):
        found.sort(key=variant_number)
    return {name: runs[names == name] for name in found}


def variant_number(variant: str) -> float:
    """``decay=0.99`` -> 0.99; NaN for anything else."""
    try:
        return float(variant.rpartition("=")[2])
    except ValueError:
        return math.nan


def result_columns(runs: pd.DataFrame, *, means_only: bool = False) -> list[Column]:
    """Each shift with its pairs and, where there are several, their mean; at the end the mean of all shifts."""
    shifts, pairs = shifts_of(runs), pairs_of(runs)
    columns: list[Column] = []
    for shift in shifts:
        columns += [] if means_only else [Column(shift, *pair) for pair in pairs]
        columns += [Column(shift)] if means_only or len(pairs) > 1 else []
    return columns + ([Column(None)] if len(shifts) > 1 else [])


def cells(rows: Groups, columns: Sequence[Column], paper: PublishedSuite | None = None) -> pd.DataFrame:
    """A line for each row and column: its mean over the seeds and their spread, its rank, what the paper has there."""
    everything = pd.concat(list(rows.values()))
    seeds = sorted(everything.seed.unique())
    found = []
    for place, column in enumerate(columns):
        parts = _parts(column, everything)
        asked = [(part.shift or "", part.source or "", part.target or "") for part in parts]
        for key, line in zip(rows, _column(score_cube(rows, parts, seeds)), strict=True):
            published = None if paper is None else paper.average(key, asked)
            found.append({**line, "row": key, "column": place, **column._asdict(), "published": published})
    frame = pd.DataFrame(found).astype({"published": float})
    frame["difference"] = (frame["mean"] - frame.published).where(frame.missing_cells == 0)
    return frame


def _parts(column: Column, runs: pd.DataFrame) -> list[Column]:
    """The pairs under a shift that a column stands for: itself, or all that a mean is taken over."""
    if column.source is not None:
        return [column]
    shifts = shifts_of(runs) if column.shift is None else [column.shift]
    return [Column(shift, *pair) for shift in shifts for pair in pairs_of(runs[runs["shift"] == shift])]


def score_cube(rows: Groups, parts: Sequence[Column], seeds: Sequence[int]) -> Array:
    """(rows, parts, seeds) of scores; NaN where there is no run or nothing was measured."""
    cube = np.full((len(rows), len(parts), len(seeds)), math.nan)
    places = {tuple(part): place for place, part in enumerate(parts)}
    for row, runs in enumerate(rows.values()):
        for shift, source, target, seed, score in runs[["shift", "source", "target", "seed", "score"]].itertuples(
            False
        ):
            if (shift, source, target) in places:
                cube[row, places[shift, source, target], seeds.index(seed)] = score
    return cube


def _column(cube: Array) -> list[dict[str, Any]]:
    """The numbers of a column of cells out of (rows, parts, seeds)."""
    there = np.isfinite(cube)
    runs = there.sum(axis=(1, 2))
    full = np.all(there.any(axis=2), axis=1)
    common = common_means(cube)
    ranks = rank(pd.Series([common.get(row, Summary(0, math.nan)).mean for row in range(len(cube))]))
    found = []
    for row, scores in enumerate(cube):
        present = scores[there[row].any(axis=1)]
        summary = mean_summary(present) if len(present) else Summary(0, math.nan)
        found.append(
            {
                **{"n": summary.n, "runs": int(runs[row]), "mean": summary.mean, "std": summary.std},
                **{"low_95": summary.low, "high_95": summary.high},
                "mean_on_common_seeds": common[row].mean if row in common else math.nan,
                "rank": ranks[row],
                "missing_cells": len(scores) - len(present) if len(present) else 0,
                "fewer": bool(full[row] and runs[row] < runs[full].max()),
            }
        )
    return found


def mean_summary(scores: Array) -> Summary:
    """Mean of the cells' means out of (parts, seeds); its spread is that of the seeds' own means, over common seeds."""
    there = np.isfinite(scores)
    shared = there.all(axis=0)
    mean = float(np.mean([part[found].mean() for part, found in zip(scores, there, strict=True)]))
    if not shared.any():
        return Summary(0, mean)
    spread = summarise(scores[:, shared].mean(axis=0))
    if len(scores) == 1 or there.sum() == shared.sum() * len(scores):
        return spread
    return Summary(spread.n, mean, spread.std)  # no interval around a mean of other runs


def common_means(cube: Array) -> dict[int, Summary]:
    """Row -> its mean over the seeds that all rows have, so that none is ranked by an easier seed; gaps are not ranked.

    Where no seed is common to all, the row with the fewest runs goes until one is.
    """
    there = np.isfinite(cube)
    rows = [row for row in range(len(cube)) if cube.shape[1] and there[row].any(axis=1).all()]
    while rows:
        shared = there[rows].all(axis=0)
        if np.any(shared, axis=1).all():
            return {row: mean_summary(np.where(shared, cube[row], math.nan)) for row in rows}
        rows.remove(min(rows, key=lambda row: (there[row].sum(), -row)))
    return {}


def rank(means: pd.Series[float]) -> pd.Series[float]:
    """1 for the best, equal ones share the better rank; NaN where there is nothing, and where nobody else is."""
    ranks = means.round(RANK_DECIMALS).rank(method="min", ascending=False)
    return ranks if means.notna().sum() > 1 else ranks * math.nan


def marks(ranks: pd.Series[float]) -> pd.Series[float]:
    """1 for the best of a column and 2 for the next value, however many share the first place."""
    return ranks.rank(method="dense")


def heads(columns: Sequence[Column]) -> pd.Index:
    """Shifts, or the pairs of one shift, in one line; otherwise the pairs below their shifts."""
    shifts = [column.shift for column in columns]
    if len(set(shifts)) == len(shifts):
        return pd.Index(["Mean" if shift is None else column_group(shift) for shift in shifts])
    if len(set(shifts)) == 1:
        return pd.Index([column.label for column in columns])
    return pd.MultiIndex.from_tuples([(column_group(column.shift), column.label) for column in columns])


def build_table(
    name: str,
    title: str,
    head: str,
    rows: Groups,
    columns: Sequence[Column],
    *,
    name_of: Callable[[str], str] = str,
    paper: PublishedSuite | None = None,
) -> Table:
    """Fill the cells and rank every column; beside them the ``paper``'s numbers."""
    lines = cells(rows, columns, paper)

    def spread_out(values: pd.Series) -> pd.DataFrame:
        """A row a method, a column a column."""
        wide = lines.assign(shown=values).pivot(index="row", columns="column", values="shown").loc[list(rows)]
        wide.index = pd.Index([name_of(key) for key in rows], name=head)
        wide.columns = heads(columns)
        return wide

    below = lines.apply(_published_text, axis=1)
    blocks = [method_block(key) for key in rows]
    return Table(
        name,
        title,
        lines.drop(columns=["column", "fewer"]).assign(
            table=name,
            shift=lines["shift"].fillna("all"),
            source=lines.source.fillna("mean"),
            target=lines.target.fillna("mean"),
        )[CSV_COLUMNS][lines["mean"].notna() | lines.published.notna()],
        spread_out(lines.apply(_cell_text, axis=1)),
        spread_out(lines["mean"]),
        spread_out(lines.groupby("column")["rank"].transform(marks)),
        spread_out(below) if lines.published.notna().any() else None,
        tuple(place for place in range(1, len(blocks)) if blocks[place] != blocks[place - 1]),
        (UNEVEN,) * bool(lines.fewer.any()),
    )


CSV_COLUMNS = [
    *("table", "row", "shift", "source", "target", "n", "runs", "mean", "std", "low_95", "high_95"),
    *("mean_on_common_seeds", "rank", "missing_cells", "published", "difference"),
]


def _cell_text(cell: pd.Series) -> str:
    """``52.3 ± 1.1``; in brackets where the mean lacks cells, with the number of runs where others have more."""
    if math.isnan(cell["mean"]):
        return EMPTY
    spread = "" if math.isnan(cell["std"]) else f" ± {cell['std']:.1f}"
    runs = f" [{cell.runs} run{'' if cell.runs == 1 else 's'}]" if cell.fewer else ""
    text = f"{cell['mean']:.1f}{spread}{runs}"
    return f"({text})" if cell.missing_cells else text


def _published_text(cell: pd.Series) -> str:
    """``60.3 (−8.0)``: the paper's number, and ours minus it."""
    if math.isnan(cell.published):
        return ""
    return number(cell.published) + ("" if math.isnan(cell.difference) else f" ({signed(cell.difference)})")


def suite_tables(suite: Results) -> list[Table]:
    """The main tables of a suite: one, or an overview and a table a shift where there are many pairs."""
    runs = suite.main
    if runs.empty:
        return []
    rows, paper, pairs = by_method(runs), published_suite(suite.name), len(pairs_of(runs))

    def table(part: str, words: str, columns: Sequence[Column]) -> Table:
        name, title = "-".join(filter(None, (suite.name, part))), ": ".join(filter(None, (suite.title, words)))
        return build_table(name, title, "Method", rows, columns, name_of=method_name, paper=paper)

    if pairs <= MAX_PAIRS_IN_ONE_TABLE:
        return [table("", "", result_columns(runs))]
    tables = [table("means", f"means over {pairs} pairs", result_columns(runs, means_only=True))]
    for shift in shifts_of(runs):
        tables.append(table(shift, column_group(shift), result_columns(runs[runs["shift"] == shift])))
    return tables


def study_table(suite: Results, study: str) -> Table:
    """A study: variants down, shifts across (each the mean over its pairs)."""
    runs = suite.studies[study]
    name, title = f"{suite.name}-{study}", f"{suite.title}: {study_title(study)}"
    return build_table(name, title, "Variant", by_variant(runs), result_columns(runs, means_only=True))


def study_title(study: str) -> str:
    """What a study varies, in words."""
    return STUDIES[study].title if study in STUDIES else study
