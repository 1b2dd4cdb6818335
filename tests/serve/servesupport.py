"""What the tests of the service share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image
from torch import Tensor

import driftgate
from driftgate import Method
from driftgate.serve.engine import EngineSettings
from driftgate.serve.server import Server
from driftgate.serve.service import Service, ServiceSettings

Command = tuple["subprocess.Popen[bytes]", httpx.Client]


def small_model() -> driftgate.SourceModel:
    """A network that a file can rebuild, as a service needs it; it knows three classes of 28 x 28."""
    return driftgate.SourceModel.build("cnn", ["cat", "dog", "owl"], seed=0)


def small_method(**settings: Any) -> Method:
    return driftgate.create("gmm", small_model(), **settings)


def samples(count: int, seed: int) -> Tensor:
    """Random pictures as the small model takes them."""
    return torch.rand(count, 3, 28, 28, generator=torch.Generator().manual_seed(seed))


def picture(seed: int, size: tuple[int, int] = (28, 28), kind: str = "PNG") -> bytes:
    """Random pixels as a file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def free_port() -> int:
    """One that nobody listens to."""
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        port: int = line.getsockname()[1]
        return port


def start_command(model: Path, state: Path, log: Path, *options: str, **environment: str) -> Command:
    """``driftgate serve`` in a process of its own, once it is ready, and a client of it."""
    port = free_port()
    command = [sys.executable, "-m", "driftgate", "serve", "--model", model, "--state", state, "--port", str(port)]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    with log.open("wb") as file:
        service = subprocess.Popen([*command, *options], env=surroundings, stderr=file, stdout=file)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
    for _ in range(2400):
        try:
            if client.get("/v2/health/ready").status_code == 200:
                return service, client
        except httpx.TransportError:
            assert service.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@contextmanager
def running(state: Path, **settings: Any) -> Iterator[tuple[Service, httpx.Client]]:
    """A service on a free port of the loopback, and a client of it."""
    settings = {"engine": EngineSettings(max_delay=0.002), **settings}
    service = Service(small_method(), state, ServiceSettings(**settings))
    server = Server(service, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            yield service, client
    finally:
        service.stopping.set()
        server.should_exit = True
        thread.join(timeout=120)
        service.close()
