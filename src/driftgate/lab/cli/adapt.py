"""``driftgate adapt``: one method over one stream."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app


@app.command(
    epilog="Example: [bold]driftgate adapt --model art.safetensors --data pacs --root data/pacs --target photo "
    "--shift OPDA --method gmm --set p_reject=0.25 --out runs/photo[/bold]"
)
def adapt(
    *,
    model: options.ModelOrNot = None,
    network: options.Network = None,
    class_names: options.ClassNames = None,
    network_size: options.NetworkSize = None,
    images: Annotated[
        Path | None,
        typer.Option("--images", help="A plain folder of pictures, newest last, in place of --data: no labels."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with pictures that come into --images later, until Ctrl-C.")
    ] = False,
    idle: Annotated[
        float | None, typer.Option("--idle", min=0.0, help="End --follow after so many seconds without a new picture.")
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option("--predictions", help="File (.csv) that gets a row for every picture of --images.")
    ] = None,
    logs: options.Logs = None,
    imports: options.Imports = None,
    data: options.DataOrNot = None,
    target: Annotated[list[str] | None, typer.Option("--target", help="Target domain; repeat it for several.")] = None,
    root: options.Root = None,
    shift: options.ShiftName = None,
    split: options.Split = None,
    class_order: options.ClassOrder = "shared-first",
    method: options.MethodName = "gmm",
    preset: options.Preset = None,
    settings: options.Settings = None,
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
    allow_outside: options.AllowOutside = False,
    max_pixels: options.MaxPixels = options.MAX_PIXELS,
    precision: Annotated[
        str | None, typer.Option("--precision", help="float32, bfloat16 or float16; short for --set precision=...")
    ] = None,
    device: options.Device = "auto",
    compile_backbone: Annotated[
        bool, typer.Option("--compile", help="Use torch.compile for the backbone if a trial shows that it is faster.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the run record.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="File for the adapted method (.safetensors).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that was stopped in --out.")] = False,
    checkpoint_every: options.CheckpointEvery = options.CHECKPOINT_SECONDS,
    guard: Annotated[
        bool, typer.Option("--guard", help="Watch over the learning, and go back on alarm; see docs/guard.md.")
    ] = False,
    max_delay: Annotated[
        float | None,
        typer.Option("--max-delay", help="Seconds a prediction may take once its batch has come; learning gives way."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Stream a target domain, or a plain folder of pictures, through a model: predict, learn, batch by batch.

    Labels of the target only score. The record holds settings, versions, seed, metrics with their definitions, time
    and memory. With --images nobody has labels: --predictions gets a row a picture, and the record tells shares and
    losses.
    """
    from driftgate.lab.cli.experiment import make_choice
    from driftgate.lab.files import writable_file, writable_folder

    choice = make_choice(
        method=method,
        preset=preset,
        settings=settings,
        imports=imports,
        model=model,
        network=network,
        class_names=class_names,
        network_size=network_size,
        device=device,
        seed=seed,
        **({"precision": precision} if precision else {}),
    )
    if save is not None:
        writable_file(save)
    if images is not None:
        from driftgate.lab.cli.adapt_images import ImagesRun, adapt_images

        labelled = {"data": data, "target": target, "root": root, "shift": shift, "split": split, "limit": limit}
        _refuse({**labelled, "guard": guard or None}, "with --images, which has no labels")
        pictures = ImagesRun(
            images,
            batch_size=batch_size,
            workers=workers,
            follow=follow,
            idle=idle,
            predictions=None if predictions is None else writable_file(predictions),
            logs=tuple(logs or ()),
            out=None if out is None else writable_folder(out),
            save=save,
            resume=resume,
            checkpoint_every=checkpoint_every,
            max_pixels=max_pixels,
            max_delay=max_delay,
        )
        adapt_images(choice, pictures, as_json=as_json)
        return
    from driftgate.lab.cli.adapt_domains import DomainsRun, adapt_domains

    _refuse({"follow": follow or None, "idle": idle, "predictions": predictions}, "without --images")
    domains = DomainsRun(
        data,
        tuple(target or ()),
        root=root,
        shift=shift,
        split=split,
        class_order=class_order,
        batch_size=batch_size,
        seed=seed,
        drop_last=drop_last,
        order=order,
        concentration=concentration,
        arrangement=arrangement,
        repeat=repeat,
        unknown_share=unknown_share,
        limit=limit,
        workers=workers,
        strict=strict,
        reading={"allow_outside": allow_outside, "max_pixels": max_pixels},
        compile_backbone=compile_backbone,
        logs=tuple(logs or ()),
        out=out,
        save=save,
        resume=resume,
        checkpoint_every=checkpoint_every,
        guard=guard,
        max_delay=max_delay,
    )
    adapt_domains(choice, domains, as_json=as_json)


def _refuse(given: Mapping[str, object], where: str) -> None:
    """Refuse options that were given and would be passed over in silence."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        from driftgate.types import DriftgateError

        raise DriftgateError(f"Expected no --{', --'.join(names)} {where}; leave it out.")
