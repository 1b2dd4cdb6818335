"""What the commands tell of a sweep before, while and after it runs: time, progress, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.bench.sweeps import QUICK, tiny, tiny_file, tiny_plan, wait_for
from lab.cli.commands import answer, refused, run

from driftgate.lab.bench.estimate import Watcher, estimate_plan, makespan, total_seconds, work_units
from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.plan import make_plan
from driftgate.lab.bench.sweep import run_sweep, summarise


def test_watching(serial: Path, tmp_path: Path) -> None:
    plan = tiny_plan()
    seen = Watcher(plan, SweepFolder(serial), workers=2).look()
    assert (seen.done, seen.failed, seen.total, seen.models_done) == (6, 0, 6, 2) and seen.seconds_left == 0
    assert seen.news == [] and set(seen.scores) == {"PDA", "OPDA"}
    folder = SweepFolder(tmp_path)
    folder.prepare(plan.suite)
    watcher = Watcher(plan, folder, workers=1)
    assert watcher.look().seconds_left is None
    folder.fail(plan.runs[1], "it broke", "")
    with folder.lock(plan.runs[0].digest):
        folder.report(plan.runs[0], 1, 2, 0.5)
        seen = watcher.look()
    assert [report["score"] for report in seen.running] == [0.5] and seen.failed == 1
    assert seen.news == [f"{plan.runs[1].label}: FAILED, it broke"] and watcher.look().news == []
    assert watcher.look().running == [] and not folder.report_file(plan.runs[0].id).exists(), "nobody does it any more"
    run_sweep(tiny_plan(methods=["source-only"], shifts=["PDA"]), tmp_path, backend="serial")
    seen = watcher.look()
    assert seen.done == 1 and seen.models_done == 1 and len(seen.news) == 2 and seen.seconds_left is not None
    assert "held out" in seen.news[0] and seen.seconds_left > 0


def test_what_is_left_counts_the_length_of_streams(tmp_path: Path) -> None:
    """A longer stream takes as long a batch as a shorter one, and a larger source domain as long an image."""
    plan = make_plan(tiny(methods=["source-only"]), quick_training=True)
    short, long = sorted(plan.runs, key=work_units)
    assert work_units(short) < work_units(long)
    folder = SweepFolder(tmp_path)
    folder.prepare(plan.suite)
    for model in plan.models:
        folder.model_file(model).with_suffix(".json").write_text('{"seconds": 1.0}')
        folder.model_file(model).write_bytes(b"")
    record = {"method": "source-only", "shift": short.shift.value, "wall_seconds": 2.0 * work_units(short)}
    folder.result_file(short).write_text(json.dumps({**record, "score": "accuracy", "metrics": {"accuracy": 0.5}}))
    # One run is left, and a second worker cannot help it.
    assert Watcher(plan, folder, workers=2).look().seconds_left == pytest.approx(2.0 * work_units(long))
    first, second = plan.models
    folder.model_file(second).unlink()
    left = Watcher(plan, folder, workers=1).look().seconds_left
    assert left == pytest.approx(2.0 * work_units(long) + work_units(second) / work_units(first))


def test_dry_run_writes_nothing_and_estimates(tmp_path: Path) -> None:
    file, out = tiny_file(tmp_path), tmp_path / "out"
    command = ["bench", str(file), *QUICK, "--out", str(out), "--dry-run"]
    document = answer(*command)
    assert not out.exists() and len(document["jobs"]) == 8 and document["estimated_seconds"] > 0
    assert {job["id"] for job in document["jobs"]} == {job.id for job in tiny_plan().jobs}
    assert not any(job["done"] for job in document["jobs"]) and all(job["seconds"] > 0 for job in document["jobs"])


def test_a_dry_run_knows_what_runs_took(serial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftgate.lab.bench.estimate._time_step", lambda _: pytest.fail("there are records"))
    monkeypatch.setattr("driftgate.lab.bench.estimate._time_training", lambda _: pytest.fail("there are models"))
    plan = tiny_plan(seeds=2, source_per_seed=True)
    expected = estimate_plan(plan, SweepFolder(serial))
    # The first seed is the tiny sweep itself, two models and six runs; the second is as much again.
    assert [item.done for item in expected].count(True) == 8 and len(expected) == 16
    assert all(item.seconds is not None and item.seconds > 0 for item in expected if not item.done)
    total, work_left = total_seconds(expected, 2), sum(item.seconds or 0.0 for item in expected if not item.done)
    assert total is not None and work_left / 2 <= total <= work_left
    assert total_seconds(estimate_plan(tiny_plan(), SweepFolder(serial)), 2) == 0


def test_a_dry_run_does_not_take_other_layers_for_the_same_work(serial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []
    monkeypatch.setattr("driftgate.lab.bench.estimate._time_step", lambda job: timed.append(job.method) or 1.0)
    changed = {"name": "gmm", "settings": {"adapt_layers": "head"}}
    plan = tiny_plan(methods=["source-only", changed], seeds=2)
    estimate_plan(plan, SweepFolder(serial))
    assert timed == ["gmm"]  # once, for both numbers of classes; the rest is known from the records


def test_a_log_file_has_a_line_of_progress_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from driftgate.lab.cli import sweeping

    monkeypatch.setattr(sweeping, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(sweeping, "LINE_SECONDS", 0.05)
    plan, folder = tiny_plan(shifts=["PDA"], methods=["source-only"]), SweepFolder(tmp_path)
    folder.prepare(plan.suite)
    lines: list[str] = []
    monkeypatch.setattr(sweeping, "note", lines.append)
    with folder.lock(plan.models[0].digest):
        folder.report(plan.models[0], 3, 10)
        with sweeping._shown(Watcher(plan, folder, workers=1)):
            wait_for(lambda: len(lines) >= 2, 30)
    assert lines[0] == "[0/1] rendered 10 classes seed 0: source training 3/10"


def test_the_estimate_follows_the_longest_chain() -> None:
    plan = tiny_plan()
    seconds = {job.id: 100.0 if job in plan.models else 1.0 for job in plan.jobs}
    assert makespan(plan.jobs, seconds, 1) == pytest.approx(206.0)
    assert makespan(plan.jobs, seconds, 2) == pytest.approx(103.0)
    assert makespan(plan.jobs, seconds, 100) == pytest.approx(101.0), "runs wait for their model"


def test_epochs_of_source_training(tmp_path: Path) -> None:
    file = tiny_file(tmp_path)
    for option in (["--epochs", "3"], ["--set", "training.epochs=3"]):
        command = ["bench", str(file), "--limit", "2", "--out", str(tmp_path / "out"), "--dry-run", *option]
        told = answer(*command)
        expected = make_plan(tiny(training={"held_out": 0.1, "epochs": 3}), limit=2)
        assert {job["id"] for job in told["jobs"]} == {job.id for job in expected.jobs}
    assert {job.training["epochs"] for job in expected.models} == {3}


def test_the_commands(tmp_path: Path, serial: Path) -> None:
    file = tiny_file(tmp_path)
    command = ["bench", str(file), *QUICK, "--out", str(serial), "--backend", "serial"]
    shown = run(*command)
    assert shown.exit_code == 0 and all(word in shown.stdout for word in ("source-only", "gmm", "PDA", "OPDA"))
    document = answer(*command)
    assert (document["runs"], document["done"], document["failed"]) == (6, 6, {})
    assert document["scores"]["suite"] == summarise(SweepFolder(serial).all_records())
    study = ["ablate", "gate,decay", "--suite", str(file), "--shifts", "PDA", *QUICK, "--dry-run"]
    told = answer(*study, "--out", serial)
    assert sum(job["what"] == "run" for job in told["jobs"]) == 9
    assert "office-home" in run("bench").stdout
    assert "reduced_dim" in run("ablate").stdout
    assert len(answer("bench")) == 9
    assert len(answer("ablate")) == 13


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "nothing"], "Expected a suite out of demo, digits"),
        (["bench", "visda"], "resnet50"),
        (["bench", "visda", "--backbone", "cnn"], "give --root"),
        (["bench", "digits", "--methods", "nonsense"], "nonsense"),
        (["bench", "digits", "--methods", "gmm", "--pairs", "rendered->moon"], "moon"),
        (["bench", "digits", "--methods", "gmm", "--pairs", "mnist->mnist"], "other than the source"),
        (["bench", "digits", "--methods", "gmm", "--shifts", "XDA"], "XDA"),
        (["bench", "digits", "--methods", "gmm", "--seeds", "none"], "number of seeds"),
        (["bench", "digits", "--backend", "cloud"], "Expected a backend"),
        (["ablate", "nothing"], "Expected a study out of losses"),
        (["ablate", ","], "Expected names after ablate"),
        (["bench", "digits", "--methods", ","], "Expected names after --methods"),
        (["bench", "digits", "--shifts", ""], "Expected names after --shifts"),
        (["bench", "digits", "--pairs", " , "], "Expected names after --pairs"),
        (["bench", "digits", "--backbone", "foo"], "Expected a backbone out of cnn, lite0, resnet50, resnet50-v1"),
        (["bench", "digits", "--backbone", "foo", "--dry-run"], "Expected a backbone out of cnn, lite0, resnet50"),
        (["bench", "digits", "--methods", "gmm", "--set", "gmm.adapt_layers=nolayer"], "'nolayer'; layers of this"),
        (["ablate", "decay", "--set", "tnt.lr=1"], "add it to the suite's own methods"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    assert message in refused(*arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_refuses_the_folder_of_another_suite(serial: Path, tmp_path: Path) -> None:
    file = tiny_file(tmp_path, name="other")
    told = refused("bench", file, *QUICK, "--out", serial, "--dry-run")
    assert "holds suite tiny; name another --out" in told


def test_facts_of_a_model_that_cannot_be_read_stop_nothing(copied: Path) -> None:
    for file in (copied / "models").glob("*.json"):
        file.write_text("{")
    plan, folder = tiny_plan(), SweepFolder(copied)
    seen = Watcher(plan, folder, workers=1).look()
    assert (seen.models_done, seen.done, seen.seconds_left) == (2, 6, 0)
    assert all(item.done for item in estimate_plan(plan, folder))
    other = estimate_plan(tiny_plan(seeds=2, source_per_seed=True), folder)
    assert all(item.done or item.seconds for item in other)  # the training's speed is measured instead


def test_records_without_a_time_tell_nothing(copied: Path) -> None:
    for file in (copied / "records").glob("*.json"):
        record = json.loads(file.read_text())
        del record["wall_seconds"]
        file.write_text(json.dumps(record))
    expected = estimate_plan(tiny_plan(seeds=2), SweepFolder(copied))
    assert [item.done for item in expected].count(True) == 8 and all(item.done or item.seconds for item in expected)
    seen = Watcher(tiny_plan(seeds=2), SweepFolder(copied), workers=1).look()
    assert seen.done == 6 and seen.seconds_left is None


def test_a_rehearsal_on_small_pictures_says_nothing_about_large_ones(
    serial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftgate.lab.bench.estimate._time_step", lambda _: 1000.0)
    monkeypatch.setattr("driftgate.lab.bench.estimate._time_training", lambda _: 1000.0)
    same = estimate_plan(tiny_plan(input_size=28), SweepFolder(serial))
    assert not any(item.done for item in same) and all((item.seconds or 0.0) < 500 for item in same)
    larger = estimate_plan(tiny_plan(input_size=64), SweepFolder(serial))
    assert all((item.seconds or 0.0) > 500 for item in larger)
    fewer_classes = estimate_plan(tiny_plan(splits={"PDA": "3/1/0", "OPDA": "2/1/1"}), SweepFolder(serial))
    assert not any(item.done for item in fewer_classes) and all((item.seconds or 0.0) < 500 for item in fewer_classes)
