"""What a command shows: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

from driftgate.text import shown

PIPE_WIDTH = 150
"""Columns of a table that nobody's terminal limits."""


def _width(stream_is_terminal: bool) -> int | None:
    return None if stream_is_terminal or "COLUMNS" in os.environ else PIPE_WIDTH


class PlainConsole(Console):
    """A console on which names from outside cannot act: no escape code comes through but its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)


output = PlainConsole(width=_width(sys.stdout.isatty()), highlight=False)
errors = PlainConsole(stderr=True, width=_width(sys.stderr.isatty()), highlight=False)

Report = Callable[[str, int, int], None]
"""Told what is being done, and how many of its steps are done out of how many."""


def fail(message: str) -> None:
    """One line on stderr, however long it is."""
    line = " ".join(message.split())
    errors.print("Error: ", style="bold red", end="")
    errors.print(line, markup=False, soft_wrap=True)


def refuse(message: str) -> NoReturn:
    """End the command as a mistake that the user can mend."""
    from driftgate.types import DriftgateError  # with torch, which is slow to import

    raise DriftgateError(message)


def note(message: str) -> None:
    """A remark beside the result, on stderr."""
    errors.print(message, markup=False, soft_wrap=True)


def print_json(document: Any) -> None:
    """The only thing on stdout where ``--json`` was asked for."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()  # a full disk is told of here, not when the interpreter ends


def make_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]] = (),
    *,
    left: Sequence[str] = (),
    widths: Mapping[str, int | None] | None = None,
    bold: str | None = None,
) -> Table:
    """A table whose columns are right-aligned but for those named in ``left``; the row that begins with ``bold`` is so.

    Columns in ``widths`` may have several lines, each at most so wide.
    """
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    widths = widths or {}
    for name in columns:
        justify: Literal["left", "right"] = "left" if name in left else "right"
        table.add_column(name, justify=justify, no_wrap=name not in widths, max_width=widths.get(name))
    for row in rows:
        table.add_row(*row, style="bold" if bold is not None and row[0] == bold else None)
    return table


def print_result(document: Any, shown: RenderableType, as_json: bool) -> None:
    """The result of a command, as JSON where that was asked for."""
    if as_json:
        print_json(document)
    else:
        output.print(shown)


def percent(value: float | None) -> str:
    """A fraction as people read it."""
    return "-" if value is None else f"{100.0 * value:.1f}"


def kibibytes(count: float) -> str:
    """Bytes in the paper's KB."""
    return f"{count / 1024:,.2f}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def progress_bars() -> Iterator[Report]:
    """Bars on stderr, one for each piece of work at hand. Plain lines where no terminal is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:

        def report(label: str, done: int, total: int) -> None:
            if done >= total and not errors.is_terminal:
                note(f"done: {label}")
            task = tasks[label] if label in tasks else tasks.setdefault(label, progress.add_task(label))
            progress.update(task, completed=done, total=total, visible=done < total)

        yield report
