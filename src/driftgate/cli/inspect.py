"""``driftgate methods`` and ``driftgate memory``: what there is, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftgate.cli import options
from driftgate.cli.app import app
from driftgate.cli.console import kibibytes, make_table, note, output, print_json

if TYPE_CHECKING:
    from driftgate.bench.footprint import Comparison


@app.command(epilog="Example: [bold]driftgate methods --classes 200 --json[/bold]")
def methods(
    classes: Annotated[int, typer.Option("--classes", min=1, help="Number of source classes for the bytes.")] = 9,
    backbone: Annotated[str, typer.Option("--backbone", help="Network for the bytes.")] = "resnet50",
    as_json: options.AsJson = False,
) -> None:
    """List the methods: what they need, what they remember, their presets.

    State is what a method carries across batches beyond the network, for a number of source classes.
    """
    rows = _method_rows(classes, backbone)
    if as_json:
        print_json({"classes": classes, "backbone": backbone, "methods": rows})
        return
    columns = ("method", "source-free", "universal", "needs", "state KiB", "presets", "what it does")
    table = make_table(
        f"State for {classes} source classes and {backbone}", columns, left=("method", "needs", "presets", "what it does")
    )
    table.columns[-1].no_wrap = False
    for row in rows:
        table.add_row(
            row["name"],
            "yes" if row["source_free"] else "no",
            "yes" if row["universal"] else "no",
            ", ".join(row["needs"]) or "-",
            "?" if row["state_bytes"] is None else kibibytes(row["state_bytes"]),
            ", ".join(row["presets"]) or "-",
            row["summary"],
        )
    output.print(table)


def _method_rows(classes: int, backbone: str) -> list[dict[str, Any]]:
    from driftgate.methods import available, create
    from driftgate.models import SourceModel
    from driftgate.types import DriftgateError

    model = SourceModel.build(backbone, [f"class {index}" for index in range(classes)], weights="none")
    rows = []
    for name, method in available().items():
        try:
            state = create(name, model).num_bytes
        except DriftgateError:  # it needs statistics of a trained source model
            state = None
        rows.append(
            {
                "name": name,
                "source_free": method.source_free,
                "universal": method.universal,
                "needs": sorted(method.needs),
                "state_bytes": state,
                "presets": list(method.presets),
                "summary": method.summary,
            }
        )
    return rows


@app.command(epilog="Example: [bold]driftgate memory --classes 9,200,345 --plot memory.png[/bold]")
def memory(
    classes: Annotated[str, typer.Option("--classes", help="Numbers of source classes, separated by commas.")] = "9,200,345",
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the paper's memory figure into this file.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare what is kept across batches: the mixture, a memory queue, a mean teacher (the paper's supplement).

    Values by the paper's formulas, and the bytes of real objects; beside them the paper's own figures.
    """
    from driftgate.bench.footprint import compare

    comparisons = [compare(count) for count in _counts(classes)]
    if plot is not None:
        from driftgate.bench.figures import memory_figure

        memory_figure(plot, marked=[comparison.num_classes for comparison in comparisons])
    if as_json:
        print_json([comparison.as_dict() for comparison in comparisons])
    else:
        for comparison in comparisons:
            _print_comparison(comparison)
    if plot is not None:
        note(f"Drawn to {plot}.")


def _counts(text: str) -> list[int]:
    from driftgate.types import DriftgateError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise DriftgateError(f"Expected numbers of classes like 9,200,345 but got {text!r}.")
    return [int(part) for part in parts]


def _print_comparison(comparison: Comparison) -> None:
    paper = comparison.paper
    columns = ("", "values (formula)", "KiB (formula, float32)", "KiB (measured)", "paper's KB", "GMM is", "measured on")
    table = make_table(f"{comparison.num_classes} source classes", columns, left=("", "measured on"))
    printed = {"gmm": paper and paper.gmm_kb, "teacher": paper and paper.teacher_kb}
    rows = {"gmm": "GMM", "queue": "memory queue", "teacher": "mean teacher"}
    for key, label in rows.items():
        part = getattr(comparison, key)
        ratio = comparison.gmm.measured_bytes / part.measured_bytes
        figure = printed.get(key)
        table.add_row(
            label,
            f"{part.values:,}",
            kibibytes(part.formula_bytes),
            kibibytes(part.measured_bytes),
            f"{figure:,.2f}" if figure else "-",
            "" if key == "gmm" else f"{100 * ratio:.2f} %",
            part.how,
        )
    output.print(table)
    lines = [
        f"A queue is larger from {comparison.break_even:,} samples on ({comparison.queue_bytes_per_sample:,.0f} bytes each).",
        f"The released code keeps float64 and full matrices: {kibibytes(comparison.released_gmm_bytes)} KiB, "
        f"as much as {comparison.released_break_even:,} samples of a queue.",
    ]
    if paper is not None:
        lines.append(
            f"The paper has {paper.break_even} samples of {paper.queue_kb_per_sample:.2f} KB: tensors of 64 samples "
            "were counted as one."
        )
    output.print(*(f"  {line}" for line in lines), "", sep="\n", style="dim")
