"""``python -m driftgate``, and the ``driftgate`` command."""

import sys

from driftgate.extras import lacking


def main() -> None:
    """Start the command line, or say in one line what it lacks: the core can be installed without the laboratory."""
    problem = lacking("lab", "The command line")
    if problem is not None:
        print(f"Error: {problem}", file=sys.stderr)
        sys.exit(2)
    from driftgate.lab.cli import main as run

    run()


if __name__ == "__main__":
    main()
