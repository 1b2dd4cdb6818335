"""Who leads, by how much, and how sure that is: methods ranked and compared over the cells and seeds they share."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from driftgate.lab.bench import tables
from driftgate.lab.bench.names import JOINED
from driftgate.lab.bench.published import published_suite
from driftgate.lab.bench.results import Results
from driftgate.lab.bench.statistics import Summary, compare, holm
from driftgate.methods import available

PAPER_SIZE = "224x224"
"""Height and width of the paper's pictures, in every suite."""

PART = ["shift", "source", "target"]


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


def is_source_free(method: str) -> bool:
    """Whether a method needs nothing of the source data but the model."""
    found = available().get("shot-o" if method == JOINED else method)
    return found is None or found.source_free


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


def against_paper(suite: Results) -> str:
    """Where these runs differ from the paper's, in a sentence; empty for a suite the paper does not have."""
    paper, runs = published_suite(suite.name), suite.main
    if paper is None:
        return ""
    sizes = sorted({size or PAPER_SIZE for size in runs.input_size})
    seeds, limits = runs.seed.nunique(), "the first batches of each stream" if runs.limit.notna().any() else "all of it"
    return (
        f"The paper: {paper.backbone}, {PAPER_SIZE} pixels, six runs, all of each stream. Here: "
        f"{', '.join(sorted(set(map(str, runs.network))))}, {', '.join(sizes)} pixels, {seeds} "
        f"seed{'' if seeds == 1 else 's'}, {limits}."
    )
