"""What the tests of sweeps share: small suites, what a sweep left, processes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import tiny_suite

from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.plan import Plan, make_plan
from driftgate.lab.bench.suite import Suite

SOURCE = Path(__file__).parents[3] / "src"
QUICK = ["--limit", "2", "--quick-training"]
OF_THE_MACHINE = ("seconds", "wall_seconds", "peak_memory_bytes", "versions")
STARTS_PROCESSES = pytest.mark.timeout(900)
"""Each process imports torch, which takes a while on a busy machine."""

NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")

KEYS = {"id", "suite", "source", "target", "shift", "seed", "study", "variant", "method", "settings", "model"}


def tiny(**changes: Any) -> Suite:
    """Two short streams."""
    more = {"shifts": ["PDA", "OPDA"], "methods": ["source-only", "bn-stats", "gmm"], "training": {"held_out": 0.1}}
    return tiny_suite(**{**more, **changes})


def tiny_plan(**changes: Any) -> Plan:
    return make_plan(tiny(**changes), limit=2, quick_training=True)


def tiny_file(folder: Path, **changes: Any) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(json.dumps(tiny(**changes).model_dump(mode="json")))  # YAML holds JSON
    return file


def results(out: Path) -> dict[str, dict[str, Any]]:
    """What the records say, without what belongs to the machine: time, memory, versions."""
    found = {}
    for record in SweepFolder(out).all_records():
        found[record["id"]] = {key: value for key, value in record.items() if key not in OF_THE_MACHINE}
    return found


def moments(out: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in (out / "records").glob("*.json")}


Start = Callable[..., "subprocess.Popen[str]"]


def wait_for(condition: Any, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that was killed but not yet waited for still answers.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True).stdout
    return "Z" not in state


def children(pid: int) -> set[int]:
    """The processes that joblib has started for a process."""
    told = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(pid)], check=False, capture_output=True, text=True
    )
    return {int(line.split()[0]) for line in told.stdout.splitlines() if "loky" in line and "tracker" not in line}
