"""``driftgate bench`` and ``driftgate ablate``: sweeps over suites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.sweeping import do_plan, end_with_failures, list_studies, list_suites, print_scores, show_plan

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
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="float32 or bfloat16: what source training and every method compute in."),
]
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
Model = Annotated[
    Path | None, typer.Option("--model", help="A source model that is trained already, instead of training one.")
]
Shared = Annotated[
    str | None, typer.Option("--shared", help="Shared classes by name, separated by commas, instead of a split.")
]
SourcePrivate = Annotated[
    str | None, typer.Option("--source-private", help="With --shared: classes of the source alone.")
]
TargetPrivate = Annotated[
    str | None, typer.Option("--target-private", help="With --shared: unknown classes; all others if not given.")
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
    precision: Precision = None,
    model: Model = None,
    shared: Shared = None,
    source_private: SourcePrivate = None,
    target_private: TargetPrivate = None,
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
    _sweep(study=None, **locals())


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
    precision: Precision = None,
    model: Model = None,
    dry_run: DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Vary one thing of the method over a suite: the supplement's studies, and what the paper leaves open.

    Everything else is as the suite has it, and as --set says. Source models and results are shared with bench.
    """
    if study is None:
        list_studies(as_json)
        return
    _sweep(**locals())


def _sweep(*, suite: str, study: str | None, out: Path | None, dry_run: bool, as_json: bool, **given: Any) -> None:
    """What both commands do with their options, whose names ``given`` has."""
    from driftgate.lab.bench.folder import SweepFolder
    from driftgate.lab.bench.plan import make_plan, merge_plans
    from driftgate.lab.bench.studies import get_study
    from driftgate.lab.bench.suite import read_suite
    from driftgate.lab.bench.sweep import check_backend, default_workers
    from driftgate.lab.cli.experiment import choose_device
    from driftgate.lab.files import writable_folder
    from driftgate.plugins import import_module

    for module in given.get("imports") or []:
        import_module(module)
    check_backend(given["backend"])
    chosen = read_suite(suite).with_backbone(given["backbone"], given["weights"], given["input_size"])
    names = {key: _names(given.get(key), f"--{key}") for key in ("methods", "shifts", "pairs")}
    chosen = chosen.select(**names, seeds=given["seeds"])
    epochs = [] if given["epochs"] is None else [f"training.epochs={given['epochs']}"]
    chosen = chosen.with_settings([*(given["settings"] or []), *epochs])
    if given["precision"] is not None:
        chosen = chosen.with_precision(given["precision"])
    streams = {key: given.get(key) for key in ("order", "concentration", "arrangement", "repeat")}
    streams |= {"unknown_shares": given.get("unknown_share"), "classes": _classes(given)}
    chosen = chosen.changed(**{key: value for key, value in streams.items() if value is not None})
    studies = [None] if study is None else [get_study(part) for part in _names(study, "ablate")]
    plan = merge_plans(
        [
            make_plan(
                chosen,
                root=given["root"],
                limit=given["limit"],
                quick_training=given["quick_training"],
                study=part,
                model=given["model"],
            )
            for part in studies
        ]
    )
    folder = SweepFolder(writable_folder(out or Path("runs") / chosen.name))
    workers = given["workers"] or default_workers(given["backend"])
    folder.check_suite(chosen)
    if dry_run:
        show_plan(plan, folder, workers, as_json)
        return
    result = do_plan(plan, folder, workers, given["backend"], str(choose_device(given["device"])))
    print_scores(plan, folder, result, as_json)
    end_with_failures(folder, result)


def _classes(given: dict[str, Any]) -> dict[str, list[str]] | None:
    """The classes by name, if any are given."""
    found = {
        key: _names(given.get(key), f"--{key.replace('_', '-')}")
        for key in ("shared", "source_private", "target_private")
    }
    return found if any(found.values()) else None


def _names(text: str | None, place: str) -> list[str]:
    """Names with commas between; none if nothing was given."""
    from driftgate.types import DriftgateError

    names = [] if text is None else [part.strip() for part in text.split(",") if part.strip()]
    if text is not None and not names:
        raise DriftgateError(f"Expected names after {place}, with commas between, but got {text!r}; or leave it out.")
    return names
