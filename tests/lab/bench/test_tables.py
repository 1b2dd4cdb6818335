"""Records as they lie on the disk, and the tables made of them."""

from __future__ import annotations

import csv
import io
import json
import os
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import METHODS, decay_study, novelty_study, record, sweep, write_runs

from driftgate.lab.bench.records import read_results
from driftgate.lab.bench.report import write_report
from driftgate.lab.bench.runs import SuiteRuns
from driftgate.lab.bench.table_writers import (
    COUNTED,
    EMPTY,
    MINUS,
    UNEVEN,
    cell_text,
    escape,
    published_text,
    signed,
    to_csv,
    to_latex,
    to_markdown,
)
from driftgate.lab.bench.tables import Cell, ResultTable, mean_summary, pair_label, study_table, suite_tables
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


def age(folder: Path, name: str, seconds: float) -> None:
    """Make records whose id holds ``name`` older."""
    for path in (folder / "records").glob(f"*{name}*.json"):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - seconds))


def test_lengths_and_settings_that_differ_between_shifts_are_told(tmp_path: Path) -> None:
    odd = record(shift="PDA", settings={"lr": 0.1})
    suite = only(write_runs(tmp_path, [record(seed=0), odd, record(seed=2, batches=5)]))
    assert suite.warnings == [
        "gmm has different settings under different shifts",
        "runs over streams of different lengths share a column of the table",
    ]
    assert len(suite.main) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"input_size": [64, 64]}}, "input size 64x64 instead of 28x28"),
        ({"model": {"backbone": "lite0"}}, "network lite0 instead of cnn"),
        ({"protocol": {"limit_batches": 2}}, "limit of batches 2 instead of none"),
        ({"protocol": {"batch_size": 32}}, "batch size 32 instead of 64"),
        ({"protocol": {"drop_last": True}}, "drop_last true instead of false"),
        ({"protocol": {"class_order": "paper"}}, "class order paper instead of shared-first"),
        ({"protocol": {"split": "5/2/3"}}, "split 5/2/3 instead of 4/3/3"),
        ({"protocol": {"model_id": "rendered-OPDA-aaaaaaaa"}}, "source model aaaaaaaa instead of bbbbbbbb"),
        ({"settings": {"lr": 0.5}}, "lr 0.5 instead of 0.001"),
    ],
)
def test_runs_that_do_not_fit_are_left_out_and_named(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    same = {"model_id": "rendered-OPDA-bbbbbbbb", "drop_last": False, "class_order": "shared-first"}
    runs = [record("gmm", seed=seed, score=60.0, protocol=same) for seed in range(3)]
    change = {**change, "protocol": {**same, **change.get("protocol", {})}}
    odd = [record("gmm", seed=seed, score=10.0, tag="zzz", **change) for seed in (0, 4)]
    suite = only(write_runs(tmp_path, [*runs, *odd]))
    assert suite.warnings == [f"2 runs (gmm) left out of tables and statistics: {reason}"]
    found = cell(suite_tables(suite)[0], "gmm").summary
    assert found is not None and (found.n, found.mean) == (3, pytest.approx(60.0))
    assert len(suite.runs) == 5 and suite.left_out == {run["id"] for run in odd}


def test_of_equal_groups_the_newest_is_kept(tmp_path: Path) -> None:
    write_runs(tmp_path, [record(score=60.0), record(score=10.0, tag="other", model={"input_size": [64, 64]})])
    age(tmp_path, "seed0-other", 100.0)
    assert [run.score for run in only(tmp_path).main] == [pytest.approx(60.0)]
    age(tmp_path, "seed0", 200.0)
    age(tmp_path, "seed0-other", -400.0)
    assert [run.score for run in only(tmp_path).main] == [pytest.approx(10.0)]


def test_no_run_replaces_another_unseen(tmp_path: Path) -> None:
    """The same in every respect that a record shows: of the newest a table is made, the other is named."""
    write_runs(tmp_path, [record(score=60.0), record(score=10.0, tag="zzz")])
    age(tmp_path, "zzz", 100.0)
    suite = only(tmp_path)
    assert [run.score for run in suite.main] == [pytest.approx(60.0)]
    (warning,) = suite.warnings
    assert f"run {suite.runs[1].id} instead of {suite.runs[0].id}" in warning


def test_a_model_named_anew_is_the_same_model(tmp_path: Path) -> None:
    names = ("rendered-OPDA-1c7557f4", "rendered-7-classes-1c7557f4")
    runs = [record(seed=seed, protocol={"model_id": name}) for seed, name in enumerate(names)]
    suite = only(write_runs(tmp_path, runs))
    assert len(suite.main) == 2 and not suite.warnings


def test_another_training_is_another_table(tmp_path: Path) -> None:
    """Two recipes, each with a model for each seed: no single place would show it."""
    runs = [record(seed=seed, protocol={"model_id": f"rendered-OPDA-seed{seed}-0000000{seed}"}) for seed in range(5)]
    write_runs(tmp_path, runs)
    for seed in range(4):  # the facts of the last model are lost, which hides no run
        training = {"epochs": 1 if seed == 3 else 10, "lr": 0.01, "seed": seed}
        facts = {"held_out_accuracy": 0.9, "training": training, "per_class": None}
        (tmp_path / "models" / f"rendered-OPDA-seed{seed}-0000000{seed}.json").write_text(json.dumps(facts))
    suite = only(tmp_path)
    assert [run.seed for run in suite.main] == [0, 1, 2, 4]
    assert suite.warnings == [
        "1 run (gmm) left out of tables and statistics: training epochs 1 instead of 10",
    ]


def test_what_a_record_does_not_tell_hides_no_run(tmp_path: Path) -> None:
    bare = record(seed=1)
    del bare["model"], bare["protocol"]["split"], bare["protocol"]["batch_size"], bare["protocol"]["limit"]
    suite = only(write_runs(tmp_path, [record(protocol={"model_id": "rendered-OPDA-bbbbbbbb"}), bare]))
    assert len(suite.main) == 2 and not suite.warnings


def test_a_recipe_with_no_number_hides_no_run(tmp_path: Path) -> None:
    write_runs(tmp_path, [record(protocol={"model_id": "rendered-OPDA-bbbbbbbb"})])
    (tmp_path / "models" / "rendered-OPDA-bbbbbbbb.json").write_text('{"training": {"lr": NaN}}')
    assert len(only(tmp_path).main) == 1


def test_a_study_has_one_base(tmp_path: Path) -> None:
    runs = decay_study(seeds=2, shifts=("OPDA",))
    odd = [
        record(study="decay", variant=f"decay={decay}", score=1.0, tag="zzz", settings={"decay": decay, "lr": 0.5})
        for decay in (0.9, 0.95)
    ]
    suite = only(write_runs(tmp_path, runs + odd))
    assert suite.warnings == [
        "2 runs of the study decay (gmm) left out of tables and statistics: lr 0.5 instead of 0.001"
    ]
    assert all(
        row.cells[0].summary is not None and row.cells[0].summary.n == 2 for row in study_table(suite, "decay").rows
    )


def test_a_study_may_vary_the_stream(tmp_path: Path) -> None:
    runs = [
        record(study="batch_size", variant=f"batch_size={size}", protocol={"batch_size": size}) for size in (8, 16, 32)
    ]
    suite = only(write_runs(tmp_path, runs))
    assert len(suite.studies["batch_size"]) == 3 and not suite.warnings


def test_one_malformed_record_hides_no_other(tmp_path: Path) -> None:
    """Every field of a record in turn holds something else: the page is written, and what is left out is named."""
    write_runs(tmp_path, [record("gmm"), record("glc")])
    plain = record("lead")
    fields = [(key,) for key in plain] + [("protocol", key) for key in plain["protocol"]] + [("model", "backbone")]
    count = 0
    for path in fields:
        for value in (None, 5, "x", [1], {"a": "b"}, float("nan")):
            broken = json.loads(json.dumps(plain))
            inner = broken
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            if path != ("id",):
                broken["id"] = f"broken-{count}"
            (tmp_path / "records" / f"broken-{count}.json").write_text(json.dumps(broken))
            count += 1
    (tmp_path / "models" / "broken.json").write_text('{"held_out_accuracy": "x"}')
    page = write_report([tmp_path], tmp_path / "out").page.read_text(encoding="utf-8")
    suite = next(suite for suite in read_results([tmp_path]) if suite.name == "digits")
    assert {run.method for run in suite.main} >= {"gmm", "glc"}
    for field in ("settings", "series", "halves", "versions", "definitions", "score", "variant", "protocol.skipped"):
        assert any("broken-" in warning and f": {field}" in warning for warning in suite.warnings), field
    assert any("broken.json" in warning and "held_out_accuracy" in warning for warning in suite.warnings)
    assert "Read with care" in page and "held_out_accuracy" in page


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


def test_cells_are_ranked_by_the_seeds_they_share(tmp_path: Path) -> None:
    """A single lucky seed must not beat the mean of three, nor the mean of three a single unlucky one."""
    scores = {"gmm": (60.0, 40.0, 40.0), "glc": (50.0, 50.0, 50.0), "lead": (55.0,)}
    runs = [record(name, seed=seed, score=score) for name, row in scores.items() for seed, score in enumerate(row)]
    (table,) = suite_tables(only(write_runs(tmp_path, runs)))
    assert {row.key: row.cells[0].rank for row in table.rows} == {"gmm": 1, "lead": 2, "glc": None}
    assert {row.key: row.cells[0].fewer for row in table.rows} == {"gmm": False, "lead": True, "glc": False}
    assert cell_text(cell(table, "lead")) == "55.0 [1 run]" and cell_text(cell(table, "glc")) == "50.0 ± 0.0"
    assert UNEVEN in to_markdown(table) and UNEVEN in to_latex(table)


def test_a_cell_without_a_common_seed_is_not_ranked(tmp_path: Path) -> None:
    runs = [record(name, seed=seed, score=50.0) for name in ("gmm", "glc") for seed in (0, 1)]
    (table,) = suite_tables(only(write_runs(tmp_path, [*runs, record("lead", seed=7, score=99.0)])))
    assert {row.key: row.cells[0].rank for row in table.rows} == {"gmm": 1, "glc": 1, "lead": None}


def test_a_mix_of_some_domains_is_spelled_out() -> None:
    assert pair_label("art", "clipart+product") == "art → clipart+product"
    assert pair_label("art", "product+clipart+real_world") == "art → mix of others"
    assert pair_label("day", "night+dusk") == "day → night+dusk"


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


def test_our_score_as_the_authors_count_it_stands_beside_the_papers_where_it_differs(tmp_path: Path) -> None:
    runs = [visda("gmm", "OPDA", seed, 58.0) for seed in range(2)] + [visda("gmm", "PDA", 0, 40.0)]
    runs += [visda("comet-f", "OPDA", 0, 50.0), visda("lead", "OPDA", 0, 50.0)]
    for run, counted in zip(runs, (0.46, 0.48, None, 0.5, None), strict=True):
        if counted is not None:
            run["metrics"]["h_score_released"] = counted  # type: ignore[index]
    (table,) = suite_tables(only(write_runs(tmp_path, runs, suite=VISDA)))
    assert [column.shift for column in table.columns] == ["PDA", "OPDA", None]
    pda, opda, mean = next(row for row in table.rows if row.key == "gmm").cells
    assert (pda.as_released, opda.as_released) == (40.0, 47.0)
    assert mean.as_released == pytest.approx((40.0 + 47.0) / 2)
    assert published_text(opda) == f"60.3 ({MINUS}2.3; 47.0)"
    assert published_text(pda) == f"41.2 ({MINUS}1.2)"  # accuracy is counted alike
    assert published_text(cell(table, "comet-f", 1)) == "42.0 (+8.0)"  # as there, so not said twice
    assert cell(table, "lead", 1).as_released is None and published_text(cell(table, "lead", 1)) == "23.8 (+26.2)"
    assert COUNTED in to_markdown(table) and "left out here" in to_latex(table)
    rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert [row["mean_as_released"] for row in rows if row["row"] == "gmm"] == ["40.0", "47.0", "43.5"]
    page = unescape(write_report([tmp_path], tmp_path / "report").page.read_text(encoding="utf-8"))
    assert COUNTED in page and "ours as counted there </span>47.0" in page
    (plain,) = suite_tables(only(write_runs(tmp_path / "plain", [visda("gmm", "OPDA", 0, 58.0)], suite=VISDA)))
    assert COUNTED not in to_markdown(plain)


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
