"""A sweep as the terminal shows it: what it would do, what came out. Imported when it is needed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import typer

from driftgate.lab.bench.folder import SweepFolder, read_all
from driftgate.lab.bench.plan import Job, ModelJob, Plan, make_plan, merge_plans
from driftgate.lab.bench.studies import STUDIES, get_study
from driftgate.lab.bench.suite import Suite, builtin_suites, read_suite
from driftgate.lab.bench.sweep import SweepResult, check_backend, default_workers, run_sweep, summarise
from driftgate.lab.cli.console import duration, make_table, note, output, percent, print_json, print_result
from driftgate.lab.cli.experiment import choose_device
from driftgate.lab.cli.options import SweepOptions
from driftgate.lab.files import writable_folder

FAILED = 1


def sweep(suite: Suite, given: SweepOptions, studies: Sequence[str] = ()) -> None:
    """Plan the suite, or studies of it, then show the plan or do it."""
    check_backend(given.backend)
    what: dict[str, Any] = {
        "root": given.root,
        "limit": given.limit,
        "quick_training": given.quick_training,
        "model": given.model,
    }
    varied = [get_study(name) for name in studies] if studies else [None]
    plan = merge_plans([make_plan(suite, study=study, **what) for study in varied])
    folder = SweepFolder(writable_folder(given.out or Path("runs") / suite.name))
    workers = given.workers or default_workers(given.backend)
    folder.check_suite(suite)
    if given.dry_run:
        show_plan(plan, folder, workers, given.as_json)
        return
    result = do_plan(plan, folder, workers, given.backend, str(choose_device(given.device)))
    print_scores(plan, folder, result, given.as_json)
    end_with_failures(folder, result)


def do_plan(plan: Plan, folder: SweepFolder, workers: int, backend: str = "loky", device: str = "cpu") -> SweepResult:
    """Do all jobs, with a line on stderr for each that ends."""
    result = run_sweep(plan, folder.path, workers=workers, backend=backend, device=device, say=note)
    note(
        f"{len(result.records)} of {len(plan.runs)} runs are done, {result.seconds:.0f} s this time; "
        f"the records are in {folder.records}."
    )
    return result


def end_with_failures(folder: SweepFolder, result: SweepResult) -> None:
    """Name what failed, if anything did, and end the command with exit code 1."""
    for job_id, error in result.failures.items():
        note(f"Failed: {job_id}: {error}")
    if result.failures:
        note(f"{len(result.failures)} failed; tracebacks are in {folder.failures}, the same command tries them again.")
        raise typer.Exit(FAILED)


def print_scores(plan: Plan, folder: SweepFolder, result: SweepResult, as_json: bool) -> None:
    """Mean scores of the suite, or of each study: a row a method or variant, a column a shift."""
    studies = dict.fromkeys(job.study for job in plan.runs)
    scores = {study: summarise([row for row in result.records if row["study"] == study]) for study in studies}
    if as_json:
        facts = {"suite": plan.suite.name, "out": str(folder.path), "runs": len(plan.runs), "done": len(result.records)}
        named = {study or "suite": found for study, found in scores.items()}
        print_json({**facts, "failed": result.failures, "seconds": result.seconds, "scores": named})
        return
    none: dict[str, Any] = {"mean": None, "std": None, "runs": 0}
    for study, found in scores.items():
        rows = []
        for name in dict.fromkeys(name for cells in found.values() for name in cells):
            cells = [found[shift].get(name, none) for shift in found]
            spreads = ("" if cell["std"] is None else f" ±{100 * cell['std']:4.1f}" for cell in cells)
            texts = [percent(cell["mean"]) + spread for cell, spread in zip(cells, spreads, strict=True)]
            rows.append((name, *texts, str(sum(cell["runs"] for cell in cells))))
        title = f"{plan.suite.title or plan.suite.name}{'' if study is None else f': {study}'}"
        output.print(
            f"{title}; accuracy for PDA, H-score otherwise, mean ± standard deviation over pairs and seeds, %",
            markup=False,
        )
        output.print(make_table("", ("", *found, "runs"), rows, left=("",)))


def show_plan(plan: Plan, folder: SweepFolder, workers: int, as_json: bool) -> None:
    """All jobs, done or not, and how long they would take by what such jobs took in this folder."""
    took, batches = seconds_known(folder), {job.id: job.num_batches for job in plan.runs}
    rows: list[dict[str, Any]] = []
    for job in plan.jobs:
        done, each = folder.is_done(job), took.get(_kind(job))
        seconds = 0.0 if done else fmean(each) * batches.get(job.id, 1) if each else None
        what = "model" if isinstance(job, ModelJob) else "run"
        facts = {"id": job.id, "what": what, "label": job.label, "done": done, "batches": batches.get(job.id)}
        rows.append({**facts, "seconds": seconds})
    known = [row["seconds"] for row in rows if row["seconds"] is not None]
    total = sum(known) / workers if len(known) == len(rows) else None
    if as_json:
        print_json({"suite": plan.suite.name, "workers": workers, "estimated_seconds": total, "jobs": rows})
        return
    shown = [
        (row["id"], row["label"], str(row["batches"] or ""), "done" if row["done"] else _time(row["seconds"]))
        for row in rows
    ]
    output.print(make_table("Source models, then runs", ("id", "what", "batches", "time"), shown, left=("id", "what")))
    output.print(
        f"{sum(not row['done'] for row in rows)} of {len(rows)} jobs are to do; they would take {_time(total)} with "
        f"{workers} workers. A ? is a method that has not run in this folder. Nothing was written.",
        markup=False,
    )


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else duration(seconds)


def _kind(job: Job) -> Hashable:
    """What decides how long a job takes for a batch."""
    return None if isinstance(job, ModelJob) else (job.method, job.batch_size)


def seconds_known(folder: SweepFolder) -> dict[Hashable, list[float]]:
    """Method and batch size -> seconds a batch of each run in the folder; None -> seconds of each training."""
    found: dict[Hashable, list[float]] = {}
    for record in folder.all_records():
        with suppress(KeyError):  # of a version that did not tell
            protocol = record["protocol"]
            seconds = record["wall_seconds"] / protocol["batches"]
            found.setdefault((record["method"], protocol["batch_size"]), []).append(seconds)
    for facts in read_all(folder.models):
        with suppress(KeyError):
            found.setdefault(None, []).append(facts["seconds"])
    return found


def list_suites(as_json: bool) -> None:
    """The suites that come with the package."""
    suites = [read_suite(name) for name in builtin_suites()]
    counted = ("pairs", "methods", "seeds")
    rows = [(suite.name, suite.title, *(str(len(getattr(suite, key))) for key in counted)) for suite in suites]
    table = make_table("Suites", ("name", "title", *counted), rows, left=("name", "title"))
    print_result([suite.model_dump(mode="json") for suite in suites], table, as_json)


def list_studies(as_json: bool) -> None:
    """The studies of ``ablate``."""
    heads, rows = ("name", "what is varied", "variants"), []
    for study in STUDIES.values():
        names = ", ".join(variant.name.removeprefix(f"{study.name}=") for variant in study.variants)
        rows.append((study.name, study.title, names))
    table = make_table("Studies", heads, rows, left=heads, widths={"variants": None})
    print_result([study.model_dump(mode="json") for study in STUDIES.values()], table, as_json)
