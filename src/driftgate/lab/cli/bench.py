"""``driftgate bench`` and ``driftgate ablate``: sweeps over suites."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import duration, errors, make_table, note, output, percent, print_json
from driftgate.lab.cli.sweep_lists import list_studies, list_suites, show_plan

if TYPE_CHECKING:
    from rich.console import RenderableType

    from driftgate.lab.bench.plan import Plan
    from driftgate.lab.bench.runner import SweepResult
    from driftgate.lab.bench.watch import Snapshot, Watcher

FAILED = 1
LOOK_SECONDS = 0.5

Methods = Annotated[
    str | None, typer.Option("--methods", help="Methods, separated by commas; the suite's if not given.")
]
Shifts = Annotated[str | None, typer.Option("--shifts", help="Category shifts: PDA,ODA,OPDA.")]
Pairs = Annotated[
    str | None, typer.Option("--pairs", help="Pairs like photo->cartoon+sketch, or sources; separated by commas.")
]
Seeds = Annotated[str | None, typer.Option("--seeds", help="How many seeds (3), or which ones (0,4 or 4,).")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting as METHOD.KEY=VALUE, like gmm.lr=0.01 or gmm.preset=paper, or of source training, like "
        "training.backbone_norm=running; repeat it.",
    ),
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", min=1, help="Of source training; short for --set training.epochs=N.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many batches of each stream.")]
Quick = Annotated[
    bool, typer.Option("--quick-training", help="Source models from one epoch on 40 images a class: a rehearsal.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of results; runs/<suite> if not given.")]
Jobs = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Runs at a time, one core each; as many as there are cores if not given."),
]
BackendName = Annotated[
    str, typer.Option("--backend", help="loky (this machine), ray (an existing cluster) or serial (this process).")
]
Backbone = Annotated[str | None, typer.Option("--backbone", help="Another backbone than the suite's: cnn, lite0 ...")]
Weights = Annotated[
    str | None, typer.Option("--weights", help="File of pretrained weights of the backbone, or none for random ones.")
]
InputSize = Annotated[int | None, typer.Option("--input-size", min=8, help="Side of the pictures.")]
Order = Annotated[
    str | None, typer.Option("--order", help="Of the streams: shuffled, or dirichlet for classes that come together.")
]
Concentration = Annotated[
    float | None, typer.Option("--concentration", help="Of the Dirichlet order; small = one class at a time.")
]
Arrangement = Annotated[
    str | None, typer.Option("--arrangement", help="Several targets mixed, or continual: one after another.")
]
Repeat = Annotated[
    int | None, typer.Option("--repeat", min=1, help="Play each stream so many times; continual domains come back.")
]
UnknownShares = Annotated[
    str | None,
    typer.Option(
        "--unknown-share",
        help="Streams with these shares of unknown samples: 0,0.1,...,0.9; 0->0.8 changes along the stream.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs and tell how long they would take.")]


@app.command(
    epilog="Example: [bold]driftgate bench digits --methods source-only,gmm --seeds 3 --out runs/digits[/bold]"
)
def bench(
    suite: Annotated[
        str | None, typer.Argument(help="Name of a suite, or the path of your own (YAML); without it, they are listed.")
    ] = None,
    *,
    methods: Methods = None,
    shifts: Shifts = None,
    pairs: Pairs = None,
    seeds: Seeds = None,
    settings: Settings = None,
    epochs: Epochs = None,
    limit: Limit = None,
    quick_training: Quick = False,
    root: options.Root = None,
    out: Out = None,
    workers: Jobs = None,
    backend: BackendName = "loky",
    device: options.Device = "auto",
    backbone: Backbone = None,
    weights: Weights = None,
    input_size: InputSize = None,
    order: Order = None,
    concentration: Concentration = None,
    arrangement: Arrangement = None,
    repeat: Repeat = None,
    unknown_share: UnknownShares = None,
    imports: options.Imports = None,
    dry_run: DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a benchmark: every method over every stream of a suite, in parallel.

    Finished runs are never done again: stop it when you like and start it again. Several may work on one folder. A run
    that fails is reported and stops no other; the exit code is then 1.
    """
    if suite is None:
        list_suites(as_json)
        return
    from driftgate.plugins import import_module

    for module in imports or []:
        import_module(module)
    _sweep(
        suite,
        None,
        methods=methods,
        shifts=shifts,
        pairs=pairs,
        seeds=seeds,
        settings=[*(settings or []), *([] if epochs is None else [f"training.epochs={epochs}"])],
        limit=limit,
        quick_training=quick_training,
        root=root,
        out=out,
        workers=workers,
        backend=backend,
        device=device,
        network=(backbone, weights, input_size),
        streams={
            "order": order,
            "concentration": concentration,
            "arrangement": arrangement,
            "repeat": repeat,
            "unknown_shares": unknown_share,
        },
        dry_run=dry_run,
        as_json=as_json,
    )


@app.command(epilog="Example: [bold]driftgate ablate decay --suite digits --shifts OPDA --seeds 2[/bold]")
def ablate(
    study: Annotated[
        str | None, typer.Argument(help="Name of a study, or several separated by commas; without it, they are listed.")
    ] = None,
    *,
    suite: Annotated[str, typer.Option("--suite", help="Name of a suite, or the path of your own (YAML).")] = "digits",
    shifts: Shifts = None,
    pairs: Pairs = None,
    seeds: Seeds = None,
    settings: Settings = None,
    epochs: Epochs = None,
    limit: Limit = None,
    quick_training: Quick = False,
    root: options.Root = None,
    out: Out = None,
    workers: Jobs = None,
    backend: BackendName = "loky",
    device: options.Device = "auto",
    backbone: Backbone = None,
    weights: Weights = None,
    input_size: InputSize = None,
    dry_run: DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Vary one thing of the method over a suite: the supplement's studies, and what the paper leaves open.

    Everything else is as the suite has it, and as --set says. Source models and results are shared with bench.
    """
    if study is None:
        list_studies(as_json)
        return
    _sweep(
        suite,
        study,
        methods=None,
        shifts=shifts,
        pairs=pairs,
        seeds=seeds,
        settings=[*(settings or []), *([] if epochs is None else [f"training.epochs={epochs}"])],
        limit=limit,
        quick_training=quick_training,
        root=root,
        out=out,
        workers=workers,
        backend=backend,
        device=device,
        network=(backbone, weights, input_size),
        streams={},
        dry_run=dry_run,
        as_json=as_json,
    )


def _sweep(
    name: str,
    study: str | None,
    *,
    methods: str | None,
    shifts: str | None,
    pairs: str | None,
    seeds: str | None,
    settings: list[str],
    limit: int | None,
    quick_training: bool,
    root: Path | None,
    out: Path | None,
    workers: int | None,
    backend: str,
    device: str,
    network: tuple[str | None, str | None, int | None],
    streams: dict[str, Any],
    dry_run: bool,
    as_json: bool,
) -> None:
    from driftgate.lab.bench.ablations import get_study
    from driftgate.lab.bench.folder import SweepFolder
    from driftgate.lab.bench.plan import make_plan, merge_plans
    from driftgate.lab.bench.runner import check_backend, default_workers
    from driftgate.lab.bench.suite import read_suite
    from driftgate.lab.cli.experiment import choose_device, writable_folder

    check_backend(backend)
    suite = read_suite(name).with_backbone(*network)
    suite = suite.select(
        methods=_names(methods, "--methods"),
        shifts=_names(shifts, "--shifts"),
        pairs=_names(pairs, "--pairs"),
        seeds=seeds,
    )
    suite = suite.with_settings(settings).changed(**{key: given for key, given in streams.items() if given is not None})
    studies = [None] if study is None else [get_study(part) for part in _names(study, "ablate")]
    plan = merge_plans(
        [make_plan(suite, root=root, limit=limit, quick_training=quick_training, study=part) for part in studies]
    )
    folder = SweepFolder(writable_folder(out or Path("runs") / suite.name))
    count = workers or default_workers(backend)
    folder.check_suite(suite)
    if dry_run:
        show_plan(plan, folder, count, as_json)
        return
    result = _run(plan, folder, count, backend, str(choose_device(device)))
    if as_json:
        print_json(_result_document(plan, folder.path, result))
    else:
        _print_summary(plan, result)
    note(
        f"{len(result.records)} of {len(plan.runs)} runs are done, {result.seconds:.0f} s this time; "
        f"the records are in {folder.records}."
    )
    if result.failures:
        for job_id, error in result.failures.items():
            errors.print("Failed: ", style="bold red", end="")
            errors.print(f"{job_id}: {error}", markup=False, soft_wrap=True)
        note(f"{len(result.failures)} failed; tracebacks are in {folder.failures}, the same command tries them again.")
        raise typer.Exit(FAILED)


def _names(text: str | None, place: str) -> list[str]:
    """Names with commas between; none if nothing was given."""
    from driftgate.types import DriftgateError

    names = [] if text is None else [part.strip() for part in text.split(",") if part.strip()]
    if text is not None and not names:
        raise DriftgateError(f"Expected names after {place}, with commas between, but got {text!r}; or leave it out.")
    return names


def _run(plan: Plan, folder: Any, workers: int, backend: str, device: str) -> SweepResult:
    from driftgate.lab.bench.runner import run_sweep
    from driftgate.lab.bench.watch import Watcher

    folder.prepare(plan.suite)
    with _shown(Watcher(plan, folder, workers)):
        return run_sweep(plan, folder.path, workers=workers, backend=backend, device=device)


@contextmanager
def _shown(watcher: Watcher) -> Iterator[None]:
    """What is going on, on stderr: a live table, or a line for each job that ends where no terminal is."""
    if errors.is_terminal:
        from rich.live import Live

        with Live(
            get_renderable=lambda: _live_table(watcher.look()), console=errors, refresh_per_second=2, transient=True
        ):
            yield
        return
    stop = threading.Event()

    def tell() -> None:
        while not stop.wait(LOOK_SECONDS):
            _tell(watcher.look())

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        stop.set()
        teller.join()
        _tell(watcher.look())


def _tell(seen: Snapshot) -> None:
    for line in seen.news:
        left = "" if seen.seconds_left is None else f", {duration(seen.seconds_left)} left"
        note(f"[{seen.done}/{seen.total}{left}] {line}")


def _live_table(seen: Snapshot) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

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
        parts.append(_score_table("Scores so far, %", seen.scores))
    return Group(*parts)


def _score_table(title: str, scores: dict[str, dict[str, dict[str, Any]]]) -> Any:
    """A row a method or variant, a column a shift: mean ± standard deviation, and the number of runs."""
    table = make_table(title, ("", *scores, "runs"), left=("",))
    for name in dict.fromkeys(name for cells in scores.values() for name in cells):
        cells = [scores[shift].get(name) for shift in scores]
        texts = [
            "-"
            if cell is None
            else percent(cell["mean"]) + ("" if cell["std"] is None else f" ±{100 * cell['std']:4.1f}")
            for cell in cells
        ]
        table.add_row(name, *texts, str(sum(cell["runs"] for cell in cells if cell is not None)))
    return table


def _print_summary(plan: Plan, result: SweepResult) -> None:
    from driftgate.lab.bench.runner import summarise

    studies = dict.fromkeys(job.study for job in plan.runs)
    for study in studies:
        records = [record for record in result.records if record["study"] == study]
        if records:
            title = f"{plan.suite.title or plan.suite.name}{'' if study is None else f': {study}'}"
            scores = summarise(records)
            output.print(f"{title}; accuracy for PDA, H-score otherwise, %", style="bold", markup=False)
            output.print(_score_table("", scores))
    output.print("Mean ± standard deviation over pairs and seeds.", style="dim")


def _result_document(plan: Plan, path: Path, result: SweepResult) -> dict[str, Any]:
    from driftgate.lab.bench.runner import summarise

    studies = dict.fromkeys(job.study for job in plan.runs)
    scores = {
        "suite" if study is None else study: summarise([row for row in result.records if row["study"] == study])
        for study in studies
    }
    return {
        "suite": plan.suite.name,
        "out": str(path),
        "runs": len(plan.runs),
        "done": len(result.records),
        "failed": result.failures,
        "seconds": result.seconds,
        "scores": scores,
    }
