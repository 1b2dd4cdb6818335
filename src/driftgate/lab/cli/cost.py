"""``driftgate cost``: what each effort costs on the user's own model and machine, and which one fits a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import make_table, note, output, print_json, progress_bars

if TYPE_CHECKING:
    from driftgate.lab.bench.effort_cost import EffortCost


@app.command(
    epilog="Example: [bold]driftgate cost --model source.safetensors --budget-seconds 1 --budget-mib 500[/bold]"
)
def cost(
    *,
    model: options.ModelOrNot = None,
    network: options.Network = None,
    class_names: options.ClassNames = None,
    network_size: options.NetworkSize = None,
    imports: options.Imports = None,
    method: options.MethodName = "gmm",
    preset: options.Preset = None,
    settings: options.Settings = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples of a step.")] = 64,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Steps of each effort that are timed.")] = 4,
    budget_seconds: Annotated[
        float | None, typer.Option("--budget-seconds", min=0.0, help="That a batch may take on average.")
    ] = None,
    budget_mib: Annotated[
        float | None, typer.Option("--budget-mib", min=0.0, help="Memory a step may need beyond the loaded model.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure every effort of a method on your model and this machine, and tell which one fits (Linux).

    Random inputs, which the network is made partly sure of: what is measured is time and memory, not what is learned.
    Each effort has a process of its own, and they take their steps in turns, so that a busy machine slows all alike.
    """
    from driftgate.lab.bench.effort_cost import choose_effort, measure_efforts
    from driftgate.lab.cli.experiment import make_choice

    choice = make_choice(
        method=method,
        preset=preset,
        settings=settings,
        imports=imports,
        model=model,
        network=network,
        class_names=class_names,
        network_size=network_size,
        device="cpu",
    )
    choice.open_model()  # what is wrong with it should be told here, not by a process
    with progress_bars() as report:
        costs = measure_efforts(
            choice.open_model,
            method,
            batch_size=batch_size,
            preset=preset,
            settings=choice.settings,
            imports=tuple(imports or ()),
            rounds=rounds,
            on_step=report,
        )
    chosen = choose_effort(costs, budget_seconds, budget_mib)
    if as_json:
        rows = [row.as_dict() | {"fits": row.fits(budget_seconds, budget_mib)} for row in costs]
        print_json({"method": method, "batch_size": batch_size, "costs": rows, "choice": chosen and chosen.effort})
        return
    _print(costs, method, batch_size, budget_seconds, budget_mib)
    if chosen is None:
        note("None fits; take smaller batches or pictures, or source-only, which is the inference itself.")
    elif budget_seconds is not None or budget_mib is not None:
        note(f"effort={chosen.effort!r} fits: about {chosen.frames_per_second:.3g} frames a second.")


def _print(
    costs: list[EffortCost], method: str, batch_size: int, seconds: float | None, mebibytes: float | None
) -> None:
    columns = ("effort", "seconds a batch", "longest", "to inference", "peak MiB", "frames a second", "fits")
    table = make_table(f"{method}, {batch_size} samples a batch", columns, left=("effort",))
    for row in costs:
        table.add_row(
            row.effort,
            f"{row.seconds:.3f}",
            f"{row.longest_seconds:.3f}",
            f"{row.to_inference:.2f}",
            f"{row.peak_bytes / 2**20:,.0f}",
            f"{row.frames_per_second:.3g}",
            "yes" if row.fits(seconds, mebibytes) else "no",
        )
    output.print(table)
    output.print("- Peak of the process above the loaded model.", style="dim")
