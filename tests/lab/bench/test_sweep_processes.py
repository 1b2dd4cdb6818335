"""Sweeps in several processes: the same results, whatever is killed, and whoever works on the same folder."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import joblib
import pytest
from lab.bench import sweeps
from lab.cli.commands import answer

from driftgate.lab.bench import sweep as sweep_module
from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.plan import Job, RunJob
from driftgate.lab.bench.sweep import Sweep, run_sweep, summarise, work
from driftgate.types import DriftgateError


@sweeps.STARTS_PROCESSES
def test_loky_gives_the_same_and_nothing_is_done_twice(serial: Path, tmp_path: Path) -> None:
    result = run_sweep(sweeps.tiny_plan(), tmp_path, workers=2)
    assert not result.failures and len(result.records) == 6
    assert sweeps.results(tmp_path) == sweeps.results(serial)
    assert summarise(result.records) == summarise(SweepFolder(serial).all_records())
    before = sweeps.moments(tmp_path)
    again = run_sweep(sweeps.tiny_plan(), tmp_path, workers=2)
    assert sweeps.moments(tmp_path) == before and len(again.records) == 6 and again.seconds < result.seconds


@sweeps.NEEDS_RAY
@sweeps.STARTS_PROCESSES
def test_ray_gives_the_same(serial: Path, tmp_path: Path) -> None:
    result = run_sweep(sweeps.tiny_plan(), tmp_path, workers=2, backend="ray")
    assert not result.failures
    assert sweeps.results(tmp_path) == sweeps.results(serial)


@sweeps.NEEDS_RAY
@sweeps.STARTS_PROCESSES
def test_ray_works_on_all_cores_of_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    sweep_module.check_backend("ray")
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 40.0})
    command = ["bench", str(sweeps.tiny_file(tmp_path)), *sweeps.QUICK, "--out", str(tmp_path / "out"), "--dry-run"]
    assert answer(*command, "--backend", "ray")["workers"] == 40
    assert answer(*command, "--backend", "ray", "--workers", "3")["workers"] == 3
    assert answer(*command)["workers"] == joblib.cpu_count()


def test_ray_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    with pytest.raises(DriftgateError, match=r"pip install 'driftgate\[ray\]'"):
        run_sweep(sweeps.tiny_plan(), tmp_path, backend="ray")
    with pytest.raises(DriftgateError, match="out of loky, ray, serial"):
        run_sweep(sweeps.tiny_plan(), tmp_path, backend="slurm")


@sweeps.STARTS_PROCESSES
def test_killed_and_started_again(serial: Path, tmp_path: Path, start: sweeps.Start) -> None:
    """SIGKILL in the middle: what was finished stays untouched, the rest is done, the results are the same."""
    file, out = sweeps.tiny_file(tmp_path, seeds=2), tmp_path / "out"
    command = ["bench", file, *sweeps.QUICK, "--out", out, "--workers", "2"]
    killed = start(*command)
    records = out / "records"
    sweeps.wait_for(lambda: killed.poll() is not None or (records.is_dir() and len(sweeps.moments(out)) >= 3))
    workers = sweeps.children(killed.pid)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL and workers
    # The workers notice that nobody wants their results any more, and end too.
    sweeps.wait_for(lambda: not any(map(sweeps.is_there, workers)), 60)
    before = sweeps.moments(out)
    total = len(sweeps.tiny_plan(seeds=2).runs)
    assert 3 <= len(before) < total
    again = start(*command)
    output, told = again.communicate(timeout=400)
    assert again.returncode == 0, output + told
    after = sweeps.moments(out)
    assert len(after) == total and {name: after[name] for name in before} == before
    assert list((out / "progress").glob("*")) == []
    found = sweeps.results(out)
    assert {name: found[name] for name in sweeps.results(serial)} == sweeps.results(serial)


@sweeps.STARTS_PROCESSES
def test_two_sweeps_on_one_folder(serial: Path, tmp_path: Path, start: sweeps.Start) -> None:
    file, out = sweeps.tiny_file(tmp_path), tmp_path / "out"
    both = [start("bench", file, *sweeps.QUICK, "--out", out, "--workers", "2") for _ in range(2)]
    for process in both:
        output, told = process.communicate(timeout=800)
        assert process.returncode == 0, output + told
        assert "6 of 6 runs are done" in told
    assert sweeps.results(out) == sweeps.results(serial)
    assert list((out / "failures").iterdir()) == list((out / "progress").iterdir()) == []


def test_a_job_in_other_hands_is_left_alone(tmp_path: Path) -> None:
    plan = sweeps.tiny_plan(shifts=["PDA"], methods=["source-only"])
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
    plan = sweeps.tiny_plan(shifts=["PDA"], methods=["source-only"])
    folder = SweepFolder(tmp_path)
    folder.prepare(plan.suite)
    with folder.lock(plan.models[0].digest):
        waiting = threading.Thread(target=run_sweep, args=(plan, tmp_path), kwargs={"backend": "serial"})
        waiting.start()
        waiting.join(timeout=1.0)
        assert waiting.is_alive() and not folder.result_file(plan.runs[0]).exists()
    waiting.join(timeout=600)
    assert folder.result_file(plan.runs[0]).exists()


@sweeps.STARTS_PROCESSES
def test_a_killed_worker_costs_only_its_own_run(serial: Path, tmp_path: Path) -> None:
    folder, killed = SweepFolder(tmp_path), []

    def kill_one() -> None:
        sweeps.wait_for(lambda: any(folder.models.glob("*.safetensors")))  # a worker has begun
        killed.append(max(sweeps.children(os.getpid())))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    result = run_sweep(sweeps.tiny_plan(), tmp_path, workers=2)
    killer.join()
    assert killed and not result.failures and sweeps.results(tmp_path) == sweeps.results(serial)


@sweeps.STARTS_PROCESSES
@pytest.mark.parametrize("backend", ["loky", pytest.param("ray", marks=sweeps.NEEDS_RAY)])
def test_a_run_that_kills_its_process_fails_alone(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_myself(job: Job, sweep: Sweep, turn: tuple[int, int]) -> None:
        """A run that takes its process with it; defined here, for a worker cannot import this file."""
        if isinstance(job, RunJob) and job.method == "bn-stats":
            os.kill(os.getpid(), signal.SIGKILL)
        work(job, sweep, turn)

    monkeypatch.setattr(sweep_module, "work", kill_myself)
    plan = sweeps.tiny_plan(shifts=["PDA"])
    result = run_sweep(plan, tmp_path, workers=2, backend=backend)
    (name,) = result.failures
    assert "bn-stats" in name and "died twice" in result.failures[name]
    assert {record["method"] for record in result.records} == {"source-only", "gmm"}
