"""What a table says in words: who leads, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftgate.bench.published import published_suite
from driftgate.bench.runs import Run, SuiteRuns
from driftgate.bench.statistics import Comparison, Summary, compare, holm
from driftgate.bench.table_writers import signed
from driftgate.bench.tables import (
    Cell,
    Column,
    ResultTable,
    build_table,
    by_method,
    method_name,
    metric_of,
    pairs_of,
    shifts_of,
    suite_tables,
)
from driftgate.methods import available, get_method

OWN_METHOD = "gmm"


@dataclass(frozen=True)
class Standing:
    """A method and its mean over all cells; ``missing`` counts those that are not there."""

    method: str
    score: Summary
    missing: int


@dataclass(frozen=True)
class ComparisonRow:
    """The reference against one other method; ``t_p_adjusted`` is Holm's over all rows of the list."""

    method: str
    comparison: Comparison
    t_p_adjusted: float | None


def standings(runs: Sequence[Run]) -> list[Standing]:
    """Methods by their mean over all pairs and shifts; those that lack cells stand last."""
    table = build_table("", "", "", by_method(runs), [Column(None)])
    found = [
        Standing(row.key, row.cells[0].summary, row.cells[0].missing)
        for row in table.rows
        if row.cells[0].summary is not None
    ]
    return sorted(found, key=lambda standing: (standing.missing, -standing.score.mean))


def is_source_free(method: str) -> bool:
    """Whether a method needs nothing of the source data but the model."""
    name = "shot-o" if method == "shot-o/p" else method
    return get_method(name).source_free if name in available() else True


def is_free_and_universal(method: str) -> bool:
    """Source-free, and not told which shift it meets."""
    name = "shot-o" if method == "shot-o/p" else method
    return get_method(name).source_free and get_method(name).universal if name in available() else True


def units_of(runs: Sequence[Run]) -> dict[Any, float]:
    """(shift, source, target, seed) -> score."""
    return {run.unit: run.score for run in runs if run.score is not None}


def comparisons(runs: Sequence[Run], reference: str) -> list[ComparisonRow]:
    """The reference against every other method, over the units both have."""
    groups = by_method(runs)
    mine = units_of(groups[reference])
    found = [(method, compare(mine, units_of(group))) for method, group in groups.items() if method != reference]
    given = [(method, comparison) for method, comparison in found if comparison is not None]
    adjusted = holm([comparison.t_p for _, comparison in given])
    return [
        ComparisonRow(method, comparison, value) for (method, comparison), value in zip(given, adjusted, strict=True)
    ]


def sentences(suite: SuiteRuns) -> list[str]:
    """The summary of a suite, most important first."""
    runs = suite.main
    order = standings(runs)
    if not order:
        return ["No run of the main table has a score yet."]
    return [
        *_who_leads(runs, order),
        *_own_method(runs, order),
        *_shift_leaders(runs),
        *_against_paper(suite),
    ]


def _who_leads(runs: Sequence[Run], order: Sequence[Standing]) -> list[str]:
    first, scope = order[0], _scope(runs)
    name = method_name(first.method)
    gap = f", with {_count(first.missing, 'cell')} of the table still missing" if first.missing else ""
    if len(order) == 1:
        return [f"{name} reaches {first.score.mean:.1f} % {scope}{gap}; there is no other method to compare it with."]
    second = order[1]
    ragged = any(standing.missing for standing in order) and not first.missing
    text = [
        f"{'Of the methods with no gap in the table ' if ragged else ''}{name} leads "
        f"with {first.score.mean:.1f} % {scope}{gap}."
    ]
    comparison = compare(_units(runs, first.method), _units(runs, second.method))
    if comparison is not None:
        text.append(
            f"Next is {method_name(second.method)} with {second.score.mean:.1f} %: {difference_words(comparison, name)}"
        )
    if any(standing.missing for standing in order):
        missing = ", ".join(method_name(standing.method) for standing in order if standing.missing)
        text.append(f"Not ranked, because cells are missing: {missing}.")
    if not is_free_and_universal(first.method):
        free = next((standing for standing in order if is_free_and_universal(standing.method)), None)
        if free is not None:
            text.append(
                f"{name} uses source statistics or is told the shift; of the methods that do neither, "
                f"{method_name(free.method)} leads with {free.score.mean:.1f} %."
            )
    return text


def _own_method(runs: Sequence[Run], order: Sequence[Standing]) -> list[str]:
    """The leader against doing nothing; the project's own method against the leader."""
    names = [standing.method for standing in order]
    text = []
    if "source-only" in names and names[0] != "source-only":
        comparison = compare(_units(runs, names[0]), _units(runs, "source-only"))
        if comparison is not None:
            text.append(f"Against the source model without adaptation: {difference_words(comparison)}")
    if OWN_METHOD in names and names[0] != OWN_METHOD and not order[names.index(OWN_METHOD)].missing:
        comparison = compare(_units(runs, OWN_METHOD), _units(runs, names[0]))
        if comparison is not None:
            place = names.index(OWN_METHOD)
            text.append(
                f"{method_name(OWN_METHOD)} is number {place + 1} of {len(names)} "
                f"with {order[place].score.mean:.1f} %; against {method_name(names[0])}: {difference_words(comparison)}"
            )
    return text


def _shift_leaders(runs: Sequence[Run]) -> list[str]:
    shifts = shifts_of(runs)
    if len(shifts) < 2:
        return []
    parts = []
    for shift in shifts:
        order = standings([run for run in runs if run.shift == shift])
        best = [f"{method_name(item.method)} {item.score.mean:.1f} %" for item in order[:2] if not item.missing]
        if best:
            parts.append(f"{shift} ({metric_of(shift)}): {', then '.join(best)}")
    return [f"{'; '.join(parts)}."] if parts else []


def _against_paper(suite: SuiteRuns) -> list[str]:
    cells = [
        cell.difference
        for table in suite_tables(suite)
        for column, cell in _columns_and_cells(table)
        if not column.is_mean and cell.difference is not None
    ]
    if not cells:
        return []
    mean, size = sum(cells) / len(cells), sum(map(abs, cells)) / len(cells)
    return [
        f"Against the paper's numbers in {_count(len(cells), 'cell')}: {signed(mean)} points on average, "
        f"{size:.1f} points apart in size. {' '.join(protocol_notes(suite))}".strip()
    ]


def protocol_notes(suite: SuiteRuns) -> list[str]:
    """Why these runs may not be comparable with the paper's."""
    paper = published_suite(suite.name)
    if paper is None or not suite.main:
        return []
    notes = []
    backbones = {str(run.record.get("model", {}).get("backbone")) for run in suite.main}
    if {_plain(name) for name in backbones} - {_plain(paper.backbone), f"timm{_plain(paper.backbone)}"}:
        notes.append(f"The paper used {paper.backbone}, these runs {', '.join(sorted(backbones))}.")
    limits = {run.number("protocol", "limit_batches") or run.number("protocol", "limit") for run in suite.main} - {None}
    if limits:
        notes.append("These runs saw only the beginning of each stream.")
    seeds = len({run.seed for run in suite.main})
    if seeds != 6:
        notes.append(f"The paper averages six runs, this table {_count(seeds, 'seed')}.")
    return notes


def _plain(name: str) -> str:
    words = "".join(letter for letter in name.lower() if letter.isalnum())
    return "vitb16" if words.startswith(("vitb16", "timmvitbasepatch16")) else words


def _columns_and_cells(table: ResultTable) -> list[tuple[Column, Cell]]:
    return [pair for row in table.rows for pair in zip(table.columns, row.cells, strict=True)]


def _units(runs: Sequence[Run], method: str) -> Mapping[Any, float]:
    return units_of(by_method(runs)[method])


def _scope(runs: Sequence[Run]) -> str:
    shifts, pairs, seeds = shifts_of(runs), pairs_of(runs), {run.seed for run in runs}
    over = f"on average over {len(shifts)} shifts" if len(shifts) > 1 else f"under {shifts[0]}"
    return f"{over} ({_count(len(pairs), 'pair')}, {_count(len(seeds), 'seed')})"


def difference_words(comparison: Comparison, subject: str = "") -> str:
    """``2.0 points higher over 9 paired runs, 95 % interval 1.1 to 2.9, ...``"""
    difference, n = comparison.difference, comparison.difference.n
    size = f"{abs(difference.mean):.1f} points {'higher' if difference.mean >= 0 else 'lower'}"
    start = f"{subject} is {size}" if subject else size
    if difference.low is None or difference.high is None:
        return f"{start} in the one run both have, which says nothing about chance."
    interval = f"95 % interval {signed(difference.low)} to {signed(difference.high)}"
    tests = [
        f"{name} {p_words(value)}"
        for name, value in (("paired t-test", comparison.t_p), ("Wilcoxon", comparison.wilcoxon_p))
        if value is not None
    ]
    doubt = " The interval holds 0: the two cannot be told apart." if difference.low <= 0 <= difference.high else ""
    return f"{start} over {n} paired runs ({', '.join([interval, *tests])}).{doubt}"


def p_words(value: float) -> str:
    """``p = 0.012`` or ``p < 0.001``."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
