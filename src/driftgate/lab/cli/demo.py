"""``driftgate demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import kibibytes, make_table, note, output, percent, print_json


@app.command(epilog="Example: [bold]driftgate demo --seeds 1 --out runs/demo[/bold]")
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to average over.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for summary.json, records and picture.")] = Path("runs/demo"),
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many batches of each stream, after a short training: a dry run.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Train on rendered digits, then adapt to a stream of handwritten ones, under PDA, ODA and OPDA.

    Source model, batch-norm statistics and GMM run over the same streams: the suite `demo`, which can be stopped and
    started again. Prints a table, and writes summary.json, a record of every run and a picture. A few minutes on two
    cores.
    """
    from driftgate.lab.files import writable_folder

    writable_folder(out)  # before anything that takes time, and be it an import

    import joblib

    from driftgate.lab.bench.folder import SweepFolder
    from driftgate.lab.cli.sweeping import do_plan, end_with_failures
    from driftgate.lab.demo import demo_plan, finish_demo

    plan = demo_plan(seeds, limit)
    # A dry run is over before other processes would have started.
    workers = int(joblib.cpu_count()) if limit is None else 1
    result = do_plan(plan, SweepFolder(out), workers, "loky")
    end_with_failures(SweepFolder(out), result)
    finished = finish_demo(plan, out, workers)
    if as_json:
        print_json(finished.summary)
    else:
        _print_table(finished, seeds)
    note(f"{result.seconds:.0f} s. Picture, records and summary are in {out}.")


def _print_table(result: Any, seeds: int) -> None:
    title = f"Rendered digits -> handwritten digits (MNIST), {seeds} seed{'s' if seeds > 1 else ''}; scores in %"
    numbers = ("score", "best\nthreshold", "AUROC", "1st\nhalf", "2nd\nhalf", "ms a\nbatch", "state\nKiB")
    table = make_table(title, ("shift", "method", *numbers), left=("shift", "method"))
    costs = result.runs.groupby(["shift", "method"])[["seconds", "state_bytes"]].mean()
    for shift, methods in result.summary.items():
        for position, (name, row) in enumerate(methods.items()):
            metric = "h_score" if "h_score" in row else "accuracy"
            table.add_row(
                f"{shift} {'accuracy' if metric == 'accuracy' else 'H-score'}" if position == 0 else "",
                name,
                percent(row[metric]),
                *(percent(row.get(key)) for key in ("best_threshold_score", "auroc", "first_half", "second_half")),
                f"{1000 * costs.seconds[shift, name]:.0f}",
                kibibytes(costs.state_bytes[shift, name]),
            )
        table.add_section()
    output.print(table)
