"""A process that keeps the door open: where the service is killed, it forks another at once.

It has loaded all that takes seconds to load, and computes nothing, so that a fork of it is whole. Connections that come
in between wait in the queue of the socket, which it holds, and are answered by the next.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import threading
import time
from types import FrameType
from typing import NoReturn

import torch

from driftgate.types import DriftgateError

BACKLOG = 2048
"""Connections that may wait at the door."""
SOON = 5.0
"""Seconds; whoever is killed before was hardly there."""
IN_A_ROW = 3
"""Times that may happen in a row; then starting again would not help."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

logger = logging.getLogger(__name__)


def open_door(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise DriftgateError(
            f"Expected to listen on {host}, port {port}, but got {error}; choose another --port or --host."
        ) from None


def preload(*modules: str) -> None:
    """Import some, and what a method needs with its first step: the optimiser brings in torch's compiler, a second of
    one core."""
    for name in modules:
        importlib.import_module(name)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def go_on_in_a_kept_process() -> None:
    """Return in a process of its own, and again in a new one each time a signal has killed the last.

    The caller's own process does not return: it leaves with the exit code of the first that ends by itself, or by the
    signal that it was sent itself. If it is killed, so is the other.
    """
    keeper, service = os.getpid(), 0
    alive, held = os.pipe()  # nobody ever writes: its end is the keeper's
    asked: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if service:
            os.kill(service, number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    early = 0
    while True:
        started = time.monotonic()
        service = os.fork()
        if service == 0:
            break
        code = os.waitstatus_to_exitcode(os.waitpid(service, 0)[1])
        service = 0
        if code >= 0 or asked:
            raise SystemExit(code if code >= 0 else 128 - code)
        lived = time.monotonic() - started
        early = early + 1 if lived < SOON else 0
        name = signal.Signals(-code).name
        if early == IN_A_ROW:
            raise SystemExit(f"The service was killed {early} times within {SOON:.0f} s, last by {name}; given up.")
        logger.warning("The service was killed by %s after %.0f s; it is started again.", name, lived)
    os.setpgid(0, 0)  # or a Ctrl-C would reach it twice, and the second waits for nobody
    for number, handler in before.items():
        signal.signal(number, handler)
    os.close(held)
    threading.Thread(target=_end_with, args=(alive, keeper), name="driftgate-keeper", daemon=True).start()


def _end_with(alive: int, keeper: int) -> NoReturn:
    """Wait for the end of the keeper, and be killed as it was: who comes next must find door and state free."""
    while os.read(alive, 1):
        pass
    logger.error("Process %d, which kept this service, is gone; so is this.", keeper)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
