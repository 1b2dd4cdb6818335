"""``driftgate data check``."""

from __future__ import annotations

from typing import Annotated, Any

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


@options.command(data_app, epilog="Example: [bold]driftgate data check visda --root data/visda --json[/bold]")
def check(
    *,
    name: Annotated[str, typer.Argument(help="Data set: pacs, visda, domainnet, office-home, digits or folder.")],
    tree: options.TreeOptions,
    verify: Annotated[bool, typer.Option("--verify", help="Decode every image instead of reading its header.")] = False,
    workers: options.Workers = 2,
    as_json: options.AsJson = False,
) -> None:
    """Say what is there: domains, classes, images, unreadable files, the splits and their sizes, what is missing.

    Exit code 1 if something is missing or unreadable, or a split does not fit.
    """
    from driftgate.lab.cli.experiment import check_class_order
    from driftgate.lab.data.check import check_dataset
    from driftgate.shifts import ClassSplit

    order = check_class_order(tree.class_order)
    if tree.split is not None:
        ClassSplit.parse(tree.split, order)  # a misspelt split should not wait for the files to be looked at
    read: dict[str, Any] = {"allow_outside": tree.allow_outside, "max_pixels": tree.max_pixels, "workers": workers}
    with progress_bars() as report:
        found = check_dataset(name, tree.root, order, custom=tree.split, verify=verify, progress=report, **read)
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
