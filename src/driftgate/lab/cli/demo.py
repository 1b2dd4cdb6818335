"""``driftgate demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import kibibytes, make_table, note, output, percent, print_json, progress_bars


@app.command(epilog="Example: [bold]driftgate demo --seeds 1 --out runs/demo[/bold]")
def demo(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds to average over.")] = 3,
    out: Annotated[Path, typer.Option("--out", help="Folder for summary.json, records and picture.")] = Path(
        "runs/demo"
    ),
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Only so many batches of each stream, after a short training: a dry run."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Train on rendered digits, then adapt to a stream of handwritten ones, under PDA, ODA and OPDA.

    Source model, batch-norm statistics and GMM run over the same streams. Prints a table, and writes summary.json, a
    record of every run and a picture. A few minutes on two cores.
    """
    from driftgate.lab.bench.demo import METHODS, run_demo
    from driftgate.lab.bench.jobs import available_cores
    from driftgate.lab.cli.experiment import writable_folder
    from driftgate.shifts import Shift

    writable_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    with progress_bars(seeds * len(Shift) * (len(METHODS) + 1)) as report:
        # A dry run is over before other processes would have started.
        workers = available_cores() if limit is None else 1
        result = run_demo(seeds=seeds, limit=limit, workers=workers, progress=report)
    result.save(out)
    if as_json:
        print_json(result.summary)
    else:
        _print_table(result, seeds)
    note(f"{result.seconds:.0f} s. Picture, records and summary are in {out}.")


def _print_table(result: Any, seeds: int) -> None:
    from driftgate.lab.bench.demo import costs

    costs_of = costs(result.runs)
    title = f"Rendered digits -> handwritten digits (MNIST), {seeds} seed{'s' if seeds > 1 else ''}; scores in %"
    columns = (
        "shift",
        "method",
        "score",
        "best\nthreshold",
        "AUROC",
        "1st\nhalf",
        "2nd\nhalf",
        "ms a\nbatch",
        "state\nKiB",
    )
    table = make_table(title, columns, left=("shift", "method"))
    for shift, methods in result.summary.items():
        for position, (name, row) in enumerate(methods.items()):
            milliseconds, state = costs_of[shift, name]
            metric = "accuracy" if "h_score" not in row else "h_score"
            table.add_row(
                f"{shift} {'accuracy' if metric == 'accuracy' else 'H-score'}" if position == 0 else "",
                name,
                percent(row[metric]),
                percent(row["best_threshold_score"]),
                percent(row.get("auroc")),
                percent(row["first_half"]),
                percent(row["second_half"]),
                f"{milliseconds:.0f}",
                kibibytes(state),
                style="bold" if name == "gmm" else None,
                end_section=position == len(methods) - 1,
            )
    output.print(table)
    output.print(
        "best threshold: the score had the best fixed threshold, known only in hindsight, been used.", style="dim"
    )
