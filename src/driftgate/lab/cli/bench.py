"""``driftgate bench`` and ``driftgate ablate``: sweeps over suites."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import refuse
from driftgate.lab.cli.sweeping import do_plan, end_with_failures, list_studies, list_suites, print_scores, show_plan

if TYPE_CHECKING:
    from driftgate.lab.bench.suite import Suite


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What to take of a suite, its source models, and how to run it."""

    shifts: str | None = options.option(None, "Category shifts: PDA,ODA,OPDA.")
    pairs: str | None = options.option(None, "Pairs like photo->cartoon+sketch, or sources; separated by commas.")
    seeds: str | None = options.option(None, "How many seeds (3), or which ones (0,4 or 4,).")
    settings: list[str] | None = options.option(
        None,
        "A setting as METHOD.KEY=VALUE, like gmm.lr=0.01 or gmm.preset=paper, or of source training, like "
        "training.backbone_norm=running; repeat it.",
        "--set",
    )
    epochs: int | None = options.option(None, "Of source training; short for --set training.epochs=N.", min=1)
    limit: int | None = options.option(None, "Only the first so many batches of each stream.", min=1)
    quick_training: bool = options.option(False, "Source models from one epoch on 40 images a class: a rehearsal.")
    root: options.Root = None
    out: Path | None = options.option(None, "Folder of results; runs/<suite> if not given.")
    workers: int | None = options.option(
        None, "Runs at a time, one core each; as many as there are cores if not given.", min=1
    )
    backend: str = options.option("loky", "loky (this machine), ray (an existing cluster) or serial (this process).")
    device: options.Device = "auto"
    backbone: str | None = options.option(None, "Another backbone than the suite's: cnn, lite0 ...")
    weights: options.Weights = None
    input_size: options.InputSize = None
    precision: options.Precision = None
    model: Path | None = options.option(None, "A source model that is trained already, instead of training one.")
    imports: options.Imports = None
    dry_run: bool = options.option(False, "List the runs and tell how long they would take.")
    as_json: options.AsJson = False

    def select(self, suite: str, methods: str | None = None) -> Suite:
        """The suite of that name, narrowed and changed as they say."""
        from driftgate.lab.bench.suite import read_suite
        from driftgate.plugins import import_module

        for module in self.imports or []:
            import_module(module)
        found = read_suite(suite).with_backbone(self.backbone, self.weights, self.input_size)
        given = {"methods": methods, "shifts": self.shifts, "pairs": self.pairs}
        found = found.select(**{key: _names(text, f"--{key}") for key, text in given.items()}, seeds=self.seeds)
        settings = [] if self.epochs is None else [f"training.epochs={self.epochs}"]
        if self.precision is not None:
            places = ["training", *(entry.name for entry in found.methods)]
            settings += [f"{place}.precision={self.precision}" for place in places]
        return found.with_settings([*(self.settings or []), *settings])


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """Other methods, classes and streams than the suite's."""

    methods: str | None = options.option(None, "Methods, separated by commas; the suite's if not given.")
    shared: str | None = options.option(None, "Shared classes by name, separated by commas, instead of a split.")
    source_private: str | None = options.option(None, "With --shared: classes of the source alone.")
    target_private: str | None = options.option(None, "With --shared: unknown classes; all others if not given.")
    order: str | None = options.option(None, "Of the streams: shuffled, or dirichlet for classes that come together.")
    concentration: float | None = options.option(None, "Of the Dirichlet order; small = one class at a time.")
    arrangement: str | None = options.option(None, "Several targets mixed, or continual: one after another.")
    repeat: int | None = options.option(None, "Play each stream so many times; continual domains come back.", min=1)
    unknown_share: str | None = options.option(
        None, "Streams with these shares of unknown samples: 0,0.1,...,0.9; 0->0.8 changes along the stream."
    )

    def changes(self) -> dict[str, Any]:
        """What they change of a suite, by its keys."""
        parts = ("shared", "source_private", "target_private")
        classes = {key: _names(getattr(self, key), f"--{key.replace('_', '-')}") for key in parts}
        changes = {key: getattr(self, key) for key in ("order", "concentration", "arrangement", "repeat")}
        changes |= {"unknown_shares": self.unknown_share, "classes": classes if any(classes.values()) else None}
        return {key: value for key, value in changes.items() if value is not None}


@options.command(
    app, epilog="Example: [bold]driftgate bench digits --methods source-only,gmm --seeds 3 --out runs/digits[/bold]"
)
def bench(
    suite: Annotated[
        str | None, typer.Argument(help="Name of a suite, or the path of your own (YAML); without it, they are listed.")
    ] = None,
    *,
    changed: SuiteOptions,
    sweep: SweepOptions,
) -> None:
    """Run a benchmark: every method over every stream of a suite, in parallel.

    Finished runs are never done again: stop it when you like and start it again. Several may work on one folder. A run
    that fails is reported and stops no other; the exit code is then 1.
    """
    if suite is None:
        list_suites(sweep.as_json)
    else:
        _sweep(sweep.select(suite, changed.methods).changed(**changed.changes()), sweep)


@options.command(app, epilog="Example: [bold]driftgate ablate decay --suite digits --shifts OPDA --seeds 2[/bold]")
def ablate(
    study: Annotated[
        str | None, typer.Argument(help="Name of a study, or several separated by commas; without it, they are listed.")
    ] = None,
    *,
    suite: Annotated[str, typer.Option(help="Name of a suite, or the path of your own (YAML).")] = "digits",
    sweep: SweepOptions,
) -> None:
    """Vary one thing of the method over a suite: the supplement's studies, and what the paper leaves open.

    Everything else is as the suite has it, and as --set says. Source models and results are shared with bench.
    """
    if study is None:
        list_studies(sweep.as_json)
    else:
        _sweep(sweep.select(suite), sweep, _names(study, "ablate"))


def _sweep(suite: Suite, given: SweepOptions, studies: list[str] | None = None) -> None:
    """Plan, then show the plan or do it."""
    from driftgate.lab.bench.folder import SweepFolder
    from driftgate.lab.bench.parts import get_study
    from driftgate.lab.bench.plan import make_plan, merge_plans
    from driftgate.lab.bench.sweep import check_backend, default_workers
    from driftgate.lab.cli.experiment import choose_device
    from driftgate.lab.files import writable_folder

    check_backend(given.backend)
    what: dict[str, Any] = {
        "root": given.root,
        "limit": given.limit,
        "quick_training": given.quick_training,
        "model": given.model,
    }
    varied = [None] if studies is None else [get_study(name) for name in studies]
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


def _names(text: str | None, place: str) -> list[str]:
    """Names with commas between; none if nothing was given."""
    names = [] if text is None else [part.strip() for part in text.split(",") if part.strip()]
    if text is not None and not names:
        refuse(f"Expected names after {place}, with commas between, but got {text!r}; or leave it out.")
    return names
