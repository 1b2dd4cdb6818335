"""Records as they lie on the disk, and the tables made of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from synthetic_runs import METHODS, decay_study, novelty_study, record, sweep, write_runs

from driftgate.bench.records import SuiteRuns, read_results
from driftgate.bench.table_writers import (
    EMPTY,
    MINUS,
    cell_text,
    escape,
    published_text,
    signed,
    to_csv,
    to_latex,
    to_markdown,
)
from driftgate.bench.tables import Cell, ResultTable, mean_summary, study_table, suite_tables
from driftgate.types import DriftgateError

OFFICE = {"name": "office-home", "title": "Office-Home", "data": "office-home"}
VISDA = {"name": "visda", "title": "VisDA-C", "data": "visda"}


def only(folder: Path) -> SuiteRuns:
    (suite,) = read_results([folder])
    return suite


def cell(table: ResultTable, method: str, column: int = 0) -> Cell:
    return next(row for row in table.rows if row.key == method).cells[column]


def visda(method: str, shift: str, seed: int, score: float) -> dict[str, object]:
    return record(method, shift, seed, score=score, suite="visda", source="train", target="validation")


# Reading


def test_groups_by_suite_and_study(tmp_path: Path) -> None:
    suite = only(write_runs(tmp_path, sweep(("gmm",), seeds=2) + decay_study(seeds=1), failures=1))
    assert suite.title == "Digits: rendered to handwritten"
    assert len(suite.main) == 6
    assert {name: len(runs) for name, runs in suite.studies.items()} == {"decay": 15}
    assert [failure.error for failure in suite.failures] == ["out of <memory>"]
    assert suite.models["rendered-OPDA-seed0"]["held_out_accuracy"] == 0.985


def test_several_folders_of_one_suite_are_one(tmp_path: Path) -> None:
    write_runs(tmp_path / "a", [record(seed=0), record(seed=1)])
    write_runs(tmp_path / "b", [record(seed=1), record(seed=2)])
    (suite,) = read_results([tmp_path / "a", tmp_path / "b"])
    assert [run.seed for run in suite.runs] == [0, 1, 2]
    assert any("repeats a run" in warning for warning in suite.warnings)


def test_broken_and_foreign_files_are_named_and_left_out(tmp_path: Path) -> None:
    write_runs(tmp_path, [record()])
    records = tmp_path / "records"
    (records / "cut.json").write_text('{"method": "gm')
    (records / "list.json").write_text("[1, 2]")
    (records / "foreign.json").write_text('{"hello": "world"}')
    (records / "nowhere.json").write_text(json.dumps({**record(), "source": None}))
    (records / ".hidden.json").write_text("{")
    (records / "binary.json").write_bytes(b"\xff\xfe\x00")
    suite = only(tmp_path)
    assert len(suite.runs) == 1
    for name in ("cut", "list", "foreign", "nowhere", "binary"):
        assert any(f"{name}.json" in warning for warning in suite.warnings), name
    assert not any("hidden" in warning for warning in suite.warnings)


def test_a_broken_suite_file_hides_no_run(tmp_path: Path) -> None:
    write_runs(tmp_path, [record()])
    (tmp_path / "suite.json").write_text("{")
    suite = only(tmp_path)
    assert (suite.name, len(suite.runs)) == ("digits", 1)
    assert any("suite.json" in warning for warning in suite.warnings)


def test_records_of_the_demo_are_read(tmp_path: Path) -> None:
    plain = record(seed=3)
    for key in ("id", "suite", "source", "target", "shift", "seed", "study", "variant"):
        plain["protocol"].setdefault(key, plain[key])
        del plain[key]
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "OPDA-gmm-seed3.json").write_text(json.dumps(plain))
    (run,) = only(tmp_path).runs
    assert (run.suite, run.source, run.target, run.shift, run.seed) == ("digits", "rendered", "mnist", "OPDA", 3)


def test_a_failure_that_was_mended_is_none(tmp_path: Path) -> None:
    write_runs(tmp_path, [record()], failures=1)
    (tmp_path / "failures" / "again.json").write_text(json.dumps({"id": record()["id"], "error": "once"}))
    assert [failure.id for failure in only(tmp_path).failures] == ["failed-0"]


def test_refuses_folders_without_runs(tmp_path: Path) -> None:
    with pytest.raises(DriftgateError, match="there is no such folder"):
        read_results([tmp_path / "nothing"])
    with pytest.raises(DriftgateError, match="found none; run 'driftgate bench' first"):
        read_results([tmp_path])


def test_mixed_settings_and_lengths_are_told(tmp_path: Path) -> None:
    odd = record(seed=1, settings={"lr": 0.1})
    short = record(seed=2, batches=5)
    warnings = only(write_runs(tmp_path, [record(seed=0), odd, short])).warnings
    assert any("gmm with different settings" in warning for warning in warnings)
    assert any("different lengths" in warning for warning in warnings)


def test_a_score_with_nothing_to_measure_is_left_out(tmp_path: Path) -> None:
    empty = record(seed=1)
    empty["metrics"]["h_score"] = None
    suite = only(write_runs(tmp_path, [record(seed=0, score=60.0), empty]))
    found = cell(suite_tables(suite)[0], "gmm").summary
    assert found is not None and (found.n, found.mean) == (1, pytest.approx(60.0))


# Tables


def test_layout_of_one_pair(tmp_path: Path) -> None:
    (table,) = suite_tables(only(write_runs(tmp_path, sweep())))
    assert [group for group, _ in table.groups] == ["PDA, accuracy", "ODA, H-score", "OPDA, H-score", "All shifts"]
    assert tuple(row.key for row in table.rows) == METHODS
    assert [row.block for row in table.rows] == [0] * 3 + [1] * 4 + [2] * 7


def test_many_pairs_have_an_overview_and_a_table_a_shift(tmp_path: Path) -> None:
    runs = [
        run
        for source in "abc"
        for run in sweep(("gmm", "glc"), ("PDA", "ODA"), 1, source=source, target=f"not {source}")
    ]
    tables = suite_tables(only(write_runs(tmp_path, runs)))
    assert [table.name for table in tables] == ["digits-means", "digits-PDA", "digits-ODA"]
    assert [column.label for column in tables[1].columns] == ["a → not a", "b → not b", "c → not c", "Mean"]


def test_means_and_spread(tmp_path: Path) -> None:
    runs = [
        record("gmm", shift, seed, score=score)
        for shift, scores in (("PDA", (50, 60)), ("ODA", (70, 72)))
        for seed, score in enumerate(scores)
    ]
    (table,) = suite_tables(only(write_runs(tmp_path, runs)))
    assert cell_text(cell(table, "gmm", 0)) == "55.0 ± 7.1"
    mean = cell(table, "gmm", 2)
    # The seeds' own means are 60 and 66.
    assert cell_text(mean) == "63.0 ± 4.2" and mean.summary is not None and mean.summary.n == 2


def test_seeds_that_lack_a_cell_do_not_distort_the_mean() -> None:
    summary = mean_summary([{0: 10.0, 1: 20.0, 2: 90.0}, {0: 30.0, 1: 40.0}])
    assert summary.mean == pytest.approx((40.0 + 35.0) / 2)
    assert summary.std == pytest.approx(50**0.5)  # seeds 0 and 1: 20 and 30
    assert summary.low is None
    assert mean_summary([{0: 10.0}, {1: 20.0}]).std is None


def test_best_and_second_best_as_printed(tmp_path: Path) -> None:
    scores = {"gmm": 60.04, "comet-f": 60.01, "glc": 55.0, "lead": 40.0}
    (table,) = suite_tables(only(write_runs(tmp_path, [record(name, score=score) for name, score in scores.items()])))
    assert {row.key: row.cells[0].rank for row in table.rows} == {"gmm": 1, "comet-f": 1, "glc": 2, "lead": None}


def test_an_incomplete_mean_is_bracketed_and_not_ranked(tmp_path: Path) -> None:
    runs = [record("gmm", "PDA", score=90), record("glc", "PDA", score=20), record("glc", "ODA", score=30)]
    runs += [record("lead", "PDA", score=10), record("lead", "ODA", score=10)]
    (table,) = suite_tables(only(write_runs(tmp_path, runs)))
    mean = cell(table, "gmm", 2)
    assert (mean.missing, mean.rank, cell_text(mean)) == (1, None, "(90.0)")
    assert cell(table, "glc", 2).rank == 1
    assert cell_text(cell(table, "gmm", 1)) == EMPTY


def test_nobody_is_best_alone(tmp_path: Path) -> None:
    (table,) = suite_tables(only(write_runs(tmp_path, [record()])))
    assert cell(table, "gmm").rank is None
    assert cell_text(cell(table, "gmm")).count("±") == 0


def test_the_papers_number_and_the_difference(tmp_path: Path) -> None:
    runs = [visda("gmm", "OPDA", 0, 58.0), visda("gmm", "OPDA", 1, 58.4), visda("tent", "OPDA", 0, 30.0)]
    (table,) = suite_tables(only(write_runs(tmp_path, runs, suite=VISDA)))
    assert cell(table, "gmm").published == 60.3
    assert published_text(cell(table, "gmm")) == f"60.3 ({MINUS}2.1)"
    assert published_text(cell(table, "tent")) == ""


def test_the_two_versions_of_shot_are_one_row_as_in_the_paper(tmp_path: Path) -> None:
    target = "clipart+product+real_world"
    where = {"suite": "office-home", "source": "art", "target": target}
    runs = [record("shot-p", "PDA", **where), record("shot-o", "ODA", **where), record("gmm", "PDA", **where)]
    (table,) = suite_tables(only(write_runs(tmp_path, runs, suite=OFFICE)))
    row = next(row for row in table.rows if row.key == "shot-o/p")
    assert [found.published for found in row.cells[:2]] == [50.0, 63.3]
    assert row.cells[2].published == pytest.approx((50.0 + 63.3) / 2)
    both = [record("shot-p", "PDA"), record("shot-o", "PDA")]
    (table,) = suite_tables(only(write_runs(tmp_path / "both", both)))
    assert [row.key for row in table.rows] == ["shot-o", "shot-p"]


def test_the_papers_average_is_used_where_all_pairs_ran(tmp_path: Path) -> None:
    domains = ("clipart", "painting", "real", "sketch")
    pairs = [(source, target) for source in domains for target in domains if source != target]
    runs = [record("gmm", "OPDA", suite="domainnet", source=source, target=target) for source, target in pairs]
    info = {"name": "domainnet", "title": "DomainNet", "data": "domainnet"}
    assert cell(suite_tables(only(write_runs(tmp_path / "all", runs, suite=info)))[0], "gmm").published == 50.56
    part = suite_tables(only(write_runs(tmp_path / "part", runs[:3], suite=info)))[0]
    assert cell(part, "gmm").published == pytest.approx((46.4 + 57.6 + 48.4) / 3)


def test_variants_by_size_or_in_the_studys_order(tmp_path: Path) -> None:
    suite = only(write_runs(tmp_path, decay_study() + novelty_study()))
    assert [row.name for row in study_table(suite, "decay").rows] == [
        f"decay={value}" for value in ("0.9", "0.95", "0.99", "0.999", "1.0")
    ]
    assert study_table(suite, "novelty").rows[0].name == "novelty=likelihood_entropy"


# Writers


def test_csv_holds_every_number(tmp_path: Path) -> None:
    table = suite_tables(only(write_runs(tmp_path, sweep(("gmm", "glc"), ("PDA", "ODA"), 2))))[0]
    lines = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert len(lines) == 6
    line = next(line for line in lines if (line["row"], line["shift"]) == ("gmm", "all"))
    found = cell(table, "gmm", 2).summary
    assert found is not None and float(line["mean"]) == found.mean and line["rank"] == "1"


def test_markdown(tmp_path: Path) -> None:
    runs = [visda("gmm", "OPDA", 0, 60.0), visda("glc", "OPDA", 0, 10.0)]
    text = to_markdown(suite_tables(only(write_runs(tmp_path, runs, suite=VISDA)))[0])
    assert text.splitlines() == [
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
    runs = [
        visda(method, shift, seed, 50 + seed)
        for method in ("gmm", "glc")
        for shift in ("PDA", "ODA")
        for seed in (0, 1)
    ]
    table = suite_tables(only(write_runs(tmp_path, runs, suite={**VISDA, "title": "50 % of A_B & more"})))[0]
    text = to_latex(table)
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count(" & ") for line in body} == {len(table.columns)}
    assert r"50 \% of A\_B \& more" in text and r"\textbf{50.5 $\pm$ 0.7}" in text
    assert text.count("{") == text.count("}")
    assert "±" not in text and MINUS not in text and "→" not in text


def test_small_words() -> None:
    assert (signed(1.25), signed(-2.0), signed(-0.01)) == ("+1.2", f"{MINUS}2.0", "±0.0")
    assert escape("a_b^c~d\\") == r"a\_b\textasciicircum{}c\textasciitilde{}d\textbackslash{}"
