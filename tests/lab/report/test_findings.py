"""What the report says in words: who leads, by how much, how sure that is, and over what."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import record, sweep, write_runs

from driftgate.lab.bench.results import Results, read_results
from driftgate.lab.bench.tables import MINUS
from driftgate.lab.report.findings import comparisons, difference_words, p_words, sentences


def suite_of(folder: Path, runs: list[dict[str, Any]], **more: Any) -> Results:
    (suite,) = read_results([write_runs(folder, runs, **more)])
    return suite


def told(folder: Path, runs: list[dict[str, Any]]) -> str:
    """The summary of some runs."""
    return " ".join(sentences(suite_of(folder, runs)))


def scored(scores: dict[str, tuple[float, ...]], **more: Any) -> list[dict[str, Any]]:
    """Method -> score of each seed."""
    return [record(name, seed=seed, score=s, **more) for name, row in scores.items() for seed, s in enumerate(row)]


def test_methods_are_compared_where_most_of_the_table_is(tmp_path: Path) -> None:
    """Two methods that ran everywhere must not push out the four that ran under one shift."""
    runs = [record(m, shift, score=20.0) for m in ("source-only", "bn-stats") for shift in ("PDA", "ODA", "OPDA")]
    text = told(
        tmp_path / "many", runs + [record(m, "OPDA", score=60.0 + len(m)) for m in ("gmm", "glc", "lead", "tent")]
    )
    assert "Tent and LEAD lead together with 64.0 % under OPDA (1 pair, 1 seed, the 1 cell of 3 that most" in text
    assert "Not ranked" not in text
    runs = [run for place, run in enumerate(sweep()) if place % 5][:-11]
    assert "Not ranked, because cells or common seeds are missing" in told(tmp_path / "part", runs)
    text = told(tmp_path / "apart", [record("gmm", "PDA", score=90.0), record("glc", "ODA", score=20.0)])
    assert "reaches" in text and "no other method has the same cells" in text and "leads" not in text


def test_methods_are_ranked_by_the_seeds_they_share(tmp_path: Path) -> None:
    """Over its three seeds gmm has 50 %, but under the only seed of glc it has 70 %."""
    text = told(tmp_path, scored({"gmm": (70.0, 40.0, 40.0), "glc": (60.0,)}))
    assert "GMM leads with 70.0 % under OPDA (1 pair, 1 seed that all have)" in text
    assert "Next is GLC with 60.0 %: GMM is 10.0 points higher in the one run both have" in text


def test_equal_methods_are_called_equal(tmp_path: Path) -> None:
    runs = [record(method, shift, score=0.0) for method in ("source-only", "glc", "gmm") for shift in ("PDA", "ODA")]
    text = told(tmp_path / "all", runs)
    assert "Source-only, GLC and GMM are equal with 0.0 % on average" in text
    assert "lead" not in text and "number" not in text and "Against" not in text
    text = told(tmp_path / "two", scored({"gmm": (50.0,), "glc": (50.0,), "source-only": (41.0,)}))
    assert "GLC and GMM lead together with 50.0 %" in text and "Next is Source-only with 41.0 %" in text
    suite = suite_of(tmp_path / "row", scored({"gmm": (50.0, 50.0), "glc": (50.0, 50.0)}))
    assert difference_words(suite.main, "gmm", "glc") == "GMM is equal in 2 runs."


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
    assert "over 2 paired means over seeds" in " ".join(sentences(suite))
    suite = suite_of(tmp_path / "each", runs("rendered-{shift}-seed{seed}-{seed}c7557f4"))
    assert comparisons(suite.main, "gmm").loc["glc"].n == 6
    model = {"protocol": {"model_id": "rendered-OPDA-1c7557f4"}}
    suite = suite_of(tmp_path / "both", scored({"gmm": (70.0, 10.0), "glc": (60.0,)}, **model))
    assert comparisons(suite.main, "gmm").loc["glc"].difference == pytest.approx(10.0), "only seeds both have"


def test_words_and_table_have_the_same_corrected_p_value(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, scored({"gmm": (60, 61, 62), "glc": (58, 58, 60), "lead": (20, 50, 50)}))
    table = comparisons(suite.main, "gmm")
    assert (table.t_p_holm >= table.t_p).all() and table.t_p_holm["glc"] > table.t_p["glc"]
    assert f"Holm's correction {p_words(table.t_p_holm['glc'])}" in sentences(suite)[1]
    noise = told(tmp_path / "noise", scored({"gmm": (60, 52, 58), "glc": (55, 57, 57)}))
    assert "cannot be told apart" in noise


def test_a_leader_with_source_statistics_is_told(tmp_path: Path) -> None:
    text = told(tmp_path, scored({"comet-p": (70,), "gmm": (60,), "source-only": (40,)}))
    assert "COMET-P leads with 70.0 %" in text and "of the methods that do neither, GMM leads with 60.0 %" in text
    assert "GMM is number 2 of 3" in text


def test_what_differs_from_the_papers_setting_is_told(tmp_path: Path) -> None:
    run = record("gmm", "OPDA", suite="visda", source="train", target="validation", score=50.0)
    run["protocol"]["limit_batches"] = 2
    suite = suite_of(tmp_path, [run], suite={"name": "visda", "title": "VisDA-C", "data": "visda"})
    text = sentences(suite)[-1]
    assert f"{MINUS}10.3 points on average" in text
    assert "The paper used ResNet-50, these runs cnn." in text and "only the beginning" in text and "1 seed" in text
    assert "The paper's pictures have 224 x 224 pixels, these 28 x 28." in text
