"""A sweep as the terminal shows it: what it would do, what is going on, what came out. Imported when it is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from driftgate.lab.bench.estimate import Snapshot, Watcher, estimate_plan, total_seconds
from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.parts import STUDIES, get_study
from driftgate.lab.bench.plan import ModelJob, Plan, make_plan, merge_plans
from driftgate.lab.bench.suite import Suite, builtin_suites, read_suite
from driftgate.lab.bench.sweep import SweepResult, check_backend, default_workers, run_sweep, summarise
from driftgate.lab.cli import console
from driftgate.lab.cli.console import duration, errors, make_table, note, output, percent
from driftgate.lab.cli.experiment import choose_device
from driftgate.lab.cli.options import SweepOptions
from driftgate.lab.files import writable_folder

FAILED = 1
LOOK_SECONDS = 0.5
LINE_SECONDS = 60.0
"""Between two lines of progress where no terminal is."""


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
    """Do all jobs and show how far they are; a failure is named, and ends the command with exit code 1."""
    folder.prepare(plan.suite)
    with _shown(Watcher(plan, folder, workers)):
        result = run_sweep(plan, folder.path, workers=workers, backend=backend, device=device)
    note(
        f"{len(result.records)} of {len(plan.runs)} runs are done, {result.seconds:.0f} s this time; "
        f"the records are in {folder.records}."
    )
    return result


def end_with_failures(folder: SweepFolder, result: SweepResult) -> None:
    """Name what failed, if anything did."""
    for job_id, error in result.failures.items():
        errors.print("Failed: ", style="bold red", end="")
        errors.print(f"{job_id}: {error}", markup=False, soft_wrap=True)
    if result.failures:
        note(f"{len(result.failures)} failed; tracebacks are in {folder.failures}, the same command tries them again.")
        raise typer.Exit(FAILED)


@contextmanager
def _shown(watcher: Watcher) -> Iterator[None]:
    """What is going on, on stderr: a live table; elsewhere a line for each job that ends, and each minute."""
    if errors.is_terminal:
        with Live(
            get_renderable=lambda: _live_table(watcher.look()), console=errors, refresh_per_second=2, transient=True
        ):
            yield
        return
    stop = threading.Event()

    def print_news() -> None:
        last = time.monotonic()
        while not stop.wait(LOOK_SECONDS):
            seen = watcher.look()
            if seen.news or time.monotonic() - last >= LINE_SECONDS:
                _print_lines(seen)
                last = time.monotonic()

    printer = threading.Thread(target=print_news, daemon=True)
    printer.start()
    try:
        yield
    finally:
        stop.set()
        printer.join()
        seen = watcher.look()
        if seen.news:
            _print_lines(seen)


def _print_lines(seen: Snapshot) -> None:
    """What ended, or else what is going on."""
    left = "" if seen.seconds_left is None else f", {duration(seen.seconds_left)} left"
    doing = "; ".join(f"{report['label']} {report['done']}/{report['total']}" for report in seen.running)
    for line in seen.news or [doing or "waiting for another sweep"]:
        note(f"[{seen.done}/{seen.total}{left}] {line}")


def _live_table(seen: Snapshot) -> RenderableType:
    left = "" if seen.seconds_left is None else f", about {duration(seen.seconds_left)} left"
    failed = f", {seen.failed} failed" if seen.failed else ""
    models = "" if seen.models_done == seen.models else f", {seen.models_done} of {seen.models} source models"
    head = Text(f"{seen.done} of {seen.total} runs{models}{failed}{left}", style="bold")
    bars = Table.grid(padding=(0, 1))
    for report in seen.running:
        bars.add_row(
            report["label"],
            ProgressBar(total=max(report["total"], 1), completed=report["done"], width=24),
            f"{report['done']}/{report['total']}",
            percent(report["score"]) if report["score"] is not None else "",
        )
    parts: list[RenderableType] = [head, bars]
    if seen.scores:
        parts.append(score_table("Scores so far, %", seen.scores))
    return Group(*parts)


def score_table(title: str, scores: dict[str, dict[str, dict[str, Any]]]) -> Any:
    """A row a method or variant, a column a shift: mean ± standard deviation, and the number of runs."""
    rows = []
    for name in dict.fromkeys(name for cells in scores.values() for name in cells):
        cells = [scores[shift].get(name, {"mean": None, "std": None, "runs": 0}) for shift in scores]
        spreads = ("" if cell["std"] is None else f" ±{100 * cell['std']:4.1f}" for cell in cells)
        texts = [percent(cell["mean"]) + spread for cell, spread in zip(cells, spreads, strict=True)]
        rows.append((name, *texts, str(sum(cell["runs"] for cell in cells))))
    return make_table(title, ("", *scores, "runs"), rows, left=("",))


def print_scores(plan: Plan, folder: SweepFolder, result: SweepResult, as_json: bool) -> None:
    """Mean scores of the suite, or of each study."""
    studies = dict.fromkeys(job.study for job in plan.runs)
    scores = {study: summarise([row for row in result.records if row["study"] == study]) for study in studies}
    if as_json:
        facts = {"suite": plan.suite.name, "out": str(folder.path), "runs": len(plan.runs), "done": len(result.records)}
        named = {study or "suite": found for study, found in scores.items()}
        console.print_json({**facts, "failed": result.failures, "seconds": result.seconds, "scores": named})
        return
    for study, found in scores.items():
        if found:
            title = f"{plan.suite.title or plan.suite.name}{'' if study is None else f': {study}'}"
            output.print(f"{title}; accuracy for PDA, H-score otherwise, %", style="bold", markup=False)
            output.print(score_table("", found))
    output.print("Mean ± standard deviation over pairs and seeds.", style="dim")


def show_plan(plan: Plan, folder: SweepFolder, workers: int, as_json: bool) -> None:
    """All jobs, done or not, and how long they would take."""
    with console.progress_bars() as report:
        expected = estimate_plan(plan, folder, report)
    seconds = total_seconds(expected, workers)
    if as_json:
        rows = [
            {
                **{"id": item.job.id, "what": "model" if isinstance(item.job, ModelJob) else "run"},
                **{"label": item.job.label, "done": item.done, "batches": item.batches, "seconds": item.seconds},
            }
            for item in expected
        ]
        console.print_json({"suite": plan.suite.name, "workers": workers, "estimated_seconds": seconds, "jobs": rows})
        return
    times = ["done" if item.done else "?" if item.seconds is None else duration(item.seconds) for item in expected]
    shown = [
        (item.job.id, item.job.label, "" if item.batches is None else str(item.batches), told)
        for item, told in zip(expected, times, strict=True)
    ]
    heads = ("id", "what", "batches", "time")
    output.print(make_table("Source models, then runs", heads, shown, left=("id", "what")))
    open_jobs = sum(not item.done for item in expected)
    told = "an unknown time" if seconds is None else f"about {duration(seconds)}"
    output.print(
        f"{open_jobs} of {len(expected)} jobs are to do; they would take {told} with {workers} workers. "
        "Nothing was written.",
        markup=False,
    )


def list_suites(as_json: bool) -> None:
    """The suites that come with the package."""
    suites = [read_suite(name) for name in builtin_suites()]
    counted = ("pairs", "methods", "seeds")
    rows = [(suite.name, suite.title, *(str(len(getattr(suite, key))) for key in counted)) for suite in suites]
    table = make_table("Suites", ("name", "title", *counted), rows, left=("name", "title"))
    console.print_result([suite.model_dump(mode="json") for suite in suites], table, as_json)


def list_studies(as_json: bool) -> None:
    """The studies of ``ablate``."""
    heads, rows = ("name", "what is varied", "variants"), []
    for study in STUDIES.values():
        names = ", ".join(variant.name.removeprefix(f"{study.name}=") for variant in study.variants)
        rows.append((study.name, study.title, names))
    table = make_table("Studies", heads, rows, left=heads, widths={"variants": None})
    console.print_result([study.model_dump(mode="json") for study in STUDIES.values()], table, as_json)
