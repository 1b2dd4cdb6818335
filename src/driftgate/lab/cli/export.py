"""``driftgate export``: an adapted method as a network that runs without driftgate."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import note, output, percent, print_json, refuse

MOST_SAMPLES = 256


@app.command(
    epilog="Example: [bold]driftgate export adapted.safetensors --to onnx --sample pictures/ --out adapted.onnx[/bold]"
)
def export(
    *,
    file: Annotated[Path, typer.Argument(help="An adapted method, as adapt --save wrote it.")],
    to: Annotated[str, typer.Option(help="onnx, torchscript or torch (an exported program).")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="File to write; beside the method if left out.")] = None,
    sample: Annotated[
        Path | None, typer.Option(help="Folder of pictures of the stream: tells how often file and method agree.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write network, mixture and gate as they stand: pictures in; label, probabilities and novelty out.

    Input is float in [0, 1] of shape (N, C, H, W), any N; class names are in the metadata. A method that normalises by
    the batch is written with the running statistics that followed the stream.
    """
    from driftgate.export import SUFFIXES
    from driftgate.lab.files import writable_file
    from driftgate.methods import load_method

    if to not in SUFFIXES:
        refuse(f"Expected --to out of {', '.join(SUFFIXES)} but got {to!r}; name one of them.")
    path = writable_file(out or file.with_suffix(SUFFIXES[to]))
    method = load_method(file)
    batch = None
    if sample is not None:
        from driftgate.lab.data.pictures import PictureFolder

        batch = next(iter(PictureFolder(sample, method.model.spec, batch_size=MOST_SAMPLES)), None)
        if batch is None:
            refuse(
                f"Expected pictures in {sample} but it holds none that can be read; name a folder with pictures of "
                "the stream."
            )
    report = method.export(path, to, sample=batch)  # type: ignore[arg-type]  # checked above
    if as_json:
        compared = {name: getattr(report, name) if report.samples else None for name in ("agreement", "difference")}
        print_json(asdict(report) | {"path": str(report.path)} | compared)
        return
    output.print(f"{report.path}: {report.approximation or 'answers as the method predicts'}.")
    if not math.isnan(report.agreement):
        output.print(f"It gives the method's label to {percent(report.agreement)} % of {report.samples} pictures.")
    elif report.approximation:
        note("Give --sample to see how often it agrees with the method.")
