"""Who leads, by how much, how sure that is, and over what."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import record, sweep, write_runs

from driftgate.lab.bench.results import Results, read_results
from driftgate.lab.bench.standings import common_ground, comparisons, standings


def suite_of(folder: Path, runs: list[dict[str, Any]], **more: Any) -> Results:
    (suite,) = read_results([write_runs(folder, runs, **more)])
    return suite


def scored(scores: dict[str, tuple[float, ...]], **more: Any) -> list[dict[str, Any]]:
    """Method -> score of each seed."""
    return [record(name, seed=seed, score=s, **more) for name, row in scores.items() for seed, s in enumerate(row)]


def test_methods_are_compared_where_most_of_the_table_is(tmp_path: Path) -> None:
    """Two methods that ran everywhere must not push out the four that ran under one shift."""
    runs = [record(m, shift, score=20.0) for m in ("source-only", "bn-stats") for shift in ("PDA", "ODA", "OPDA")]
    runs += [record(m, "OPDA", score=60.0 + len(m)) for m in ("gmm", "glc", "lead", "tent")]
    suite = suite_of(tmp_path / "many", runs)
    table = standings(suite.main)
    assert set(common_ground(suite.main)["shift"]) == {"OPDA"} and table.ranked.all()
    assert list(table["rank"]) == [1, 1, 3, 3, 5, 5] and set(table.index[:2]) == {"tent", "lead"}
    runs = [run for place, run in enumerate(sweep()) if place % 5][:-11]
    assert not standings(suite_of(tmp_path / "part", runs).main).ranked.all()
    table = standings(suite_of(tmp_path / "apart", [record("gmm", "PDA", score=90.0), record("glc", "ODA")]).main)
    assert list(table.ranked) == [True, False], "no other method has the same cells"


def test_methods_are_ranked_by_the_seeds_they_share(tmp_path: Path) -> None:
    """Over its three seeds gmm has 50 %, but under the only seed of glc it has 70 %."""
    suite = suite_of(tmp_path, scored({"gmm": (70.0, 40.0, 40.0), "glc": (60.0,)}))
    table = standings(suite.main)
    assert list(table["mean"]) == pytest.approx([70.0, 60.0]) and list(table.index) == ["gmm", "glc"]
    assert set(table.n) == {1} and comparisons(suite.main, "gmm").difference["glc"] == pytest.approx(10.0)


def test_equal_methods_share_a_rank(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, scored({"gmm": (50.0, 50.0), "glc": (50.0, 50.0), "source-only": (41.0, 41.0)}))
    assert dict(standings(suite.main)["rank"]) == {"gmm": 1, "glc": 1, "source-only": 3}
    row = comparisons(suite.main, "gmm").loc["glc"]
    assert (row.ties, row.n, row.difference) == (2, 2, 0.0) and math.isnan(row.t_p)


def test_seeds_of_one_source_model_are_one_unit(tmp_path: Path) -> None:
    """Six runs, but two streams on one model each: more seeds do not make the evidence three times as strong."""
    scores = {"gmm": {"PDA": (60, 61, 62), "ODA": (70, 72, 74)}, "glc": {"PDA": (50, 51, 52), "ODA": (66, 66, 66)}}

    def runs(model: str) -> list[dict[str, Any]]:
        return [
            record(method, shift, seed, score=score, protocol={"model_id": model.format(shift=shift, seed=seed)})
            for method, shifts in scores.items()
            for shift, values in shifts.items()
            for seed, score in enumerate(values)
        ]

    suite = suite_of(tmp_path / "one", runs("rendered-{shift}-1c7557f4"))
    row = comparisons(suite.main, "gmm").loc["glc"]
    assert (row.n, row.difference) == (2, pytest.approx(8.0)) and math.isnan(row.t_p)
    suite = suite_of(tmp_path / "each", runs("rendered-{shift}-seed{seed}-{seed}c7557f4"))
    assert comparisons(suite.main, "gmm").loc["glc"].n == 6
    model = {"protocol": {"model_id": "rendered-OPDA-1c7557f4"}}
    suite = suite_of(tmp_path / "both", scored({"gmm": (70.0, 10.0), "glc": (60.0,)}, **model))
    assert comparisons(suite.main, "gmm").loc["glc"].difference == pytest.approx(10.0), "only seeds both have"


def test_p_values_are_corrected(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, scored({"gmm": (60, 61, 62), "glc": (58, 58, 60), "lead": (20, 50, 50)}))
    table = comparisons(suite.main, "gmm")
    assert (table.t_p_holm >= table.t_p).all() and table.t_p_holm["glc"] > table.t_p["glc"]
