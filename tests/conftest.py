"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    """A shell lets what it runs in the background ignore Ctrl-C, and its children too; some tests press it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Ray keeps its own answer to SIGTERM when it is shut down: no test hands one on to the next."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
