"""A finished small sweep, a copy of it, and processes that end with their test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.bench.sweeps import SOURCE, Start, tiny_plan

from driftgate.lab.bench.sweep import run_sweep


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the command in a process of its own, as a user does; what still runs at the end of the test is killed."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "driftgate", *map(str, arguments)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny sweep, done in this process."""
    out = tmp_path_factory.mktemp("serial")
    result = run_sweep(tiny_plan(), out, backend="serial")
    assert not result.failures
    return out


@pytest.fixture
def copied(serial: Path, tmp_path: Path) -> Path:
    """The tiny sweep to be broken."""
    return Path(shutil.copytree(serial, tmp_path / "copied"))
