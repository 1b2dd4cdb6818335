"""What a sweep does and leaves: ids, records, models, failures."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from lab.bench.sweeps import KEYS, OF_THE_MACHINE, QUICK, moments, results, tiny, tiny_file, tiny_plan
from lab.cli.commands import answer, refused, run

from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.plan import Plan, make_plan
from driftgate.lab.bench.studies import get_study
from driftgate.lab.bench.suite import read_suite
from driftgate.lab.bench.sweep import run_sweep, score_of, summarise
from driftgate.lab.data.datasets import open_cached
from driftgate.types import DriftgateError


def test_the_folder_is_as_the_report_expects_it(serial: Path) -> None:
    plan = tiny_plan()
    records = results(serial)
    assert set(records) == {job.id for job in plan.runs} and len(records) == 6
    for job in plan.runs:
        record = json.loads((serial / "records" / f"{job.id}.json").read_text())
        assert set(record) >= KEYS | set(OF_THE_MACHINE) | {"state_bytes", "series", "metrics", "versions", "score"}
        assert record["id"] == job.id and job.id.endswith(job.digest[:8])
        assert (record["suite"], record["source"], record["target"]) == ("tiny", "rendered", "uci")
        assert (record["shift"], record["seed"], record["method"]) == (job.shift.value, 0, job.method)
        assert record["study"] is None and record["variant"] is None
        assert record["settings"] == job.settings and record["model"]["backbone"] == "cnn"
        assert record["protocol"]["batches"] == 2 and record["protocol"]["samples"] == 32
        assert record["wall_seconds"] > 0 and len(record["series"]["running_score"]) == 2
    for model in plan.models:
        facts = json.loads((serial / "models" / f"{model.id}.json").read_text())
        assert 0 <= facts["held_out_accuracy"] <= 1 and facts["seconds"] > 0
        assert (serial / "models" / f"{model.id}.safetensors").exists()
        assert facts["samples"] + facts["held_out_samples"] == 40 * model.num_classes
        assert facts["num_classes"] == model.num_classes and facts["input_size"] == [28, 28]
    suite = json.loads((serial / "suite.json").read_text())
    assert (suite["name"], suite["title"], suite["data"]) == ("tiny", "Tiny", "digits")
    assert list((serial / "failures").iterdir()) == list((serial / "progress").iterdir()) == []


def test_ids_are_stable_and_change_with_what_decides_the_result(tmp_path: Path) -> None:
    def ids(plan: Plan) -> set[str]:
        return {job.id for job in plan.jobs}

    base = ids(tiny_plan())
    assert ids(tiny_plan()) == base == ids(tiny_plan(title="Other", methods=["gmm", "bn-stats", "source-only"]))
    for changes in ({"batch_size": 32}, {"drop_last": True}, {"class_order": "paper"}):
        plan = tiny_plan(**changes)
        assert {job.id for job in plan.models} <= base and not {job.id for job in plan.runs} & base
    assert not ids(tiny_plan(training={"held_out": 0.2})) & base
    assert not ids(make_plan(tiny(), limit=2)) & base
    changed = tiny_plan(methods=[{"name": "gmm", "settings": {"lr": 0.002}}, "bn-stats"])
    assert len({job.id for job in changed.runs} & base) == 2  # bn-stats is the same


def test_shifts_with_as_many_source_classes_share_a_model(tmp_path: Path) -> None:
    """As ODA and OPDA of DomainNet do."""
    suite = tiny(shifts=["ODA", "OPDA"], splits={"ODA": "4/0/2", "OPDA": "3/1/2"}, methods=["source-only"])
    plan = make_plan(suite, limit=1, quick_training=True)
    (model,) = plan.models
    assert model.id == f"rendered-4-classes-{model.digest[:8]}" and "4 classes" in model.label
    assert [(run.shift.value, str(run.class_split)) for run in plan.runs] == [("ODA", "4/0/2"), ("OPDA", "3/1/2")]
    assert not run_sweep(plan, tmp_path, backend="serial").failures
    records = {record["shift"]: record["protocol"] for record in SweepFolder(tmp_path).all_records()}
    assert {shift: protocol["split"] for shift, protocol in records.items()} == {"ODA": "4/0/2", "OPDA": "3/1/2"}
    assert {protocol["model_id"] for protocol in records.values()} == {model.id}


def test_ids_of_finished_runs_stay_valid() -> None:
    """Taken from folders of earlier versions: other digits would throw away what they have done."""
    plan = make_plan(read_suite("digits").select(methods=["source-only"], seeds="1"))
    assert [job.digest[:8] for job in plan.models] == ["bc3e7994", "f99f2c3d", "4e469421"]
    assert [job.digest[:8] for job in plan.runs] == ["be7dc499", "3a35e88d", "6e642a2f"]


def test_a_model_with_an_older_name_is_used(copied: Path) -> None:
    folder = SweepFolder(copied)
    plan = tiny_plan(methods=["tent"])
    for job in plan.models:
        for ending in (".json", ".safetensors"):
            file = copied / "models" / f"{job.id}{ending}"
            file.rename(file.with_name(f"rendered-PDA-{job.digest[:8]}{ending}"))
    assert all(folder.is_done(job) for job in plan.models)
    result = run_sweep(plan, copied, backend="serial")
    assert not result.failures and len(list((copied / "models").glob("*.safetensors"))) == 2
    assert all(record["protocol"]["model_id"].startswith("rendered-PDA-") for record in result.records)


def test_failures_are_reported_and_stop_nothing(tmp_path: Path) -> None:
    methods = ["source-only", {"name": "gmm", "settings": {"weight_decay": 1e30, "min_batch": 1}}, "bn-stats"]
    file, out = tiny_file(tmp_path, shifts=["OPDA"], methods=methods), tmp_path / "out"
    done = run("bench", str(file), *QUICK, "--out", str(out), "--workers", "2")
    assert done.exit_code == 1, done.output
    (failed,) = (out / "failures").iterdir()
    facts = json.loads(failed.read_text())
    assert set(facts) >= {"id", "error", "traceback"} and "DivergedError" in facts["error"]
    assert "Traceback" in facts["traceback"] and facts["id"] == failed.stem
    assert facts["id"] in done.stderr and "DivergedError" in done.stderr
    assert {record["method"] for record in SweepFolder(out).all_records()} == {"source-only", "bn-stats"}
    assert list((out / "progress").iterdir()) == []


def test_a_failed_run_is_tried_again_and_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    plan = tiny_plan(shifts=["PDA"], methods=["source-only"])
    with monkeypatch.context() as patched:
        patched.setattr("driftgate.lab.bench.sweep.run_stream", broken)
        result = run_sweep(plan, tmp_path, backend="serial")
    assert result.failures == {plan.runs[0].id: "MemoryError: no room"} and result.records == []
    result = run_sweep(plan, tmp_path, backend="serial")
    assert not result.failures and len(result.records) == 1 and list((tmp_path / "failures").iterdir()) == []


def test_a_failure_is_forgotten_when_its_settings_were_corrected(tmp_path: Path) -> None:
    def plan(*methods: Any) -> Plan:
        return tiny_plan(shifts=["OPDA"], methods=methods)

    wrong: dict[str, Any] = {"name": "gmm", "settings": {"weight_decay": 1e30, "min_batch": 1}}
    other = {"name": "tent", "settings": {"weight_decay": 1e30}}
    assert len(run_sweep(plan(wrong, other), tmp_path, backend="serial").failures) == 2
    assert not run_sweep(plan("gmm"), tmp_path, backend="serial").failures
    (left,) = (tmp_path / "failures").iterdir()  # nobody has corrected the other
    assert "tent" in left.name
    assert not run_sweep(plan("tent"), tmp_path, backend="serial").failures
    assert list((tmp_path / "failures").iterdir()) == []


def test_runs_of_a_model_that_cannot_be_trained_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise DriftgateError("Expected pictures.")

    monkeypatch.setattr("driftgate.lab.bench.sweep.pretrain", broken)
    plan = tiny_plan(shifts=["PDA"])
    result = run_sweep(plan, tmp_path, backend="serial")
    assert set(result.failures) == {job.id for job in plan.jobs}
    assert all("Expected pictures." in error for error in result.failures.values())


def test_an_ablation_shares_models_and_runs_with_the_suite(tmp_path: Path, serial: Path) -> None:
    shutil.copytree(serial, tmp_path / "out")
    out = tmp_path / "out"
    suite = tiny(shifts=["OPDA"])
    plan = make_plan(suite, limit=2, quick_training=True, study=get_study("gate"))
    default = next(job for job in plan.runs if job.variant == "gate=auto")
    result = run_sweep(plan, out, backend="serial")
    assert not result.failures and len(list((out / "models").glob("*.safetensors"))) == 2
    by_variant = {record["variant"]: record for record in result.records}
    assert set(by_variant) == {f"gate={kind}" for kind in ("auto", "frozen", "tracking", "level", "mixture")}
    assert {record["study"] for record in result.records} == {"gate"}
    own = next(r for r in SweepFolder(serial).all_records() if r["method"] == "gmm" and r["shift"] == "OPDA")
    copied = by_variant["gate=auto"]
    assert copied["id"] == default.id != own["id"] and copied["seconds"] == own["seconds"]
    assert set(summarise(result.records)["OPDA"]) == set(by_variant)
    # The folder still says what all of its sweeps have had.
    assert len(json.loads((out / "suite.json").read_text())["methods"]) == 3
    assert json.loads((out / "suite.json").read_text())["shifts"] == ["PDA", "OPDA"]


def test_models_of_another_folder_are_not_trained_again(
    serial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftgate.lab.bench.sweep.pretrain", lambda *_, **__: pytest.fail("the models are there"))
    shutil.copytree(serial / "models", tmp_path / "models")
    assert not run_sweep(tiny_plan(), tmp_path, backend="serial").failures
    assert results(tmp_path) == results(serial)


def test_a_source_model_that_is_trained_already(serial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftgate.lab.bench.sweep.pretrain", lambda *_, **__: pytest.fail("the model is there"))
    trained = next(job for job in tiny_plan().models if job.num_classes == 7)
    file = SweepFolder(serial).model_file(trained)
    command = ["bench", str(tiny_file(tmp_path)), "--limit", "2", "--out", str(tmp_path / "out"), "--backend", "serial"]
    done = run(*command, "--model", str(file), "--shifts", "OPDA", "--methods", "gmm")
    assert done.exit_code == 0, done.output
    (record,) = SweepFolder(tmp_path / "out").all_records()
    own = next(r for r in SweepFolder(serial).all_records() if r["method"] == "gmm" and r["shift"] == "OPDA")
    assert record["metrics"] == own["metrics"] and record["protocol"]["model_id"].startswith(file.stem)
    assert "choose --shifts it fits" in refused(*command, "--model", file, "--shifts", "PDA")


def test_classes_by_name(tmp_path: Path) -> None:
    names = {"shared": ["7", "1"], "source_private": ["0"], "target_private": ["3", "9"]}
    plan = make_plan(tiny(shifts=["PDA", "ODA", "OPDA"], methods=["source-only"], classes=names), limit=2)
    assert [str(run.class_split) for run in plan.runs] == ["2/1/0", "2/0/2", "2/1/2"]
    run = plan.runs[1]
    data = run.model.open_data()
    assert data.class_names[:4] == ("7", "1", "3", "9") and plan.runs[0].model.id == plan.runs[2].model.id
    plain = open_cached("digits", None).domain("uci")
    named = data.domain("uci")
    assert [data.class_names[index] for index in named.classes[:50]] == [
        str(int(index)) for index in plain.classes[:50]
    ]
    few = {"shared": ["7", "1"], "source_private": ["0"]}
    rest = make_plan(tiny(shifts=["ODA"], methods=["source-only"], classes=few))
    assert str(rest.runs[0].class_split) == "2/0/7", "without the source's own, which the stream must not bring"
    for classes, message in (
        ({"shared": ["7", "x"], "source_private": ["0"]}, "'x' is none of them"),
        ({"shared": ["7", "7"], "source_private": ["0"]}, "'7' is there twice"),
        ({"shared": ["7"]}, "need source-private classes"),
    ):
        with pytest.raises(DriftgateError, match=message):
            make_plan(tiny(classes=classes))
    command = ["bench", str(tiny_file(tmp_path)), *QUICK, "--dry-run", "--out", tmp_path / "out"]
    told = answer(*command, "--shared", "7,1", "--source-private", "0", "--target-private", "3,9")
    assert "3-classes" in told["jobs"][0]["id"]


def test_a_folder_of_another_suite_is_refused(serial: Path) -> None:
    with pytest.raises(DriftgateError, match="holds suite tiny; name another --out"):
        run_sweep(make_plan(tiny(name="other"), limit=2, quick_training=True), serial, backend="serial")


@pytest.mark.parametrize("broken", ['{"id": "a', "[1, 2]", "", "\0\0"])
def test_a_record_that_cannot_be_read_is_done_again(
    broken: str, copied: Path, serial: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan, folder = tiny_plan(), SweepFolder(copied)
    file = folder.result_file(plan.runs[2])
    file.write_text(broken)
    assert [job.id for job in plan.jobs if not folder.is_done(job)] == [plan.runs[2].id]
    assert len(folder.all_records()) == 5
    assert [file.name in record.getMessage() for record in caplog.records] == [True]  # said once, not at every look
    before = moments(copied)
    result = run_sweep(plan, copied, backend="serial")
    assert not result.failures and results(copied) == results(serial)
    assert [name for name, moment in moments(copied).items() if before[name] != moment] == [file.name]


def test_half_written_files_are_no_records(serial: Path) -> None:
    left = serial / "records" / ".x.json.abc.json"
    left.write_text('{"id": ')
    os.utime(left, (0, 0))
    folder = SweepFolder(serial)
    assert len(folder.all_records()) == 6
    folder.prepare(tiny())
    assert not left.exists()


def test_scores_of_records() -> None:
    record = {"method": "gmm", "variant": None, "shift": "PDA", "score": "accuracy", "metrics": {"accuracy": None}}
    assert score_of(record) is None
    other = {**record, "metrics": {"accuracy": 0.25}}
    third = {**record, "metrics": {"accuracy": 0.75}}
    assert summarise([record])["PDA"]["gmm"] == {"mean": None, "std": None, "runs": 0}
    cell = summarise([record, other, third])["PDA"]["gmm"]
    assert cell["mean"] == 0.5 and cell["runs"] == 2 and cell["std"] == pytest.approx(0.35355339)
