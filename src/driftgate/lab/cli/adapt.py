"""``driftgate adapt``: one method over one stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import kibibytes, make_table, note, output, percent, print_json, progress_bars

if TYPE_CHECKING:
    from driftgate.models import SourceModel

RECORD, PROGRESS = "record.json", "progress.safetensors"
SHARES = {
    "true": "of unknown samples in the stream",
    "rejected": "of samples predicted as unknown",
    "estimated": "of unknown samples, as the method estimates it; mean over the stream",
}


@app.command(
    epilog="Example: [bold]driftgate adapt --model art.safetensors --data pacs --root data/pacs --target photo "
    "--shift OPDA --method gmm --set p_reject=0.25 --out runs/photo[/bold]"
)
def adapt(
    *,
    model: Annotated[Path, typer.Option("--model", help="Source model, as pretrain or import-checkpoint wrote it.")],
    data: options.Data,
    target: Annotated[list[str], typer.Option("--target", help="Target domain; repeat it for several.")],
    root: options.Root = None,
    shift: options.ShiftName = None,
    split: options.Split = None,
    class_order: options.ClassOrder = "shared-first",
    method: Annotated[str, typer.Option("--method", help="Name of the method; see driftgate methods.")] = "gmm",
    preset: Annotated[str | None, typer.Option("--preset", help="A named set of the method's settings.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method as key=value; repeat it for several.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = 64,
    seed: options.Seed = 0,
    drop_last: Annotated[bool, typer.Option("--drop-last", help="Leave out an incomplete last batch.")] = False,
    order: Annotated[
        str, typer.Option("--order", help="shuffled, or dirichlet for classes that come together.")
    ] = "shuffled",
    concentration: Annotated[
        float, typer.Option("--concentration", help="Of the Dirichlet order; small = one class at a time.")
    ] = 0.1,
    arrangement: Annotated[
        str, typer.Option("--arrangement", help="Several targets mixed, or continual: one after another.")
    ] = "mixed",
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, help="Play the stream so many times; continual domains come back.")
    ] = 1,
    unknown_share: Annotated[
        str | None,
        typer.Option("--unknown-share", help="Share of unknown samples: 0.3, or 0->0.8 to change along the stream."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Use at most so many images in a pass.")] = None,
    workers: options.Workers = 1,
    strict: options.Strict = False,
    precision: Annotated[str, typer.Option("--precision", help="Of the backbone: float32 or bfloat16.")] = "float32",
    compile_backbone: Annotated[
        bool, typer.Option("--compile", help="Use torch.compile for the backbone if a trial shows that it is faster.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the run record.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="File for the adapted method (.safetensors).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that was stopped in --out.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Stream a target domain through a source model: predict, score, learn, batch by batch.

    Labels of the target only score. The record holds settings, versions, seed, metrics with their definitions, time
    and memory.
    """
    from driftgate.lab.cli.experiment import (
        file_sha256,
        open_split,
        parse_settings,
        progress_file,
        resumable,
        source_class_names,
        split_names,
        writable_file,
        writable_folder,
    )
    from driftgate.lab.data.orders import StreamShare
    from driftgate.lab.data.streams import DomainStream
    from driftgate.methods import create, resolve_settings
    from driftgate.models import SourceModel
    from driftgate.stream import run_stream
    from driftgate.types import DriftgateError

    if resume and out is None:
        raise DriftgateError("Expected --out with --resume: the folder of the run that was stopped.")
    chosen = {"seed": seed, **parse_settings(settings or [])}
    resolve_settings(method, preset, chosen)  # a misspelt setting should not wait for the model to load
    if model.is_dir():
        raise DriftgateError(f"Expected the file of a source model but {model} is a folder; name the file in it.")
    if save is not None:
        writable_file(save)
    checkpoint = None
    if out is not None:
        checkpoint = progress_file(writable_folder(out) / PROGRESS, resume)
    dataset, classes = open_split(data, root, shift, split, class_order)
    source = SourceModel.load(model)
    source.check_class_names(source_class_names(dataset, classes))
    source.set_precision(precision)  # type: ignore[arg-type]  # it checks the name itself
    share = None if unknown_share is None else StreamShare.parse(unknown_share)
    classes = classes if share is None else share.scored(classes)
    domains = [dataset.domain(name, seed=seed) for name in split_names(target)]
    stream = DomainStream(
        domains,
        classes,
        input_size=source.spec.image_size,
        batch_size=batch_size,
        seed=seed,
        drop_last=drop_last,
        order=order,  # type: ignore[arg-type]  # it checks the names itself
        concentration=concentration,
        arrangement=arrangement,  # type: ignore[arg-type]
        repeat=repeat,
        unknown_share=share,
        strict=strict,
        workers=workers,
        limit=limit,
    )
    adapting = create(method, source, preset=preset, **chosen)
    compiled = compile_backbone and _try_to_compile(source, batch_size)
    # A stopped run goes on only if all of this is the same: what decides the numbers, but not where the files lie.
    protocol: dict[str, Any] = {
        "data": data,
        "target": [domain.name for domain in domains],
        "images_per_target": [len(domain) for domain in domains],
        "class_order": classes.order,
        "model_file": model.name,
        "model_sha256": file_sha256(model),
        "preset": preset,
        "seed": seed,
        "batch_size": batch_size,
        "drop_last": drop_last,
        "order": order,
        "concentration": concentration if order == "dirichlet" else None,
        "arrangement": arrangement,
        "repeat": repeat,
        "unknown_share": None if share is None else str(share),
        "limit": limit,
        "precision": precision,
        "compile": compile_backbone,
    }
    with resumable(checkpoint):
        with progress_bars() as report:
            result = run_stream(
                adapting,
                stream,
                classes,
                protocol=protocol,
                checkpoint=checkpoint,
                on_batch=lambda log: report(f"{method} on {', '.join(protocol['target'])}", len(log), len(stream)),
            )
        result.record["compiled"] = compiled
        if out is not None:
            result.save(out / RECORD)
        if save is not None:
            adapting.save(save)
    if as_json:
        print_json(result.record)
    else:
        _print_record(result.record)
    if stream.skipped:
        note(f"{len(stream.skipped)} images could not be read, the first is {stream.skipped[0]}.")
    if out is not None:
        note(f"The record is in {out / RECORD}.")
    if save is not None:
        note(f"The adapted method is in {save}.")


def _try_to_compile(source: SourceModel, batch_size: int) -> bool:
    """Whether the backbone is compiled from here on."""
    from driftgate.models.compiling import compile_if_faster

    note("Compiling the backbone; this may take minutes.")
    trial = compile_if_faster(source, batch_size)
    times = f"{trial.plain_seconds:.3f} s plain"
    if trial.compiled_seconds is not None:
        times += f", {trial.compiled_seconds:.3f} s compiled"
    note(f"torch.compile is {'on' if trial.used else f'off, {trial.reason}'} (forward and backward: {times}).")
    return trial.used


def _print_record(record: dict[str, Any]) -> None:
    from driftgate.stream import LONG_STREAM

    protocol, metrics = record["protocol"], record["metrics"]
    title = (
        f"{record['method']} on {', '.join(protocol['target'])}, {protocol['shift']} {protocol['split']}, "
        f"{protocol['samples']:,} images in {protocol['batches']} batches"
    )
    table = make_table(title, ("what", "value", "meaning"), left=("what", "meaning"))
    table.columns[2].no_wrap = False
    for name, value in metrics.items():
        style = "bold" if name == record["score"] else None
        table.add_row(name, percent(value), record["definitions"][name], style=style)
    table.add_row("halves", " / ".join(percent(value) for value in record["halves"]), "the score of each half")
    if protocol["batches"] >= LONG_STREAM:
        table.add_row("tenths", " ".join(percent(value) for value in record["tenths"]), "the score of each tenth")
    for name, meaning in SHARES.items():
        if name in record["shares"]:
            table.add_row(f"{name} share", percent(record["shares"][name]), meaning)
    table.add_row("ms per batch", f"{1000 * record['seconds']['median_per_batch']:.0f}", "median; predict and learn")
    table.add_row("state KiB", kibibytes(record["state_bytes"]), "carried across batches, beyond the network")
    table.add_row(
        "peak MiB", f"{record['peak_memory_bytes'] / 2**20:,.0f}", "largest memory above that of the loaded model"
    )
    output.print(table)
