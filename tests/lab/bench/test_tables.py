"""Tables in the paper's layout: means, spreads, ranks over common seeds, the paper's numbers, and the formats."""

from __future__ import annotations

import csv
import math
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import METHODS, decay_study, novelty_study, record, sweep, write_runs

from driftgate.lab.bench.results import Results, read_results
from driftgate.lab.bench.table_writers import escape, to_latex, to_markdown, write_tables
from driftgate.lab.bench.tables import (
    EMPTY,
    MINUS,
    UNEVEN,
    Table,
    mean_summary,
    pair_label,
    signed,
    study_table,
    suite_tables,
)
from driftgate.lab.report.page import write_report

VISDA = {"name": "visda", "title": "VisDA-C", "data": "visda"}


def only(folder: Path, runs: list[dict[str, Any]], suite: dict[str, Any] | None = None) -> Results:
    (found,) = read_results([write_runs(folder, runs, suite=suite)])
    return found


def table_of(folder: Path, runs: list[dict[str, Any]], suite: dict[str, Any] | None = None) -> Table:
    return suite_tables(only(folder, runs, suite))[0]


def ranks(table: Table, column: int = 0) -> dict[str, float | None]:
    assert table.rank is not None
    return {name: None if math.isnan(rank) else rank for name, rank in table.rank.iloc[:, column].items()}


def visda(method: str, shift: str, seed: int, score: float) -> dict[str, Any]:
    return record(method, shift, seed, score=score, suite="visda", source="train", target="validation")


def test_layout(tmp_path: Path) -> None:
    table = table_of(tmp_path / "one", sweep())
    assert list(table.text.columns) == ["PDA, accuracy", "ODA, H-score", "OPDA, H-score", "Mean"]
    assert list(dict.fromkeys(table.data.row)) == list(METHODS) and table.starts == (3, 7)
    assert to_latex(table).count(r"\midrule") == 3
    runs = [
        run
        for source in "abc"
        for run in sweep(("gmm", "glc"), ("PDA", "ODA"), 1, source=source, target=f"not {source}")
    ]
    tables = suite_tables(only(tmp_path / "many", runs))
    assert [table.name for table in tables] == ["digits-means", "digits-PDA", "digits-ODA"]
    assert list(tables[1].text.columns) == ["a → not a", "b → not b", "c → not c", "Mean"]
    two = table_of(tmp_path / "two", [run for run in runs if run["source"] != "c"])
    assert two.text.columns.nlevels == 2 and ("PDA, accuracy", "a → not a") in two.text.columns
    assert pair_label("art", "clipart+product") == "art → clipart+product"
    assert pair_label("art", "product+clipart+real_world") == "art → mix of others"


def test_means_and_spread(tmp_path: Path) -> None:
    scores = {"PDA": (50, 60), "ODA": (70, 72)}
    runs = [record("gmm", shift, seed, score=s) for shift, row in scores.items() for seed, s in enumerate(row)]
    empty = record("glc", "PDA", 1)
    empty["metrics"]["accuracy"] = None
    table = table_of(tmp_path, [*runs, record("glc", "PDA", 0, score=60.0), empty])
    assert list(table.text.loc["GMM"]) == ["55.0 ± 7.1", "71.0 ± 1.4", "63.0 ± 4.2"]  # the seeds' means are 60 and 66
    assert table.text.loc["GLC", "PDA, accuracy"] == "60.0 [1 run]", "nothing was measured with the other seed"


def test_seeds_that_lack_a_cell_do_not_distort_the_mean() -> None:
    summary = mean_summary(np.array([[10.0, 20.0, 90.0], [30.0, 40.0, math.nan]]))
    assert summary.mean == pytest.approx((40.0 + 35.0) / 2) and math.isnan(summary.low)
    assert summary.std == pytest.approx(50**0.5)  # seeds 0 and 1: 20 and 30
    assert math.isnan(mean_summary(np.array([[10.0, math.nan], [math.nan, 20.0]])).std)


def test_best_and_second_best_as_printed(tmp_path: Path) -> None:
    scores = {"gmm": 60.04, "comet-f": 60.01, "glc": 55.0, "lead": 40.0}
    table = table_of(tmp_path, [record(name, score=score) for name, score in scores.items()])
    assert ranks(table) == {"GMM": 1, "COMET-F": 1, "GLC": 2, "LEAD": 3}
    assert dict(zip(table.data.row, table.data["rank"], strict=True)) == {"gmm": 1, "comet-f": 1, "glc": 3, "lead": 4}
    alone = table_of(tmp_path / "alone", [record()])
    assert ranks(alone) == {"GMM": None} and "±" not in alone.text.iloc[0, 0]


def test_an_incomplete_mean_is_bracketed_and_not_ranked(tmp_path: Path) -> None:
    runs = [record("gmm", "PDA", score=90), record("glc", "PDA", score=20), record("glc", "ODA", score=30)]
    table = table_of(tmp_path, [*runs, record("lead", "PDA", score=10), record("lead", "ODA", score=10)])
    assert list(table.text.loc["GMM"]) == ["90.0", EMPTY, "(90.0)"]
    assert ranks(table, 2) == {"GLC": 1, "LEAD": 2, "GMM": None}


def test_cells_are_ranked_by_the_seeds_they_share(tmp_path: Path) -> None:
    """A single lucky seed must not beat the mean of three, nor the mean of three a single unlucky one."""
    scores = {"gmm": (60.0, 40.0, 40.0), "glc": (50.0, 50.0, 50.0), "lead": (55.0,)}
    runs = [record(name, seed=seed, score=score) for name, row in scores.items() for seed, score in enumerate(row)]
    table = table_of(tmp_path, runs)
    assert ranks(table) == {"GMM": 1, "LEAD": 2, "GLC": 3}
    assert table.text.loc["LEAD"].iloc[0] == "55.0 [1 run]" and table.text.loc["GLC"].iloc[0] == "50.0 ± 0.0"
    assert UNEVEN in to_markdown(table) and UNEVEN in to_latex(table)
    runs = [record(name, seed=seed, score=50.0) for name in ("gmm", "glc") for seed in (0, 1)]
    apart = table_of(tmp_path / "apart", [*runs, record("lead", seed=7, score=99.0)])
    assert ranks(apart) == {"GMM": 1, "GLC": 1, "LEAD": None}, "no seed in common"


def test_the_papers_number_and_the_difference(tmp_path: Path) -> None:
    runs = [visda("gmm", "OPDA", seed, 58.0) for seed in range(2)] + [visda("gmm", "PDA", 0, 40.0)]
    table = table_of(tmp_path, [*runs, visda("tent", "OPDA", 0, 30.0)], VISDA)
    assert table.below is not None and list(table.below.loc["Tent"]) == ["", "", ""]
    assert list(table.below.loc["GMM"])[:2] == [f"41.2 ({MINUS}1.2)", f"60.3 ({MINUS}2.3)"]
    page = unescape(write_report([tmp_path], tmp_path / "report").page.read_text(encoding="utf-8"))
    assert f"60.3 ({MINUS}2.3)" in page
    assert (
        "The paper: ResNet-50, 224x224 pixels, six runs, all of each stream. Here: cnn, 28x28 pixels, 2 seeds" in page
    )


def test_the_two_versions_of_shot_are_one_row_as_in_the_paper(tmp_path: Path) -> None:
    office = {"name": "office-home", "title": "Office-Home", "data": "office-home"}
    where = {"suite": "office-home", "source": "art", "target": "clipart+product+real_world"}
    runs = [record("shot-p", "PDA", **where), record("shot-o", "ODA", **where), record("gmm", "PDA", **where)]
    table = table_of(tmp_path, runs, office)
    published = table.data[table.data.row == "shot-o/p"].published
    assert list(published) == pytest.approx([50.0, 63.3, (50.0 + 63.3) / 2])
    both = table_of(tmp_path / "both", [record("shot-p", "PDA"), record("shot-o", "PDA")])
    assert list(both.data.row) == ["shot-o", "shot-p"]


def test_the_papers_average_is_used_where_all_pairs_ran(tmp_path: Path) -> None:
    domains = ("clipart", "painting", "real", "sketch")
    pairs = [(source, target) for source in domains for target in domains if source != target]
    runs = [record("gmm", "OPDA", suite="domainnet", source=source, target=target) for source, target in pairs]
    info = {"name": "domainnet", "title": "DomainNet", "data": "domainnet"}
    assert table_of(tmp_path / "all", runs, info).data.published[0] == 50.56
    assert table_of(tmp_path / "part", runs[:3], info).data.published[0] == pytest.approx((46.4 + 57.6 + 48.4) / 3)


def test_variants_by_size_or_in_the_studys_order(tmp_path: Path) -> None:
    suite = only(tmp_path, decay_study() + novelty_study())
    decays = ["0.9", "0.95", "0.99", "0.999", "1.0"]
    assert list(study_table(suite, "decay").text.index) == [f"decay={value}" for value in decays]
    assert study_table(suite, "novelty").text.index[0] == "novelty=likelihood_entropy"


def test_csv_and_markdown(tmp_path: Path) -> None:
    table = table_of(tmp_path, sweep(("gmm", "glc"), ("PDA", "ODA"), 2))
    write_tables([table], tmp_path)
    lines = list(csv.DictReader((tmp_path / "digits.csv").open()))
    line = next(line for line in lines if (line["row"], line["shift"]) == ("gmm", "all"))
    assert len(lines) == 6 and float(line["mean"]) == table.value.loc["GMM", "Mean"] and line["rank"] == "1.0"
    runs = [visda("gmm", "OPDA", 0, 60.0), visda("glc", "OPDA", 0, 10.0)]
    assert to_markdown(table_of(tmp_path / "visda", runs, VISDA)).splitlines() == [
        "**VisDA-C**",
        "",
        "| Method | OPDA, H-score |",
        "|---|---:|",
        "| GLC | *10.0* |",
        f"| ↳ paper (ours {MINUS} paper) | 11.2 ({MINUS}1.2) |",
        "| GMM | **60.0** |",
        f"| ↳ paper (ours {MINUS} paper) | 60.3 ({MINUS}0.3) |",
    ]


def test_latex_has_equal_columns_in_every_line(tmp_path: Path) -> None:
    runs = [visda(m, shift, seed, 50 + seed) for m in ("gmm", "glc") for shift in ("PDA", "ODA") for seed in (0, 1)]
    table = table_of(tmp_path, runs, {**VISDA, "title": "50 % of A_B & more"})
    text = to_latex(table)
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count(" & ") for line in body} == {len(table.text.columns)}
    assert r"50 \% of A\_B \& more" in text and r"\textbf{50.5 $\pm$ 0.7}" in text
    assert text.count("{") == text.count("}") and not {"±", MINUS, "→"} & set(text)
    assert (signed(1.25), signed(-2.0), signed(-0.01)) == ("+1.2", f"{MINUS}2.0", "±0.0")
    assert escape("a_b^c~d\\") == r"a\_b\textasciicircum{}c\textasciitilde{}d\textbackslash{}"
