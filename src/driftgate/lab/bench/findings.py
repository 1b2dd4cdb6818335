"""What a table says in words: who leads, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from driftgate.lab.bench.playing import playing_words
from driftgate.lab.bench.published import published_suite
from driftgate.lab.bench.runs import Run, SuiteRuns
from driftgate.lab.bench.statistics import Comparison, Summary, compare, holm
from driftgate.lab.bench.table_writers import signed
from driftgate.lab.bench.tables import (
    RANK_DECIMALS,
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
PAPER_SIZE = (224, 224)
"""Height and width of the paper's pictures, in every suite."""

SURE = 0.05
"""A p-value above this is no evidence."""

Units = dict[Hashable, float]


@dataclass(frozen=True)
class Standing:
    """A method and its mean over all cells.

    Attributes:
        method: its name.
        score: over the seeds that all ranked methods have; over its own where it is not ranked.
        missing: cells that are not there.
        ranked: whether it can be compared with the others: no cell is missing, and some seed is common to all.
    """

    method: str
    score: Summary
    missing: int
    ranked: bool

    @property
    def printed(self) -> float:
        """Equal when printed means equal in rank."""
        return round(self.score.mean, RANK_DECIMALS)


@dataclass(frozen=True)
class ComparisonRow:
    """The reference against one other method.

    Attributes:
        method: the other.
        comparison: over the units of both.
        t_p_adjusted: Holm's over all rows of the list.
        averaged: whether units are means over seeds.
    """

    method: str
    comparison: Comparison
    t_p_adjusted: float | None
    averaged: bool


def standings(runs: Sequence[Run]) -> list[Standing]:
    """Methods by their mean over all pairs and shifts; those that cannot be ranked stand last."""
    table = build_table("", "", "", by_method(runs), [Column(None)])
    cells = [(row.key, row.cells[0]) for row in table.rows]
    found = [
        Standing(key, cell.common or cell.summary, cell.missing, cell.common is not None)
        for key, cell in cells
        if cell.summary is not None
    ]
    return sorted(found, key=lambda standing: (not standing.ranked, standing.missing, -standing.score.mean))


def is_source_free(method: str) -> bool:
    """Whether a method needs nothing of the source data but the model."""
    name = "shot-o" if method == "shot-o/p" else method
    return get_method(name).source_free if name in available() else True


def is_free_and_universal(method: str) -> bool:
    """Source-free, and not told which shift it meets."""
    name = "shot-o" if method == "shot-o/p" else method
    return get_method(name).source_free and get_method(name).universal if name in available() else True


def units(first: Sequence[Run], second: Sequence[Run]) -> tuple[Units, Units]:
    """The scores of two methods over the independent units that both have run.

    Runs are paired by shift, pair and seed. Seeds that share a source model are not independent, so they are averaged:
    a unit is a shift, a pair and a source model (or a seed, where the record names no model).
    """
    theirs = {run.unit: run.score for run in second if run.score is not None}
    scores: dict[Hashable, list[tuple[float, float]]] = {}
    for run in first:
        other = theirs.get(run.unit)
        if run.score is not None and other is not None:
            unit = (run.shift, *run.pair, run.model_digits or run.seed)
            scores.setdefault(unit, []).append((run.score, other))
    means = {unit: [sum(column) / len(found) for column in zip(*found, strict=True)] for unit, found in scores.items()}
    return {unit: mean[0] for unit, mean in means.items()}, {unit: mean[1] for unit, mean in means.items()}


def seeds_share_a_model(runs: Sequence[Run]) -> bool:
    """Whether runs with different seeds started from the same source model."""
    seeds: dict[tuple[str, ...], set[int]] = {}
    for run in runs:
        if run.model_digits:
            seeds.setdefault((run.shift, *run.pair, run.model_digits), set()).add(run.seed)
    return any(len(found) > 1 for found in seeds.values())


def comparisons(runs: Sequence[Run], reference: str) -> list[ComparisonRow]:
    """The reference against every other method, over the units both have."""
    groups = by_method(runs)
    mine, averaged = groups[reference], seeds_share_a_model(runs)
    found = [(method, compare(*units(mine, group))) for method, group in groups.items() if method != reference]
    given = [(method, comparison) for method, comparison in found if comparison is not None]
    adjusted = holm([comparison.t_p for _, comparison in given])
    return [
        ComparisonRow(method, comparison, value, averaged)
        for (method, comparison), value in zip(given, adjusted, strict=True)
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
    ranked = [standing for standing in order if standing.ranked]
    left = ", ".join(method_name(standing.method) for standing in order if not standing.ranked)
    not_ranked = [f"Not ranked, because cells or common seeds are missing: {left}."] if left else []
    if not ranked:
        return ["Every method still lacks cells of the table, so none can be ranked.", *not_ranked]
    first, scope = ranked[0], _scope(runs, ranked[0])
    name = method_name(first.method)
    if len(ranked) == 1:
        alone = "no other method can be ranked" if left else "there is no other method to compare it with"
        return [f"{name} reaches {first.score.mean:.1f} % {scope}; {alone}.", *not_ranked]
    leaders = _leaders(ranked)
    names = _listed([method_name(leader.method) for leader in leaders])
    prefix = "Of the methods that can be ranked " if left else ""
    result = f"with {first.score.mean:.1f} % {scope}."
    if len(leaders) == len(ranked):
        return [f"{prefix}{names} are equal {result}", *not_ranked]
    text = [f"{prefix}{names} {'leads' if len(leaders) == 1 else 'lead together'} {result}"]
    second = ranked[len(leaders)]
    row = _row(runs, first.method, second.method)
    if row is not None:
        text.append(
            f"Next is {method_name(second.method)} with {second.score.mean:.1f} %: {difference_words(row, name)}"
        )
    text += not_ranked
    free = next((standing for standing in ranked if is_free_and_universal(standing.method)), None)
    if free is not None and free not in leaders:
        uses = "uses source statistics or is" if len(leaders) == 1 else "use source statistics or are"
        text.append(
            f"{names} {uses} told the shift; of the methods that do neither, "
            f"{method_name(free.method)} leads with {free.score.mean:.1f} %."
        )
    return text


def _own_method(runs: Sequence[Run], order: Sequence[Standing]) -> list[str]:
    """The leader against doing nothing; the project's own method against the leader."""
    ranked = {standing.method: standing for standing in order if standing.ranked}
    if len(ranked) < 2:
        return []
    leaders = [leader.method for leader in _leaders(list(ranked.values()))]
    text = []
    # Where the source model comes next, its difference has been told.
    if "source-only" in ranked and "source-only" not in [*leaders, list(ranked)[len(leaders) % len(ranked)]]:
        row = _row(runs, leaders[0], "source-only")
        if row is not None:
            text.append(f"Against the source model without adaptation: {difference_words(row)}")
    if OWN_METHOD in ranked and OWN_METHOD not in leaders:
        row, own = _row(runs, OWN_METHOD, leaders[0]), ranked[OWN_METHOD]
        place = 1 + sum(standing.printed > own.printed for standing in ranked.values())
        if row is not None:
            text.append(
                f"{method_name(OWN_METHOD)} is number {place} of {len(ranked)} "
                f"with {own.score.mean:.1f} %; against {method_name(leaders[0])}: {difference_words(row)}"
            )
    return text


def _leaders(ranked: Sequence[Standing]) -> list[Standing]:
    """The best, and all that are equal to it when printed."""
    return [standing for standing in ranked if standing.printed == ranked[0].printed]


def _listed(names: Sequence[str]) -> str:
    """``GMM, GLC and LEAD``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _row(runs: Sequence[Run], reference: str, other: str) -> ComparisonRow | None:
    """A row of the table of comparisons, so that words and table say the same."""
    return next((row for row in comparisons(runs, reference) if row.method == other), None)


def _shift_leaders(runs: Sequence[Run]) -> list[str]:
    shifts = shifts_of(runs)
    if len(shifts) < 2:
        return []
    parts = []
    for shift in shifts:
        ranked = [item for item in standings([run for run in runs if run.shift == shift]) if item.ranked]
        leaders = _leaders(ranked)
        names = _listed([method_name(item.method) for item in leaders])
        best = [f"{names} {leaders[0].score.mean:.1f} %"] if leaders else []
        best += [f"{method_name(item.method)} {item.score.mean:.1f} %" for item in ranked[len(leaders) : 2]]
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
    sizes = {tuple(run.record.get("model", {}).get("input_size") or PAPER_SIZE) for run in suite.main}
    if sizes != {PAPER_SIZE}:
        told = ", ".join(" x ".join(map(str, size)) for size in sorted(sizes))
        notes.append(f"The paper's pictures have {' x '.join(map(str, PAPER_SIZE))} pixels, these {told}.")
    if any(run.limit is not None for run in suite.main):
        notes.append("These runs saw only the beginning of each stream.")
    played = dict.fromkeys(word for run in suite.main for word in playing_words(run.protocol))
    if played:
        notes.append(f"These streams were played otherwise than the paper's: {', '.join(played)}.")
    seeds = len({run.seed for run in suite.main})
    if seeds != 6:
        notes.append(f"The paper averages six runs, this table {_count(seeds, 'seed')}.")
    return notes


def _plain(name: str) -> str:
    words = "".join(letter for letter in name.lower() if letter.isalnum())
    return "vitb16" if words.startswith(("vitb16", "timmvitbasepatch16")) else words


def _columns_and_cells(table: ResultTable) -> list[tuple[Column, Cell]]:
    return [pair for row in table.rows for pair in zip(table.columns, row.cells, strict=True)]


def _scope(runs: Sequence[Run], first: Standing) -> str:
    """Over what a mean is; ``first`` is ranked, so its seeds are those of all."""
    shifts, pairs, seeds = shifts_of(runs), pairs_of(runs), {run.seed for run in runs}
    over = f"on average over {len(shifts)} shifts" if len(shifts) > 1 else f"under {shifts[0]}"
    shared = first.score.n < len(seeds)
    words = (
        "the seeds that all have" if first.score.n == 0 else _count(first.score.n, "seed") + (" that all have" * shared)
    )
    return f"{over} ({_count(len(pairs), 'pair')}, {words})"


def difference_words(row: ComparisonRow, subject: str = "") -> str:
    """``2.0 points higher over 9 paired runs (95 % interval +1.1 to +2.9, ...``"""
    difference = row.comparison.difference
    several, one = ("paired means over seeds", "pair and shift") if row.averaged else ("paired runs", "run")
    if row.comparison.ties == difference.n:
        return f"{f'{subject} is ' if subject else ''}equal in {_count(difference.n, one)}."
    size = f"{abs(difference.mean):.1f} points {'higher' if difference.mean >= 0 else 'lower'}"
    start = f"{subject} is {size}" if subject else size
    if difference.low is None or difference.high is None:
        return f"{start} in the one {one} both have, which says nothing about chance."
    facts = [f"95 % interval {signed(difference.low)} to {signed(difference.high)}"]
    if row.t_p_adjusted is not None:
        facts.append(f"paired t-test with Holm's correction {p_words(row.t_p_adjusted)}")
    doubt = ""
    if difference.low <= 0 <= difference.high:
        doubt = " The interval holds 0: the two cannot be told apart."
    elif row.t_p_adjusted is not None and row.t_p_adjusted > SURE:
        doubt = " Among so many comparisons that may be chance."
    return f"{start} over {difference.n} {several} ({', '.join(facts)}).{doubt}"


def p_words(value: float) -> str:
    """``p = 0.012`` or ``p < 0.001``."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
