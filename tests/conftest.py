"""What all tests share."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(autouse=True)
def own_signals() -> None:
    """Ctrl-C and SIGTERM as a program finds them when it starts, whoever came before.

    A shell lets what it runs in the background ignore Ctrl-C, and its children too; Ray keeps its own answer to SIGTERM
    when it is shut down.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
