"""``driftgate data check``."""

from __future__ import annotations

from typing import Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import output, print_json, progress_bars

INCOMPLETE = 1

data_app = typer.Typer(no_args_is_help=True, help="Look at data sets on the disk.")
app.add_typer(data_app, name="data")


@data_app.callback()
def data() -> None:
    """Look at data sets on the disk."""


@data_app.command(epilog="Example: [bold]driftgate data check visda --root data/visda --json[/bold]")
def check(
    *,
    name: Annotated[str, typer.Argument(help="Data set: pacs, visda, domainnet, office-home, digits or folder.")],
    root: options.Root = None,
    split: options.Split = None,
    class_order: options.ClassOrder = "shared-first",
    verify: Annotated[bool, typer.Option("--verify", help="Decode every image instead of reading its header.")] = False,
    workers: options.Workers = 2,
    allow_outside: options.AllowOutside = False,
    max_pixels: options.MaxPixels = options.MAX_PIXELS,
    as_json: options.AsJson = False,
) -> None:
    """Say what is there: domains, classes, images, unreadable files, the splits and their sizes, what is missing.

    Exit code 1 if something is missing or unreadable, or a split does not fit.
    """
    from driftgate.lab.cli.experiment import check_class_order
    from driftgate.lab.data.check import check_dataset
    from driftgate.shifts import ClassSplit

    order = check_class_order(class_order)
    if split is not None:
        ClassSplit.parse(split, order)  # a misspelt split should not wait for the files to be looked at
    with progress_bars() as report:
        found = check_dataset(
            name,
            root,
            order,
            custom=split,
            verify=verify,
            workers=workers,
            progress=report,
            allow_outside=allow_outside,
            max_pixels=max_pixels,
        )
    if as_json:
        print_json(found.to_dict())
    else:
        for line in found.lines():
            output.print(line, markup=False, soft_wrap=True)
        verdict = "everything is there" if found.ok else "not complete: see the lines above"
        doubt = ", but read the warnings above" if found.ok and found.warnings else ""
        output.print(verdict + doubt, style="bold")
    if not found.ok:
        raise typer.Exit(INCOMPLETE)
