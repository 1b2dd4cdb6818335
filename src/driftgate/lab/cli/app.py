"""The application itself: global options, and errors as one clear line."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

import typer
from rich.logging import RichHandler
from typer.core import TyperGroup

from driftgate.lab.cli.console import errors, fail, note

USER_ERROR, INTERRUPTED = 2, 130
COMMAND_ORDER = (
    *("demo", "pretrain", "import-checkpoint", "adapt", "export", "serve", "watch"),
    *("bench", "ablate", "report", "methods", "memory", "cost", "data"),
)


class DriftgateGroup(TyperGroup):
    """Mistakes the user can mend end in one line and exit code 2; a traceback comes only with ``--debug``."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order a newcomer needs them."""
        return sorted(super().list_commands(ctx), key=COMMAND_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            note(" ".join(["Interrupted.", *map(str, interruption.args)]))
            raise typer.Exit(INTERRUPTED) from interruption
        except Exception as error:
            if ctx.params.get("debug") or not _mendable(error):
                raise
            fail(str(error))
            raise typer.Exit(USER_ERROR) from error


def _mendable(error: Exception) -> bool:
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return True
    # Not imported here: where no command has loaded the library yet, it cannot have complained.
    types = sys.modules.get("driftgate.types")
    return types is not None and isinstance(error, types.DriftgateError)


app = typer.Typer(
    cls=DriftgateGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"driftgate {version('driftgate')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and log everything.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Keep a trained classifier accurate on a drifting stream, and reject classes it never learned.

    Start with [bold]driftgate demo[/bold]; every command explains itself with --help.
    """
    handler = RichHandler(console=errors, show_time=False, show_path=False)
    level = logging.DEBUG if debug else logging.WARNING
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler], force=True)
    logging.getLogger("driftgate").setLevel(level)


def main() -> None:
    """Entry point of the ``driftgate`` command."""
    app(prog_name="driftgate")
