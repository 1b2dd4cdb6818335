"""What all tests share."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell lets what it runs in the background ignore Ctrl-C, and its children too; some tests press it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
