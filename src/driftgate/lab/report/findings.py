"""What the runs of a suite say in words: who leads, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from driftgate.lab.bench import tables
from driftgate.lab.bench.names import JOINED, OWN_METHOD, method_name
from driftgate.lab.bench.parts import playing_words
from driftgate.lab.bench.published import published_suite
from driftgate.lab.bench.results import Results
from driftgate.lab.bench.statistics import Summary, compare, holm
from driftgate.methods import available

PAPER_SIZE = "224x224"
"""Height and width of the paper's pictures, in every suite."""

PART = ["shift", "source", "target"]
SURE = 0.05
"""A p-value above this is no evidence."""


def common_ground(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs in the cells (pairs under shifts) over which methods are compared: where most of the table is.

    A method is compared where it has all these cells. They are the cells of some method, such that methods times
    cells is largest: a few methods that ran everywhere do not keep out the many that ran under one shift.
    """
    scored = runs[runs.score.notna()]
    owned = {method: frozenset(_parts(group)) for method, group in tables.by_method(scored).items()}

    def reach(cells: frozenset[tuple[str, ...]]) -> tuple[int, int, list[tuple[str, ...]]]:
        having = sum(cells <= own for own in owned.values())
        return len(cells) * having, having, sorted(cells)

    best = max(owned.values(), key=reach, default=frozenset())
    return scored[np.array([part in best for part in _parts(scored)], dtype=bool)]


def standings(runs: pd.DataFrame) -> pd.DataFrame:
    """Methods by their mean over the common ground, best first; those that cannot be ranked stand last.

    Columns: mean, std, low, high, n (over the seeds that all ranked methods have; over its own where it is not
    ranked), missing (cells), ranked, rank.
    """
    scored = common_ground(runs)
    rows, parts = tables.by_method(scored), [tables.Column(*part) for part in sorted(set(_parts(scored)))]
    cube = tables.score_cube(rows, parts, sorted(scored.seed.unique()))
    common, lines = tables.common_means(cube), {}
    for place, (method, scores) in enumerate(zip(rows, cube, strict=True)):
        present = scores[np.isfinite(scores).any(axis=1)]
        found = common.get(place) or tables.mean_summary(present)
        lines[method] = {**found._asdict(), "missing": len(scores) - len(present), "ranked": place in common}
    for method, group in tables.by_method(runs[runs.score.notna()]).items():
        if method not in lines:
            lines[method] = {"n": 0, "mean": group.score.mean(), "missing": len(parts), "ranked": False}
    heads = [*Summary._fields, "missing", "ranked"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=heads).astype({"ranked": bool, "mean": float})
    table["rank"] = tables.rank(table["mean"].where(table.ranked))
    return table.sort_values(["ranked", "missing", "mean"], ascending=[False, True, False], kind="stable")


def _parts(runs: pd.DataFrame) -> list[tuple[str, str, str]]:
    return list(zip(*(runs[name] for name in PART), strict=True))


def is_source_free(method: str, *, universal: bool = False) -> bool:
    """Whether a method needs nothing of the source data but the model, and, if asked, is not told the shift either."""
    found = available().get("shot-o" if method == JOINED else method)
    return found is None or (found.source_free and (found.universal or not universal))


def seeds_share_a_model(runs: pd.DataFrame) -> bool:
    """Whether runs with different seeds started from the same source model."""
    known = runs[runs.model != ""]
    return bool((known.groupby([*PART, "model"]).seed.nunique() > 1).any())


def comparisons(runs: pd.DataFrame, reference: str) -> pd.DataFrame:
    """The reference against every other method, over the independent units that both have run.

    Runs are paired by shift, pair and seed. Seeds that share a source model are not independent, so they are averaged:
    a unit is a shift, a pair and a source model (or a seed, where the record names no model). Units of a single source
    model say nothing about another, so they have no p-value.
    """
    groups = tables.by_method(runs[runs.score.notna()])
    found = {}
    for method, group in groups.items():
        both = groups[reference].merge(group, on=[*PART, "seed"], suffixes=("", "_other"))
        unit = both.model.where(both.model != "", both.seed.astype(str)).rename("unit")
        means = both.groupby([*PART, unit], sort=False)[["score", "score_other"]].mean()
        result = compare(means.score, means.score_other) if method != reference else None
        if result is None:
            continue
        difference, one_model = result.difference, set(both.model) != {""} and both.model.nunique() == 1
        found[method] = {
            **{"difference": difference.mean, "low_95": difference.low, "high_95": difference.high, "n": difference.n},
            **{"wins": result.wins, "ties": result.ties},
            "t_p": math.nan if one_model else result.t_p,
            "t_p_holm": math.nan,
            "wilcoxon_p": math.nan if one_model else result.wilcoxon_p,
        }
    table = pd.DataFrame.from_dict(found, orient="index")
    if len(table):
        table["t_p_holm"] = holm(table.t_p.tolist())
    return table


def sentences(suite: Results) -> list[str]:
    """The summary of a suite, most important first."""
    runs = suite.main
    table = standings(runs)
    if table.empty:
        return ["No run of the main table has a score yet."]
    return [*_who_leads(runs, table), *_own_method(runs, table), *_shift_leaders(runs), *_against_paper(suite)]


def _who_leads(runs: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    ranked = table[table.ranked]
    left = listed([method_name(method) for method in table.index if method not in ranked.index])
    not_ranked = [f"Not ranked, because cells or common seeds are missing: {left}."] if left else []
    first = ranked.index[0]
    scope = _scope(runs, ranked)
    result = f"{ranked['mean'].iloc[0]:.1f} % {scope}"
    if len(ranked) == 1:
        alone = "no other method has the same cells" if left else "there is no other method to compare it with"
        return [f"{method_name(first)} reaches {result}; {alone}.", *not_ranked]
    leaders = leaders_of(ranked)
    names = listed([method_name(leader) for leader in leaders])
    if len(leaders) == len(ranked):
        return [f"{names} are equal with {result}.", *not_ranked]
    text = [f"{names} {'leads' if len(leaders) == 1 else 'lead together'} with {result}."]
    second = ranked.index[len(leaders)]
    words = difference_words(runs, first, second)
    text += [f"Next is {method_name(second)} with {ranked['mean'][second]:.1f} %: {words}"] if words else []
    text += not_ranked
    free = next((method for method in ranked.index if is_source_free(method, universal=True)), None)
    if free is not None and free not in leaders:
        uses = "uses source statistics or is" if len(leaders) == 1 else "use source statistics or are"
        text.append(
            f"{names} {uses} told the shift; of the methods that do neither, "
            f"{method_name(free)} leads with {ranked['mean'][free]:.1f} %."
        )
    return text


def _own_method(runs: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """The leader against doing nothing; the project's own method against the leader."""
    ranked = table[table.ranked]
    if len(ranked) < 2:
        return []
    leaders, text = leaders_of(ranked), []
    told = [*leaders, ranked.index[len(leaders) % len(ranked)]]  # where it comes next, its difference has been told
    if "source-only" in ranked.index and "source-only" not in told:
        words = difference_words(runs, leaders[0], "source-only")
        text += [f"Against the source model without adaptation: {words}"] if words else []
    if OWN_METHOD in ranked.index and OWN_METHOD not in leaders:
        words = difference_words(runs, OWN_METHOD, leaders[0])
        own = ranked.loc[OWN_METHOD]
        start = f"{method_name(OWN_METHOD)} is number {own['rank']:.0f} of {len(ranked)} with {own['mean']:.1f} %"
        text += [f"{start}; against {method_name(leaders[0])}: {words}"] if words else []
    return text


def leaders_of(ranked: pd.DataFrame) -> list[str]:
    """The best, and all that are equal to it when printed."""
    printed = ranked["mean"].round(tables.RANK_DECIMALS)
    return [str(method) for method in ranked.index[printed == printed.iloc[0]]] if len(ranked) else []


def listed(names: Sequence[str]) -> str:
    """``GMM, GLC and LEAD``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _shift_leaders(runs: pd.DataFrame) -> list[str]:
    shifts, parts = tables.shifts_of(runs), []
    for shift in shifts if len(shifts) > 1 else ():
        table = standings(runs[runs["shift"] == shift])
        ranked = table[table.ranked]
        leaders = leaders_of(ranked)
        if leaders:
            best = [f"{listed([method_name(method) for method in leaders])} {ranked['mean'].iloc[0]:.1f} %"]
            best += [f"{method_name(m)} {ranked['mean'][m]:.1f} %" for m in ranked.index[len(leaders) : 2]]
            parts.append(f"{shift} ({tables.metric_of(shift)}): {', then '.join(best)}")
    return [f"{'; '.join(parts)}."] if parts else []


def _against_paper(suite: Results) -> list[str]:
    paper = published_suite(suite.name)
    if paper is None:
        return []
    columns = [column for column in tables.result_columns(suite.main) if column.source is not None]
    apart = tables.cells(tables.by_method(suite.main), columns, paper).difference.dropna()
    if apart.empty:
        return []
    return [
        f"Against the paper's numbers in {count(len(apart), 'cell')}: {tables.signed(apart.mean())} points on average, "
        f"{apart.abs().mean():.1f} points apart in size. {' '.join(protocol_notes(suite))}".strip()
    ]


def protocol_notes(suite: Results) -> list[str]:
    """Why these runs may not be comparable with the paper's."""
    paper, runs = published_suite(suite.name), suite.main
    if paper is None or runs.empty:
        return []
    notes = []
    used = {str(name) for name in runs.network}
    if {_network_word(name) for name in used} - {_network_word(paper.backbone), f"timm{_network_word(paper.backbone)}"}:
        notes.append(f"The paper used {paper.backbone}, these runs {', '.join(sorted(used))}.")
    sizes = {(size or PAPER_SIZE).replace("x", " x ") for size in runs.input_size}
    paper_size = PAPER_SIZE.replace("x", " x ")
    if sizes != {paper_size}:
        notes.append(f"The paper's pictures have {paper_size} pixels, these {', '.join(sorted(sizes))}.")
    if runs.limit.notna().any():
        notes.append("These runs saw only the beginning of each stream.")
    played = dict.fromkeys(word for protocol in runs.protocol for word in playing_words(protocol.model_dump()))
    if played:
        notes.append(f"These streams were played otherwise than the paper's: {', '.join(played)}.")
    if runs.seed.nunique() != 6:
        notes.append(f"The paper averages six runs, this table {count(runs.seed.nunique(), 'seed')}.")
    return notes


def _network_word(name: str) -> str:
    words = "".join(letter for letter in name.lower() if letter.isalnum())
    return "vitb16" if words.startswith(("vitb16", "timmvitbasepatch16")) else words


def _scope(runs: pd.DataFrame, ranked: pd.DataFrame) -> str:
    """Over what a mean is."""
    ground, seeds = common_ground(runs), int(ranked.n.iloc[0])
    shifts, pairs = tables.shifts_of(ground), len(tables.pairs_of(ground))
    over = f"on average over {len(shifts)} shifts" if len(shifts) > 1 else f"under {shifts[0]}"
    fewer = seeds < ground.seed.nunique()
    words = "the seeds that all have" if seeds == 0 else count(seeds, "seed") + " that all have" * fewer
    part = len(ground.drop_duplicates(PART)), len(runs.drop_duplicates(PART))
    where = "" if part[0] == part[1] else f", the {count(part[0], 'cell')} of {part[1]} that most methods have"
    return f"{over} ({count(pairs, 'pair')}, {words}{where})"


def difference_words(runs: pd.DataFrame, reference: str, other: str) -> str:
    """``GMM is 2.0 points higher over 9 paired runs (95 % interval +1.1 to +2.9, ...``; the table's numbers."""
    table = comparisons(common_ground(runs), reference)
    if other not in table.index:
        return ""
    row, averaged = table.loc[other], seeds_share_a_model(runs)
    several, one = ("paired means over seeds", "pair and shift") if averaged else ("paired runs", "run")
    n, subject = int(row.n), method_name(reference)
    if row.ties == n:
        return f"{subject} is equal in {count(n, one)}."
    start = f"{subject} is {abs(row.difference):.1f} points {'higher' if row.difference >= 0 else 'lower'}"
    if n == 1:
        return f"{start} in the one {one} both have, which says nothing about chance."
    if math.isnan(row.t_p):
        return f"{start} over {n} {several}, too few from different source models to say anything about chance."
    interval = f"95 % interval {tables.signed(row.low_95)} to {tables.signed(row.high_95)}"
    facts = f"{interval}, paired t-test with Holm's correction {p_words(row.t_p_holm)}"
    doubt = " Among so many comparisons that may be chance." if row.t_p_holm > SURE else ""
    doubt = " The interval holds 0: the two cannot be told apart." if row.low_95 <= 0 <= row.high_95 else doubt
    return f"{start} over {n} {several} ({facts}).{doubt}"


def p_words(value: float) -> str:
    """``p = 0.012`` or ``p < 0.001``."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def count(number: int, noun: str) -> str:
    """``3 seeds``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
