"""uvicorn around the app: one process, a bounded number of connections, and an end that lets nobody wait."""

from __future__ import annotations

import logging
import signal
import socket
from types import FrameType

import uvicorn

from driftgate.serve.app import create_app
from driftgate.serve.service import Service

CONNECTIONS = 512
"""More are answered with 503 at once."""
GRACE_SECONDS = 10
"""Given to requests under way when the service is asked to stop."""

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Tells the pages that look at the service to go, which would otherwise hold up its end."""

    def __init__(self, service: Service, host: str, port: int) -> None:
        self.service = service
        super().__init__(
            uvicorn.Config(
                create_app(service),
                host=host,
                port=port,
                loop="asyncio",  # these two and no other, whatever else is installed: their limits are tested
                http="h11",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=CONNECTIONS,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=GRACE_SECONDS,
                h11_max_incomplete_event_size=16_384,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT; a second Ctrl-C waits for nobody. Not raised again at the end, as uvicorn would do it:
        whoever asked the service to stop gets exit code 0."""
        self.service.stopping.set()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def run(service: Service, door: socket.socket) -> None:
    """Serve whoever comes in by a socket that listens, until SIGTERM or SIGINT; the state is saved at the end, however
    it comes about."""
    host, port = door.getsockname()[:2]
    try:
        Server(service, host, port).run(sockets=[door])
    finally:
        service.close()
