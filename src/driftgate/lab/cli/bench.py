"""``driftgate bench`` and ``driftgate ablate``: sweeps over suites."""

from __future__ import annotations

from typing import Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app


@options.command(
    app, epilog="Example: [bold]driftgate bench digits --methods source-only,gmm --seeds 3 --out runs/digits[/bold]"
)
def bench(
    suite: Annotated[
        str | None, typer.Argument(help="Name of a suite, or the path of your own (YAML); without it, they are listed.")
    ] = None,
    *,
    changed: options.SuiteOptions,
    sweep: options.SweepOptions,
) -> None:
    """Run a benchmark: every method over every stream of a suite, in parallel.

    Finished runs are never done again: stop it when you like and start it again. Several may work on one folder. A run
    that fails is reported and stops no other; the exit code is then 1.
    """
    from driftgate.lab.cli import sweeping

    if suite is None:
        sweeping.list_suites(sweep.as_json)
    else:
        sweeping.sweep(sweep.select(suite, changed.methods).changed(**changed.changes()), sweep)


@options.command(app, epilog="Example: [bold]driftgate ablate decay --suite digits --shifts OPDA --seeds 2[/bold]")
def ablate(
    study: Annotated[
        str | None, typer.Argument(help="Name of a study, or several separated by commas; without it, they are listed.")
    ] = None,
    *,
    suite: Annotated[str, typer.Option(help="Name of a suite, or the path of your own (YAML).")] = "digits",
    sweep: options.SweepOptions,
) -> None:
    """Vary one thing of the method over a suite: the supplement's studies, and what the paper leaves open.

    Everything else is as the suite has it, and as --set says. Source models and results are shared with bench.
    """
    from driftgate.lab.cli import sweeping

    if study is None:
        sweeping.list_studies(sweep.as_json)
    else:
        sweeping.sweep(sweep.select(suite), sweep, options.names_in(study, "ablate"))
