"""``driftgate report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import make_table, note, output, print_json


@app.command(epilog="Example: [bold]driftgate report runs/digits runs/pacs --out runs/report[/bold]")
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, as bench, ablate and demo leave them.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for page and tables; DIR/report of the first if not given.")
    ] = None,
    figures: Annotated[str | None, typer.Option(help="Also write every figure as a file: pdf, svg or png.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a page with tables, charts and statistics of finished runs, and the tables as CSV, Markdown and LaTeX.

    The page is one file that needs no network. It also works while a sweep is still going on: what is missing is left
    out and said so.
    """
    from driftgate.lab.bench.names import method_name
    from driftgate.lab.bench.tables import number
    from driftgate.lab.files import writable_folder
    from driftgate.lab.report.page import write_report

    target = out or folders[0] / "report"
    # A folder of runs that is not there must be named as such, not created as a place for the report.
    if folders[0].is_dir() or out is not None:
        writable_folder(target)
    written = write_report(folders, target, figures)
    if as_json:
        print_json(written.facts)
    for name, facts in () if as_json else written.facts["suites"].items():
        rows = [
            (method_name(method), number(row["mean"]), number(row["std"]), number(row["rank"], 0))
            for method, row in facts["means"].items()
        ]
        output.print(make_table(name, ("method", "mean score", "±", "rank"), rows, left=("method",)))
        for warning in facts["warnings"]:
            note(warning)
    note(f"Page: {written.page}; tables: {', '.join(path.name for path in written.files) or 'none'}.")
