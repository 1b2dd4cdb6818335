"""``driftgate methods``, ``memory`` and ``cost``: what there is, and what it costs."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftgate.lab.cli import console, options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import kibibytes, make_table, note, output, print_json, progress_bars, refuse

if TYPE_CHECKING:
    from driftgate.lab.bench.footprint import Comparison
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

_ATTRIBUTE = re.compile(r"^    (?=\S)((?:\w+(?:, )?)+): (.*)$")
"""A line of a docstring's list of attributes: one name or several with one meaning."""


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
        for name, text in _attributes(kind.__dict__.get("__doc__") or "").items():
            found.setdefault(name, text)
    return {name: found[name] for name in settings.model_fields if name in found}


def _attributes(docstring: str) -> dict[str, str]:
    lines = cleandoc(docstring).splitlines()
    if "Attributes:" not in lines:
        return {}
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines[lines.index("Attributes:") + 1 :]:
        start = _ATTRIBUTE.match(line)
        if start is not None:
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2])
        elif line.startswith("        ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            break  # the list has ended
    return found


@app.command(epilog="Example: [bold]driftgate memory --classes 9,200,345 --plot memory.png[/bold]")
def memory(
    *,
    classes: Annotated[str, typer.Option(help="Numbers of source classes, separated by commas.")] = "9,200,345",
    plot: Annotated[Path | None, typer.Option(help="Draw the paper's memory figure into this file.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the peak memory of real steps of COMET and GMM instead (Linux).")
    ] = False,
    backbone: Annotated[str, typer.Option(help="Network for --measure.")] = "resnet50",
    size: Annotated[int, typer.Option(min=8, help="Pixels of an image for --measure.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images of a step for --measure.")] = 64,
    as_json: options.AsJson = False,
) -> None:
    """Compare what is kept across batches: the mixture, a memory queue, a mean teacher (the paper's supplement).

    Values by the paper's formulas, and the bytes of real objects; beside them the paper's own figures. With --measure
    the peak memory of whole steps, each method in a process of its own; the ResNet-50 takes up to 13 GB and minutes.
    """
    from driftgate.lab.bench.footprint import compare
    from driftgate.lab.files import writable_file

    counts = _counts(classes)
    if measure:
        if plot is not None:
            refuse("Expected either --measure or --plot but got both; run them apart.")
        _measure_peaks(counts, backbone, size, batch_size, as_json=as_json)
        return
    if plot is not None:
        _check_picture(plot)
        writable_file(plot)
    comparisons = [compare(count) for count in counts]
    if plot is not None:
        from driftgate.lab import figures

        figures.save_figure(figures.memory(counts), plot)
    if as_json:
        print_json([asdict(comparison) for comparison in comparisons])
    else:
        for comparison in comparisons:
            _print_comparison(comparison)
    if plot is not None:
        note(f"Drawn to {plot}.")


PEAK_STEPS = 1
"""After one that does not count, in which the optimiser allocates: a step of the paper's network takes a minute."""


def _measure_peaks(counts: list[int], backbone: str, size: int, batch_size: int, *, as_json: bool) -> None:
    from functools import partial

    from driftgate.lab.bench.footprint import PAPER
    from driftgate.lab.bench.step_cost import Builder, Setting, measure, method_stepper
    from driftgate.models.backbones import RESNETS

    builders: dict[str, Builder] = {
        name: partial(method_stepper, name=name, settings={}) for name in ("comet-f", "gmm")
    }
    for mode in ("balanced", "low"):
        builders[f"gmm, memory {mode}"] = partial(method_stepper, name="gmm", settings={"memory": mode})
    measured: list[dict[str, Any]] = []
    for count in counts:
        setting = Setting(backbone, count, (size, size), batch_size)
        with progress_bars() as report:
            costs = measure(builders, setting, steps=PEAK_STEPS, warmup=1, on_step=report)
        paper = PAPER.get(count) if backbone in RESNETS else None
        printed = {"comet-f": paper.comet_peak_mb, "gmm": paper.gmm_peak_mb} if paper else {}
        rows = [
            {
                **{"label": cost.label, "peak_bytes": cost.peak_bytes, "seconds": cost.median_seconds},
                **{"ratio": cost.peak_bytes / costs[0].peak_bytes, "paper_mb": printed.get(cost.label)},
            }
            for cost in costs
        ]
        measured.append({"classes": count, "backbone": backbone, "size": size, "batch_size": batch_size, "steps": rows})
        if not as_json:
            _print_peaks(measured[-1])
    if as_json:
        print_json(measured)


def _print_peaks(measured: dict[str, Any]) -> None:
    title = (
        f"{measured['classes']} source classes, {measured['backbone']} at {measured['size']} px, "
        f"{measured['batch_size']} images"
    )
    comet, rows = measured["steps"][0]["paper_mb"], []
    for row in measured["steps"]:
        paper = row["paper_mb"]
        printed = ("-", "-") if paper is None else (f"{paper:,.2f}", f"{paper / comet:.2f}")
        ours = f"{row['peak_bytes'] / 2**20:,.0f}", f"{row['ratio']:.2f}"
        rows.append((row["label"], *ours, *printed, f"{row['seconds']:.2f}"))
    heads = ("", "peak MiB", "to COMET", "paper's MB", "paper's ratio", "seconds a step")
    output.print(make_table(title, heads, rows, left=("",)))
    output.print("- Peak of the process above the loaded model; the paper's figures are a GPU's.", style="dim")


def _check_picture(path: Path) -> None:
    """Refuse a kind of picture that cannot be drawn before anything is computed."""
    from matplotlib.figure import Figure

    # A .pgf needs LaTeX, which matplotlib does not bring.
    known = sorted(set(Figure().canvas.get_supported_filetypes()) - {"pgf"})
    if path.suffix.removeprefix(".").lower() not in known:
        refuse(f"Expected a picture that ends in .{', .'.join(known)} but got {path}; name it so.")


def _counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        refuse(f"Expected numbers of classes like 9,200,345 but got {text!r}; write them so.")
    return [int(part) for part in parts]


def _print_comparison(comparison: Comparison) -> None:
    paper = comparison.paper
    columns = ("", "values", "KiB, formula", "KiB, measured", "paper's KB", "GMM is")
    rows = (
        ("GMM", comparison.gmm, paper and paper.gmm_kb),
        ("GMM, tied", comparison.tied, None),
        ("memory queue", comparison.queue, None),
        ("mean teacher", comparison.teacher, paper and paper.teacher_kb),
    )
    shown = [
        (
            *(label, f"{part.values:,}", kibibytes(part.formula_bytes), kibibytes(part.measured_bytes)),
            "-" if printed is None else f"{printed:,.2f}",
            "" if label == "GMM" else f"{100 * comparison.gmm.measured_bytes / part.measured_bytes:,.2f} %",
        )
        for label, part, printed in rows
    ]
    output.print(make_table(f"{comparison.classes} source classes", columns, shown, left=("",)))
    lines = [
        *(f"{label}: measured on {part.how}." for label, part, _ in rows),
        f"A queue is larger than our mixture from {comparison.break_even_queue_length:,} samples on, "
        f"{comparison.queue_bytes_per_sample:,.0f} bytes each.",
        f"The released code keeps float64 and full matrices: {kibibytes(comparison.released_gmm_bytes)} KiB"
        f"{'' if paper is None else ', the figure of the paper'}; a queue is larger than that from "
        f"{comparison.released_break_even_queue_length:,} samples on.",
        f"Tied, with one covariance for all classes, ours is {100 * comparison.tied_to_released:.2f} % of that.",
    ]
    if paper is not None:
        lines.append(
            f"The paper says {paper.break_even} samples of {paper.queue_kb_per_sample:.2f} KB; those are the bytes of "
            "tensors of 64 samples."
        )
    for line in lines:
        output.print(f"- {line}", style="dim", markup=False)
    output.print()


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
