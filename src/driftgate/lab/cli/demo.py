"""``driftgate demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import note


@app.command(epilog="Example: [bold]driftgate demo --seeds 1 --out runs/demo[/bold]")
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to average over.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the records and the report.")] = Path("runs/demo"),
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many batches of each stream, after a short training: a dry run.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Train on rendered digits, then adapt to a stream of handwritten ones, under PDA, ODA and OPDA.

    Source model, batch-norm statistics and GMM run over the same streams: the suite `demo`, which can be stopped and
    started again. Prints a table, and writes a record of every run and a report. A few minutes on two cores.
    """
    from driftgate.lab.files import writable_folder

    writable_folder(out)  # before anything that takes time, and be it an import

    import joblib

    from driftgate.lab.bench.folder import SweepFolder
    from driftgate.lab.bench.plan import make_plan
    from driftgate.lab.bench.suite import read_suite
    from driftgate.lab.cli.sweeping import do_plan, end_with_failures, print_scores
    from driftgate.lab.report.page import write_report

    suite, folder = read_suite("demo").select(seeds=str(seeds)), SweepFolder(out)
    plan = make_plan(suite, limit=limit, quick_training=limit is not None)
    # A dry run is over before other processes would have started.
    result = do_plan(plan, folder, int(joblib.cpu_count()) if limit is None else 1)
    print_scores(plan, folder, result, as_json)
    end_with_failures(folder, result)
    note(f"The report is {write_report([out], out).page}.")
