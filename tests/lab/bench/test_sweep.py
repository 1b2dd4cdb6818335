from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
from synthetic_runs import tiny_suite
from typer.testing import CliRunner

from driftgate.lab.bench import sweep as sweep_module
from driftgate.lab.bench.estimate import Watcher, estimate_plan, makespan, total_seconds, work_units
from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.parts import get_study
from driftgate.lab.bench.plan import Job, Plan, RunJob, make_plan
from driftgate.lab.bench.suite import Suite, read_suite
from driftgate.lab.bench.sweep import Sweep, run_sweep, score_of, summarise, work
from driftgate.lab.cli import app
from driftgate.types import DriftgateError

SOURCE = Path(__file__).parents[3] / "src"
QUICK = ["--limit", "2", "--quick-training"]
OF_THE_MACHINE = ("seconds", "wall_seconds", "peak_memory_bytes", "versions")
STARTS_PROCESSES = pytest.mark.timeout(900)
"""Each process imports torch, which takes a while on a busy machine."""

NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")

KEYS = {"id", "suite", "source", "target", "shift", "seed", "study", "variant", "method", "settings", "model"}


def tiny(**changes: Any) -> Suite:
    """Two short streams."""
    more = {"shifts": ["PDA", "OPDA"], "methods": ["source-only", "bn-stats", "gmm"], "training": {"held_out": 0.1}}
    return tiny_suite(**{**more, **changes})


def tiny_plan(**changes: Any) -> Plan:
    return make_plan(tiny(**changes), limit=2, quick_training=True)


def tiny_file(folder: Path, **changes: Any) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(json.dumps(tiny(**changes).model_dump(mode="json")))  # YAML holds JSON
    return file


def results(out: Path) -> dict[str, dict[str, Any]]:
    """What the records say, without what belongs to the machine: time, memory, versions."""
    found = {}
    for record in SweepFolder(out).all_records():
        found[record["id"]] = {key: value for key, value in record.items() if key not in OF_THE_MACHINE}
    return found


def moments(out: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in (out / "records").glob("*.json")}


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the command in a process of its own, as a user does; what still runs at the end of the test is killed."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "driftgate", *map(str, arguments)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition: Any, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that was killed but not yet waited for still answers.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True).stdout
    return "Z" not in state


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny sweep, done in this process."""
    out = tmp_path_factory.mktemp("serial")
    result = run_sweep(tiny_plan(), out, backend="serial")
    assert not result.failures
    return out


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


@STARTS_PROCESSES
def test_loky_gives_the_same_and_nothing_is_done_twice(serial: Path, tmp_path: Path) -> None:
    result = run_sweep(tiny_plan(), tmp_path, workers=2)
    assert not result.failures and len(result.records) == 6
    assert results(tmp_path) == results(serial)
    assert summarise(result.records) == summarise(SweepFolder(serial).all_records())
    before = moments(tmp_path)
    again = run_sweep(tiny_plan(), tmp_path, workers=2)
    assert moments(tmp_path) == before and len(again.records) == 6 and again.seconds < result.seconds


@NEEDS_RAY
@STARTS_PROCESSES
def test_ray_gives_the_same(serial: Path, tmp_path: Path) -> None:
    result = run_sweep(tiny_plan(), tmp_path, workers=2, backend="ray")
    assert not result.failures
    assert results(tmp_path) == results(serial)


@NEEDS_RAY
@STARTS_PROCESSES
def test_ray_works_on_all_cores_of_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    sweep_module.check_backend("ray")
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 40.0})
    command = ["bench", str(tiny_file(tmp_path)), *QUICK, "--out", str(tmp_path / "out"), "--dry-run", "--json"]
    told = CliRunner().invoke(app, [*command, "--backend", "ray"])
    assert json.loads(told.stdout)["workers"] == 40
    assert json.loads(CliRunner().invoke(app, [*command, "--backend", "ray", "--workers", "3"]).stdout)["workers"] == 3
    assert json.loads(CliRunner().invoke(app, command).stdout)["workers"] == joblib.cpu_count()


def test_ray_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    with pytest.raises(DriftgateError, match=r"pip install 'driftgate\[ray\]'"):
        run_sweep(tiny_plan(), tmp_path, backend="ray")
    with pytest.raises(DriftgateError, match="out of loky, ray, serial"):
        run_sweep(tiny_plan(), tmp_path, backend="slurm")


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
    assert Watcher(plan, folder, workers=1).look().models_done == 2
    result = run_sweep(plan, copied, backend="serial")
    assert not result.failures and len(list((copied / "models").glob("*.safetensors"))) == 2
    assert all(record["protocol"]["model_id"].startswith("rendered-PDA-") for record in result.records)


def test_failures_are_reported_and_stop_nothing(tmp_path: Path) -> None:
    methods = ["source-only", {"name": "gmm", "settings": {"weight_decay": 1e30}}, "bn-stats"]
    file, out = tiny_file(tmp_path, shifts=["OPDA"], methods=methods), tmp_path / "out"
    done = CliRunner().invoke(app, ["bench", str(file), *QUICK, "--out", str(out), "--workers", "2"])
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

    wrong, other = ({"name": name, "settings": {"weight_decay": 1e30}} for name in ("gmm", "tent"))
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


@STARTS_PROCESSES
def test_killed_and_started_again(serial: Path, tmp_path: Path, start: Start) -> None:
    """SIGKILL in the middle: what was finished stays untouched, the rest is done, the results are the same."""
    file, out = tiny_file(tmp_path, seeds=2), tmp_path / "out"
    command = ["bench", file, *QUICK, "--out", out, "--workers", "2"]
    killed = start(*command)
    records = out / "records"
    wait_for(lambda: killed.poll() is not None or (records.is_dir() and len(moments(out)) >= 3))
    wait_for(lambda: SweepFolder(out).reports())
    workers = {report["pid"] for report in SweepFolder(out).reports()}
    killed.kill()
    assert killed.wait() == -signal.SIGKILL and killed.pid not in workers
    # The workers notice that nobody wants their results any more, and end too.
    wait_for(lambda: not any(map(is_there, workers)), 60)
    before = moments(out)
    total = len(tiny_plan(seeds=2).runs)
    assert 3 <= len(before) < total
    again = start(*command)
    output, told = again.communicate(timeout=400)
    assert again.returncode == 0, output + told
    after = moments(out)
    assert len(after) == total and {name: after[name] for name in before} == before
    assert list((out / "progress").glob("*")) == []
    found = results(out)
    assert {name: found[name] for name in results(serial)} == results(serial)


@STARTS_PROCESSES
def test_two_sweeps_on_one_folder(serial: Path, tmp_path: Path, start: Start) -> None:
    file, out = tiny_file(tmp_path), tmp_path / "out"
    both = [start("bench", file, *QUICK, "--out", out, "--workers", "2") for _ in range(2)]
    for process in both:
        output, told = process.communicate(timeout=800)
        assert process.returncode == 0, output + told
        assert "6 of 6 runs are done" in told
    assert results(out) == results(serial)
    assert list((out / "failures").iterdir()) == list((out / "progress").iterdir()) == []


def test_a_job_in_other_hands_is_left_alone(tmp_path: Path) -> None:
    plan = tiny_plan(shifts=["PDA"], methods=["source-only"])
    folder, sweep = SweepFolder(tmp_path), Sweep(tmp_path, time.time())
    folder.prepare(plan.suite)
    model, run = plan.models[0], plan.runs[0]
    work(run, sweep)  # its model is not there yet
    assert folder.state(run, sweep.since) == "open"
    with folder.lock(model.digest) as mine:
        assert mine
        work(model, sweep)
    assert folder.state(model, sweep.since) == "open"
    work(model, sweep)
    work(run, sweep)
    assert [folder.state(job, sweep.since) for job in plan.jobs] == ["done", "done"]


def test_a_sweep_waits_for_what_others_are_doing(tmp_path: Path) -> None:
    plan = tiny_plan(shifts=["PDA"], methods=["source-only"])
    folder = SweepFolder(tmp_path)
    folder.prepare(plan.suite)
    with folder.lock(plan.models[0].digest):
        waiting = threading.Thread(target=run_sweep, args=(plan, tmp_path), kwargs={"backend": "serial"})
        waiting.start()
        waiting.join(timeout=1.0)
        assert waiting.is_alive() and not folder.result_file(plan.runs[0]).exists()
    waiting.join(timeout=600)
    assert folder.result_file(plan.runs[0]).exists()


@STARTS_PROCESSES
def test_a_killed_worker_costs_only_its_own_run(serial: Path, tmp_path: Path) -> None:
    folder, killed = SweepFolder(tmp_path), []

    def kill_one() -> None:
        while not killed:
            for report in folder.reports() if folder.progress.is_dir() else []:
                if report["pid"] != os.getpid():
                    killed.append(report["pid"])
                    os.kill(report["pid"], signal.SIGKILL)
                    return
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    result = run_sweep(tiny_plan(), tmp_path, workers=2)
    killer.join()
    assert killed and not result.failures and results(tmp_path) == results(serial)


@STARTS_PROCESSES
@pytest.mark.parametrize("backend", ["loky", pytest.param("ray", marks=NEEDS_RAY)])
def test_a_run_that_kills_its_process_fails_alone(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_myself(job: Job, sweep: Sweep) -> None:
        """A run that takes its process with it; defined here, for a worker cannot import this file."""
        if isinstance(job, RunJob) and job.method == "bn-stats":
            os.kill(os.getpid(), signal.SIGKILL)
        work(job, sweep)

    monkeypatch.setattr(sweep_module, "work", kill_myself)
    plan = tiny_plan(shifts=["PDA"])
    result = run_sweep(plan, tmp_path, workers=2, backend=backend)
    (name,) = result.failures
    assert "bn-stats" in name and "died twice" in result.failures[name]
    assert {record["method"] for record in result.records} == {"source-only", "gmm"}


def test_an_ablation_shares_models_and_runs_with_the_suite(tmp_path: Path, serial: Path) -> None:
    shutil.copytree(serial, tmp_path / "out")
    out = tmp_path / "out"
    suite = tiny(shifts=["OPDA"])
    plan = make_plan(suite, limit=2, quick_training=True, study=get_study("gate"))
    default = next(job for job in plan.runs if job.variant == "gate=tracking")
    result = run_sweep(plan, out, backend="serial")
    assert not result.failures and len(list((out / "models").glob("*.safetensors"))) == 2
    by_variant = {record["variant"]: record for record in result.records}
    assert set(by_variant) == {"gate=frozen", "gate=tracking", "gate=mixture"}
    assert {record["study"] for record in result.records} == {"gate"}
    own = next(r for r in SweepFolder(serial).all_records() if r["method"] == "gmm" and r["shift"] == "OPDA")
    copied = by_variant["gate=tracking"]
    assert copied["id"] == default.id != own["id"] and copied["seconds"] == own["seconds"]
    assert set(summarise(result.records)["OPDA"]) == set(by_variant)
    # The folder still says what all of its sweeps have had.
    assert len(json.loads((out / "suite.json").read_text())["methods"]) == 3
    assert json.loads((out / "suite.json").read_text())["shifts"] == ["PDA", "OPDA"]


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
    told = CliRunner().invoke(app, [*command, "--json"])
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
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
    done = CliRunner().invoke(app, [*command, "--model", str(file), "--shifts", "OPDA", "--methods", "gmm"])
    assert done.exit_code == 0, done.output
    (record,) = SweepFolder(tmp_path / "out").all_records()
    own = next(r for r in SweepFolder(serial).all_records() if r["method"] == "gmm" and r["shift"] == "OPDA")
    assert record["metrics"] == own["metrics"] and record["protocol"]["model_id"].startswith(file.stem)
    wrong = CliRunner().invoke(app, [*command, "--model", str(file), "--shifts", "PDA"])
    assert wrong.exit_code == 2 and "choose --shifts it fits" in wrong.stderr


def test_classes_by_name(tmp_path: Path) -> None:
    names = {"shared": ["7", "1"], "source_private": ["0"], "target_private": ["3", "9"]}
    plan = make_plan(tiny(shifts=["PDA", "ODA", "OPDA"], methods=["source-only"], classes=names), limit=2)
    assert [str(run.class_split) for run in plan.runs] == ["2/1/0", "2/0/2", "2/1/2"]
    run = plan.runs[1]
    data = run.model.open_data()
    assert data.class_names[:4] == ("7", "1", "3", "9") and plan.runs[0].model.id == plan.runs[2].model.id
    plain = run.model.model_copy(update={"classes": ()}).open_data().domain("uci")
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
    command = ["bench", str(tiny_file(tmp_path)), *QUICK, "--dry-run", "--json", "--out", str(tmp_path / "out")]
    told = CliRunner().invoke(app, [*command, "--shared", "7,1", "--source-private", "0", "--target-private", "3,9"])
    assert told.exit_code == 0 and "3-classes" in json.loads(told.stdout)["jobs"][0]["id"], told.output


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
        command = ["bench", str(file), "--limit", "2", "--out", str(tmp_path / "out"), "--dry-run", "--json", *option]
        told = json.loads(CliRunner().invoke(app, command).stdout)
        expected = make_plan(tiny(training={"held_out": 0.1, "epochs": 3}), limit=2)
        assert {job["id"] for job in told["jobs"]} == {job.id for job in expected.jobs}
    assert {job.training["epochs"] for job in expected.models} == {3}


def test_the_commands(tmp_path: Path, serial: Path) -> None:
    file = tiny_file(tmp_path)
    command = ["bench", str(file), *QUICK, "--out", str(serial), "--backend", "serial"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0 and all(word in shown.stdout for word in ("source-only", "gmm", "PDA", "OPDA"))
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (document["runs"], document["done"], document["failed"]) == (6, 6, {})
    assert document["scores"]["suite"] == summarise(SweepFolder(serial).all_records())
    study = ["ablate", "gate,decay", "--suite", str(file), "--shifts", "PDA", *QUICK, "--dry-run", "--json"]
    told = json.loads(CliRunner().invoke(app, [*study, "--out", str(serial)]).stdout)
    assert sum(job["what"] == "run" for job in told["jobs"]) == 9
    assert "office-home" in CliRunner().invoke(app, ["bench"]).stdout
    assert "reduced_dim" in CliRunner().invoke(app, ["ablate"]).stdout
    assert len(json.loads(CliRunner().invoke(app, ["bench", "--json"]).stdout)) == 9
    assert len(json.loads(CliRunner().invoke(app, ["ablate", "--json"]).stdout)) == 13


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
        (
            ["bench", "digits", "--backbone", "foo", "--dry-run"],
            "Expected a backbone out of cnn, lite0, resnet50, resnet50-v1",
        ),
        (["bench", "digits", "--methods", "gmm", "--set", "gmm.adapt_layers=nolayer"], "'nolayer'; layers of this"),
        (["ablate", "decay", "--set", "tnt.lr=1"], "add it to the suite's own methods"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2, result.output
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_dry_run_refuses_the_folder_of_another_suite(serial: Path, tmp_path: Path) -> None:
    file = tiny_file(tmp_path, name="other")
    told = CliRunner().invoke(app, ["bench", str(file), *QUICK, "--out", str(serial), "--dry-run"])
    assert told.exit_code == 2 and "holds suite tiny; name another --out" in told.stderr, told.output


def test_a_folder_of_another_suite_is_refused(serial: Path) -> None:
    with pytest.raises(DriftgateError, match="holds suite tiny; name another --out"):
        run_sweep(make_plan(tiny(name="other"), limit=2, quick_training=True), serial, backend="serial")


@pytest.fixture
def copied(serial: Path, tmp_path: Path) -> Path:
    """The tiny sweep to be broken."""
    return Path(shutil.copytree(serial, tmp_path / "copied"))


@pytest.mark.parametrize("broken", ['{"id": "a', "[1, 2]", "", "\0\0"])
def test_a_record_that_cannot_be_read_is_done_again(
    broken: str, copied: Path, serial: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan, folder = tiny_plan(), SweepFolder(copied)
    file = folder.result_file(plan.runs[2])
    file.write_text(broken)
    expected = estimate_plan(plan, folder)
    assert [item.job.id for item in expected if not item.done] == [plan.runs[2].id]
    assert len(folder.all_records()) == 5 and Watcher(plan, folder, workers=1).look().done == 5
    assert [file.name in record.getMessage() for record in caplog.records] == [True]  # said once, not at every look
    before = moments(copied)
    result = run_sweep(plan, copied, backend="serial")
    assert not result.failures and results(copied) == results(serial)
    assert [name for name, moment in moments(copied).items() if before[name] != moment] == [file.name]


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
