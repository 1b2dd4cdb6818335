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
from contextlib import suppress
from types import FrameType

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
    alive, held = os.pipe()
    service, asked = 0, False

    def forward(number: int, _: FrameType | None) -> None:
        nonlocal asked
        asked = True
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(service, number)

    # Signals wait except where there is a service to take them: none may fall between two of them, or between the
    # fork and the moment when its process is known here and answers for itself there.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    before = {number: signal.signal(number, forward) for number in FORWARDED}
    early = 0
    while True:
        started = time.monotonic()
        service = os.fork()
        if service == 0:
            break
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        code = os.waitstatus_to_exitcode(os.waitpid(service, 0)[1])
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    os.close(held)
    threading.Thread(target=_end_with_the_keeper, args=(alive,), name="driftgate-keeper", daemon=True).start()


def _end_with_the_keeper(alive: int) -> None:
    """Be killed when the keeper is gone: who comes next must find door and state free."""
    os.read(alive, 1)  # nobody ever writes to it: it is read to its end once nobody holds the other one
    os.kill(os.getpid(), signal.SIGKILL)
