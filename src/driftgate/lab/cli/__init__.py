"""The command line: thin commands over the library, one file a group. They hold no logic of their own.

torch takes seconds to import, so commands import what they need when they run: ``driftgate --help`` must be instant.
"""

# A command is known once its file is imported.
from driftgate.lab.cli import adapt, bench, data, demo, export, inspect, report, serve, train  # noqa: F401
from driftgate.lab.cli.app import app, main

__all__ = ["app", "main"]
