"""Records as they lie on the disk, read into a frame, and which of them may stand in one table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import decay_study, record, sweep, write_runs

from driftgate.lab.bench.results import Results, curve, read_results
from driftgate.lab.bench.tables import study_table
from driftgate.lab.report.page import write_report
from driftgate.types import DriftgateError


def only(folder: Path) -> Results:
    (suite,) = read_results([folder])
    return suite


def test_groups_by_suite_and_study(tmp_path: Path) -> None:
    suite = only(write_runs(tmp_path, sweep(("gmm",), seeds=2) + decay_study(seeds=1), failures=1))
    assert suite.title == "Digits: rendered to handwritten" and len(suite.main) == 6 and suite.warnings == []
    assert {name: len(runs) for name, runs in suite.studies.items()} == {"decay": 15}
    assert [failure.error for failure in suite.failures] == ["out of <memory>"]
    assert suite.models["rendered-OPDA-seed0"]["held_out_accuracy"] == 0.985


def test_several_folders_of_one_suite_are_one(tmp_path: Path) -> None:
    write_runs(tmp_path / "a", [record(seed=0), record(seed=1)])
    write_runs(tmp_path / "b", [record(seed=1), record(seed=2)])
    (suite,) = read_results([tmp_path / "a", tmp_path / "b"])
    assert list(suite.frame.seed) == [0, 1, 2] and any("repeats a run" in warning for warning in suite.warnings)


def test_broken_and_foreign_files_are_named_and_left_out(tmp_path: Path) -> None:
    write_runs(tmp_path, [record()])
    records = tmp_path / "records"
    (records / "cut.json").write_text('{"method": "gm')
    (records / "list.json").write_text("[1, 2]")
    (records / "foreign.json").write_text('{"hello": "world"}')
    (records / "nowhere.json").write_text(json.dumps({**record(), "source": None}))
    (records / ".hidden.json").write_text("{")
    (records / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "suite.json").write_text("{")
    suite = only(tmp_path)
    assert (suite.name, len(suite.frame)) == ("digits", 1), "a broken suite file hides no run"
    for name in ("cut", "list", "foreign", "nowhere", "binary", "suite"):
        assert any(f"{name}.json" in warning for warning in suite.warnings), name
    assert not any("hidden" in warning for warning in suite.warnings)


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
    assert set(suite.main.method) >= {"gmm", "glc"}
    for field in ("settings", "series", "halves", "versions", "definitions", "score", "variant", "protocol.skipped"):
        assert any("broken-" in warning and f": {field}" in warning for warning in suite.warnings), field
    assert any("broken.json" in warning and "held_out_accuracy" in warning for warning in suite.warnings)
    assert "Read with care" in page and "held_out_accuracy" in page


def test_records_of_adapt_and_of_older_formats_are_read(tmp_path: Path) -> None:
    bare = record(seed=3)
    for key in ("id", "suite", "source", "target", "shift", "seed", "study", "variant"):
        bare["protocol"].setdefault(key, bare[key])
        del bare[key]
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "OPDA-gmm-seed3.json").write_text(json.dumps({**bare, "format": 2}))
    suite = only(tmp_path)
    (run,) = suite.frame.itertuples()
    assert (run.suite, run.source, run.target, run.shift, run.seed) == ("digits", "rendered", "mnist", "OPDA", 3)
    assert any("1 of 1 records have format 2, now it is 3" in warning for warning in suite.warnings)


def test_folders_without_runs_and_mended_failures(tmp_path: Path) -> None:
    with pytest.raises(DriftgateError, match="there is no such folder"):
        read_results([tmp_path / "nothing"])
    with pytest.raises(DriftgateError, match="found none; run 'driftgate bench' first"):
        read_results([tmp_path])
    write_runs(tmp_path, [record()], failures=1)
    (tmp_path / "failures" / "again.json").write_text(json.dumps({"id": record()["id"], "error": "once"}))
    assert [failure.id for failure in only(tmp_path).failures] == ["failed-0"]


# What fits together


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


def test_a_setting_at_which_nothing_changed_makes_no_other_settings(tmp_path: Path) -> None:
    """Records from before it existed stand beside those that have it."""
    usual = record()["settings"]
    newer = record(shift="PDA", settings={**usual, "agreement_weight": 0.0})
    assert only(write_runs(tmp_path, [record(), newer])).warnings == []
    again = record(shift="ODA", settings={**usual, "agreement_weight": 10.0})
    assert only(write_runs(tmp_path, [again])).warnings == ["gmm has different settings under different shifts"]


def test_a_setting_that_did_change_something_keeps_runs_apart(tmp_path: Path) -> None:
    """A record from before the setting says what every version did then, not what most of the others do."""
    usual = record()["settings"]
    older = record(seed=0, settings={name: value for name, value in usual.items() if name != "precision"})
    newer = [record(seed=seed, settings={**usual, "precision": "bfloat16"}) for seed in (1, 2)]
    suite = only(write_runs(tmp_path, [older, *newer]))
    assert sorted(suite.main.seed) == [1, 2]
    assert any("precision float32 instead of bfloat16" in warning for warning in suite.warnings)


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
    assert len(suite.frame) == 5 and set(suite.frame.id[~suite.frame.kept]) == {run["id"] for run in odd}


def test_of_equal_groups_the_newest_is_kept_and_none_replaces_another_unseen(tmp_path: Path) -> None:
    write_runs(tmp_path, [record(score=60.0), record(score=10.0, tag="other", model={"input_size": [64, 64]})])
    age(tmp_path, "seed0-other", 100.0)
    assert list(only(tmp_path).main.score) == [pytest.approx(60.0)]
    age(tmp_path, "seed0", 200.0)
    age(tmp_path, "seed0-other", -400.0)
    assert list(only(tmp_path).main.score) == [pytest.approx(10.0)]
    write_runs(tmp_path / "same", [record(score=60.0), record(score=10.0, tag="zzz")])
    age(tmp_path / "same", "zzz", 100.0)
    suite = only(tmp_path / "same")
    assert list(suite.main.score) == [pytest.approx(60.0)]
    assert f"run {suite.frame.id[1]} instead of {suite.frame.id[0]}" in suite.warnings[0]


def test_another_training_is_another_table(tmp_path: Path) -> None:
    """Two recipes, each with a model for each seed: no single place would show it."""
    runs = [record(seed=seed, protocol={"model_id": f"rendered-OPDA-seed{seed}-0000000{seed}"}) for seed in range(5)]
    write_runs(tmp_path, runs)
    for seed in range(4):  # the facts of the last model are lost, which hides no run
        training = {"epochs": 1 if seed == 3 else 10, "lr": 0.01, "seed": seed}
        facts = {"held_out_accuracy": 0.9, "training": training, "per_class": None}
        (tmp_path / "models" / f"rendered-OPDA-seed{seed}-0000000{seed}.json").write_text(json.dumps(facts))
    suite = only(tmp_path)
    assert list(suite.main.seed) == [0, 1, 2, 4]
    assert suite.warnings == ["1 run (gmm) left out of tables and statistics: training epochs 1 instead of 10"]


def test_what_is_named_anew_or_not_told_hides_no_run(tmp_path: Path) -> None:
    names = ("rendered-OPDA-1c7557f4", "rendered-7-classes-1c7557f4")
    runs = [record(seed=seed, protocol={"model_id": name}) for seed, name in enumerate(names)]
    bare = record(seed=2)
    del bare["model"], bare["protocol"]["split"], bare["protocol"]["batch_size"], bare["protocol"]["limit"]
    suite = only(write_runs(tmp_path, [*runs, bare]))
    assert len(suite.main) == 3 and not suite.warnings
    (tmp_path / "models" / f"{names[0]}.json").write_text('{"training": {"lr": NaN}}')
    assert len(only(tmp_path).main) == 3, "a recipe without a number"


def test_a_study_has_one_base_and_may_vary_the_stream(tmp_path: Path) -> None:
    odd = [
        record(study="decay", variant=f"decay={decay}", score=1.0, tag="zzz", settings={"decay": decay, "lr": 0.5})
        for decay in (0.9, 0.95)
    ]
    sizes = [record(study="batch_size", variant=f"batch_size={n}", protocol={"batch_size": n}) for n in (8, 16, 32)]
    suite = only(write_runs(tmp_path, [*decay_study(seeds=2, shifts=("OPDA",)), *odd, *sizes]))
    assert suite.warnings == [
        "2 runs of the study decay (gmm) left out of tables and statistics: lr 0.5 instead of 0.001"
    ]
    assert set(study_table(suite, "decay").data.n) == {2} and len(suite.studies["batch_size"]) == 3


def test_a_last_batch_of_a_few_samples_hardly_moves_a_smoothed_curve() -> None:
    drawn = curve([0.8] * 9 + [0.0], smooth=5, samples=9 * 64 + 8, batch_size=64)
    assert drawn[-1, 0] == 9 * 64 + 8 and drawn[-1, 1] == pytest.approx(80.0 * 2 * 64 / (2 * 64 + 8))
    assert drawn[:7, 1] == pytest.approx([80.0] * 7)
