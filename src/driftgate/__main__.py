"""``python -m driftgate``, and the ``driftgate`` command."""

import io
import os
import sys

from driftgate.extras import lacking


def main() -> None:
    """Start the command line, or say in one line what it lacks: the core can be installed without the laboratory."""
    _have_streams()
    problem = lacking("lab", "The command line")
    if problem is not None:
        print(f"Error: {problem}", file=sys.stderr)
        sys.exit(2)
    from driftgate.lab.cli import main as run

    try:
        run()
    finally:
        _forget_what_nobody_takes()


def _have_streams() -> None:
    """Give a process that was started without them standard streams, and let none of them refuse a letter.

    A closed stream's number would go to the next file that is opened, and whatever is printed into that file.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _forget_what_nobody_takes() -> None:
    """A full disk or a closed pipe was told of already: the interpreter would try once more, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
