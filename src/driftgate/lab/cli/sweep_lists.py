"""What ``driftgate bench`` and ``driftgate ablate`` would do: suites, studies, and the jobs of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftgate.lab.cli.console import duration, make_table, output, print_json, progress_bars

if TYPE_CHECKING:
    from driftgate.lab.bench.estimate import Expected
    from driftgate.lab.bench.plan import Plan


def show_plan(plan: Plan, folder: Any, workers: int, as_json: bool) -> None:
    """All jobs, done or not, and how long they would take."""
    from driftgate.lab.bench.estimate import estimate_plan, total_seconds
    from driftgate.lab.bench.plan import ModelJob

    with progress_bars() as report:
        expected = estimate_plan(plan, folder, report)
    seconds = total_seconds(expected, workers)
    if as_json:
        rows = [
            {
                "id": item.job.id,
                "what": "model" if isinstance(item.job, ModelJob) else "run",
                "label": item.job.label,
                "done": item.done,
                "batches": item.batches,
                "seconds": item.seconds,
            }
            for item in expected
        ]
        print_json({"suite": plan.suite.name, "workers": workers, "estimated_seconds": seconds, "jobs": rows})
        return
    output.print(_job_table(expected))
    open_jobs = sum(not item.done for item in expected)
    told = "an unknown time" if seconds is None else f"about {duration(seconds)}"
    output.print(
        f"{open_jobs} of {len(expected)} jobs are to do; they would take {told} with {workers} workers. "
        "Nothing was written.",
        markup=False,
    )


def _job_table(expected: list[Expected]) -> Any:
    table = make_table("Source models, then runs", ("id", "what", "batches", "time"), left=("id", "what"))
    for item in expected:
        told = "done" if item.done else "?" if item.seconds is None else duration(item.seconds)
        table.add_row(item.job.id, item.job.label, "" if item.batches is None else str(item.batches), told)
    return table


def list_suites(as_json: bool) -> None:
    """The suites that come with the package."""
    from driftgate.lab.bench.suite import builtin_suites, read_suite

    suites = [read_suite(name) for name in builtin_suites()]
    if as_json:
        print_json([suite.model_dump(mode="json") for suite in suites])
        return
    table = make_table("Suites", ("name", "title", "pairs", "methods", "seeds"), left=("name", "title"))
    for suite in suites:
        table.add_row(suite.name, suite.title, str(len(suite.pairs)), str(len(suite.methods)), str(len(suite.seeds)))
    output.print(table)


def list_studies(as_json: bool) -> None:
    """The studies of ``ablate``."""
    from driftgate.lab.bench.ablations import STUDIES

    if as_json:
        print_json([study.model_dump(mode="json") for study in STUDIES.values()])
        return
    table = make_table("Studies", ("name", "what is varied", "variants"), left=("name", "what is varied", "variants"))
    table.columns[2].no_wrap = False
    for study in STUDIES.values():
        names = ", ".join(variant.name.removeprefix(f"{study.name}=") for variant in study.variants)
        table.add_row(study.name, study.title, names)
    output.print(table)
