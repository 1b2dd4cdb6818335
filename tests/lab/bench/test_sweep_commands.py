"""What the commands tell of a sweep before, while and after it runs: time, progress, mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from lab.bench.sweeps import QUICK, tiny, tiny_file, tiny_plan
from lab.cli.commands import answer, refused, run

from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.plan import make_plan
from driftgate.lab.bench.sweep import run_sweep, summarise
from driftgate.lab.cli.sweeping import seconds_known


def test_dry_run_writes_nothing_and_estimates_by_what_has_run(tmp_path: Path, serial: Path) -> None:
    file, out = tiny_file(tmp_path), tmp_path / "out"
    command = ["bench", str(file), *QUICK, "--dry-run", "--workers", "1"]
    document = answer(*command, "--out", str(out))
    assert not out.exists() and len(document["jobs"]) == 8 and document["estimated_seconds"] is None
    assert {job["id"] for job in document["jobs"]} == {job.id for job in tiny_plan().jobs}
    assert not any(job["done"] for job in document["jobs"])
    assert {job["batches"] for job in document["jobs"] if job["what"] == "run"} == {2}
    assert "?" in run(*command, "--out", str(out)).stdout
    known = answer("bench", str(tiny_file(tmp_path, seeds=2, source_per_seed=True)), *command[2:], "--out", serial)
    assert [job["done"] for job in known["jobs"]].count(True) == 8 and len(known["jobs"]) == 16
    assert known["estimated_seconds"] == pytest.approx(sum(job["seconds"] for job in known["jobs"])) != 0
    tiny_file(tmp_path)
    assert answer(*command, "--out", serial)["estimated_seconds"] == 0


def test_a_line_for_every_job_and_one_a_minute_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftgate.lab.bench.sweep.LINE_SECONDS", 0.0)
    lines: list[str] = []
    run_sweep(tiny_plan(shifts=["PDA"], methods=["source-only"]), tmp_path, backend="serial", say=lines.append)
    assert lines[0].startswith("rendered 10 classes seed 0: source training 1/")
    assert "[1/2, 0 min left] rendered 10 classes seed 0: source training: done (" in "\n".join(lines)
    assert re.search(r"\[2/2, 0 min left\] rendered -> uci PDA source-only seed 0: \d+\.\d \(\d+ s\)", lines[-1])


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
    assert sum(job["what"] == "run" for job in told["jobs"]) == 11
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


def test_facts_that_cannot_be_read_stop_nothing(copied: Path) -> None:
    for file in (copied / "models").glob("*.json"):
        file.write_text("{")
    for file in (copied / "records").glob("*.json"):
        record = json.loads(file.read_text())
        del record["wall_seconds"]
        file.write_text(json.dumps(record))
    assert seconds_known(SweepFolder(copied)) == {}
    result = run_sweep(tiny_plan(), copied, backend="serial")
    assert not result.failures and len(result.records) == 6
