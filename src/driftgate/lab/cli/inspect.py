"""``driftgate methods``, ``memory`` and ``cost``: what there is, and what it costs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from inspect import cleandoc
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftgate.lab.cli import console, options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import kibibytes, make_table, note, output, print_json, progress_bars, refuse

if TYPE_CHECKING:
    from driftgate.methods import MethodSettings


@app.command(epilog="Example: [bold]driftgate methods --classes 200 --json[/bold]; [bold]driftgate methods gmm[/bold]")
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to list all its settings with their meaning.")] = None,
    *,
    imports: options.Imports = None,
    classes: Annotated[int, typer.Option(min=1, help="Number of source classes for the bytes.")] = 9,
    backbone: Annotated[str, typer.Option(help="Network for the bytes.")] = "resnet50",
    as_json: options.AsJson = False,
) -> None:
    """List the methods: what they need, what they remember, their presets; or all settings of one.

    State is what a method carries across batches beyond the network, for a number of source classes.
    """
    from driftgate.plugins import import_module

    for module in imports or []:
        import_module(module)
    if name is not None:
        _show_settings(name, as_json=as_json)
        return
    rows = _method_rows(classes, backbone)
    columns = ("method", "source-\nfree", "univer-\nsal", "needs", "state\nKiB", "presets", "what it does")
    shown = [
        (
            row["name"],
            *("yes" if row[key] else "no" for key in ("source_free", "universal")),
            ", ".join(row["needs"]) or "-",
            kibibytes(row["state_bytes"]),
            ", ".join(row["presets"]) or "-",
            row["summary"],
        )
        for row in rows
    ]
    widths = {"needs": 15, "presets": 12, "what it does": 40}
    title = f"State for {classes} source classes and {backbone}"
    table = make_table(title, columns, shown, left=("method", *widths), widths=widths)
    console.print_result({"classes": classes, "backbone": backbone, "methods": rows}, table, as_json)


def _method_rows(classes: int, backbone: str) -> list[dict[str, Any]]:
    from driftgate.lab.bench.step_cost import Setting, loaded_model
    from driftgate.methods import available, create

    model = loaded_model(Setting(backbone, classes))
    return [
        {
            **{"name": name, "source_free": method.source_free, "universal": method.universal},
            **{"needs": sorted(method.needs), "state_bytes": create(name, model).num_bytes},
            **{"presets": list(method.presets), "summary": method.summary},
        }
        for name, method in available().items()
    ]


SIGNS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
"""How pydantic calls the ends of a range, and how people write them."""

_ATTRIBUTE = re.compile(r"^    ((?:\w+(?:, )?)+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""An entry of a docstring's list of attributes: one name or several with one meaning, over one line or several."""


def _show_settings(name: str, *, as_json: bool) -> None:
    """Print the settings of the method called ``name``, and its presets."""
    from driftgate.methods import get_method

    method = get_method(name)
    rows = _setting_rows(method.Settings)
    if as_json:
        print_json({"method": name, "summary": method.summary, "settings": rows, "presets": method.presets})
        return
    columns = ("setting", "default", "type", "meaning")
    shown = [(row["name"], str(row["default"]), row["type"], row["meaning"]) for row in rows]
    widths = {"type": 34, "meaning": 78}
    output.print(make_table(f"{name}: {method.summary}", columns, shown, left=("setting", *widths), widths=widths))
    for preset, values in method.presets.items():
        text = ", ".join(f"{key}={value}" for key, value in values.items())
        output.print(f"- preset {preset}: {text}", style="dim", markup=False)


def _setting_rows(settings: type[MethodSettings]) -> list[dict[str, Any]]:
    """Name, default, type with its range and meaning of every setting, in the order of the class."""
    told, rows = _meanings(settings), []
    for name, field in settings.model_fields.items():
        limits = [
            f"{sign} {getattr(limit, key)}" for limit in field.metadata for key, sign in SIGNS if hasattr(limit, key)
        ]
        kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
        default = None if field.is_required() else field.default
        rows.append(
            {
                "name": name,
                "default": list(default) if isinstance(default, tuple) else default,
                "type": " ".join([kind.replace("typing.", ""), *limits]),
                "meaning": told.get(name, ""),
            }
        )
    return rows


def _meanings(settings: type[MethodSettings]) -> dict[str, str]:
    """Setting -> what its class, or the nearest one before it, says of it under ``Attributes``."""
    found: dict[str, str] = {}
    for kind in settings.__mro__:
        _, _, told = cleandoc(kind.__dict__.get("__doc__") or "").partition("Attributes:\n")
        for line in _ATTRIBUTE.finditer(told):
            for name in line[1].split(", "):
                found.setdefault(name, " ".join(line[2].split()))
    return found


@app.command(epilog="Example: [bold]driftgate memory --classes 9,200,345 --json[/bold]")
def memory(
    *,
    classes: Annotated[str, typer.Option(help="Numbers of source classes, separated by commas.")] = "9,200,345",
    as_json: options.AsJson = False,
) -> None:
    """Compare what is kept across batches: the mixture, a memory queue, a mean teacher (the paper's supplement).

    Values by the paper's formulas, and the bytes of real objects; beside them the paper's own figures.
    """
    from driftgate.lab.bench.footprint import QUEUE_LENGTH, compare

    counts = [part.strip() for part in classes.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in counts):
        refuse(f"Expected numbers of classes like 9,200,345 but got {classes!r}; write them so.")
    found = {count: compare(int(count)) for count in counts}
    if as_json:
        print_json({count: {name: kept._asdict() for name, kept in rows.items()} for count, rows in found.items()})
        return
    columns = ("", "values", "KiB, formula", "KiB, measured", "paper's KB", "the mixture is")
    for count, rows in found.items():
        mixture, queue = rows["mixture"], rows["queue"]
        shown = [
            (
                *(name, f"{kept.values:,}", kibibytes(kept.formula_bytes), kibibytes(kept.measured_bytes)),
                "-" if kept.paper_kb is None else f"{kept.paper_kb:,.2f}",
                f"{100 * mixture.measured_bytes / kept.measured_bytes:,.2f} %",
            )
            for name, kept in rows.items()
        ]
        output.print(make_table(f"{count} source classes", columns, shown, left=("",)))
        samples = math.ceil(mixture.measured_bytes * QUEUE_LENGTH / queue.measured_bytes)
        output.print(f"- The queue has {QUEUE_LENGTH:,} samples; from {samples:,} on it is larger than the mixture.")
    output.print("- The paper's mixture is the released code's: float64 and full matrices.")


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
    rows: list[dict[str, Any]] = [
        {
            **{"effort": cost.label, "seconds": cost.mean_seconds, "longest_seconds": max(cost.seconds)},
            **{"to_inference": cost.mean_seconds / costs[0].mean_seconds, "peak_bytes": cost.peak_bytes},
            **{"frames_per_second": batch_size / cost.mean_seconds, "fits": cost.fits(budget_seconds, budget_mib)},
        }
        for cost in costs
    ]
    if as_json:
        print_json({"method": chosen.method, "batch_size": batch_size, "costs": rows, "choice": found and found.label})
        return
    columns = ("effort", "seconds a batch", "longest", "to inference", "peak MiB", "frames a second", "fits")
    shown = [
        (
            *(row["effort"], f"{row['seconds']:.3f}", f"{row['longest_seconds']:.3f}", f"{row['to_inference']:.2f}"),
            *(f"{row['peak_bytes'] / 2**20:,.0f}", f"{row['frames_per_second']:.3g}", "yes" if row["fits"] else "no"),
        )
        for row in rows
    ]
    output.print(make_table(f"{chosen.method}, {batch_size} samples a batch", columns, shown, left=("effort",)))
    output.print("- Peak of the process above the loaded model.", style="dim")
    if found is None:
        note("None fits; take smaller batches or pictures, or source-only, which is the inference itself.")
    elif budget_seconds is not None or budget_mib is not None:
        note(f"effort={found.label!r} fits: about {batch_size / found.mean_seconds:.3g} frames a second.")
