"""``driftgate cost``: what each effort costs on the user's own model and machine, and which one fits a budget."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import make_table, note, output, print_json, progress_bars, refuse


@options.command(
    app, epilog="Example: [bold]driftgate cost --model source.safetensors --budget-seconds 1 --budget-mib 500[/bold]"
)
def cost(
    *,
    chosen: options.MethodOptions,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of a step.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Steps of each effort that are timed.")] = 4,
    budget_seconds: Annotated[float | None, typer.Option(min=0.0, help="That a batch may take on average.")] = None,
    budget_mib: Annotated[
        float | None, typer.Option(min=0.0, help="Memory a step may need beyond the loaded model.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure every effort of a method on your model and this machine, and tell which one fits (Linux).

    Random inputs, which the network is made partly sure of: what is measured is time and memory, not what is learned.
    Each effort has a process of its own, and they take their steps in turns, so that a busy machine slows all alike.
    """
    from driftgate.lab.bench.step_cost import choose_effort, measure_efforts
    from driftgate.lab.cli.experiment import make_choice

    if chosen.device not in ("auto", "cpu"):
        refuse(f"Expected the CPU, whose memory is measured, but got {chosen.device}; leave out --device.")
    choice = make_choice(replace(chosen, device="cpu"))
    choice.open_model()  # what is wrong with it should be told here, not by a process
    with progress_bars() as report:
        costs = measure_efforts(
            choice.open_model,
            chosen.method,
            batch_size=batch_size,
            preset=chosen.preset,
            settings=choice.settings,
            imports=tuple(chosen.imports or ()),
            rounds=rounds,
            on_step=report,
        )
    found = choose_effort(costs, budget_seconds, budget_mib)
    if as_json:
        rows = [asdict(row) | {"fits": row.fits(budget_seconds, budget_mib)} for row in costs]
        print_json({"method": chosen.method, "batch_size": batch_size, "costs": rows, "choice": found and found.effort})
        return
    columns = ("effort", "seconds a batch", "longest", "to inference", "peak MiB", "frames a second", "fits")
    shown = [
        (
            *(row.effort, f"{row.seconds:.3f}", f"{row.longest_seconds:.3f}", f"{row.to_inference:.2f}"),
            *(f"{row.peak_bytes / 2**20:,.0f}", f"{row.frames_per_second:.3g}"),
            "yes" if row.fits(budget_seconds, budget_mib) else "no",
        )
        for row in costs
    ]
    output.print(make_table(f"{chosen.method}, {batch_size} samples a batch", columns, shown, left=("effort",)))
    output.print("- Peak of the process above the loaded model.", style="dim")
    if found is None:
        note("None fits; take smaller batches or pictures, or source-only, which is the inference itself.")
    elif budget_seconds is not None or budget_mib is not None:
        note(f"effort={found.effort!r} fits: about {found.frames_per_second:.3g} frames a second.")
