"""A method outside the package goes through a sweep: in this process, in worker processes, and by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "margin_entropy.py"
SMALL = ("--shifts", "OPDA", "--limit", "3", "--quick-training", "--methods", "source-only,margin-entropy")


def bench(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "driftgate", "bench", "digits", *SMALL, "--out", str(tmp_path / "runs"), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)


@pytest.mark.timeout(900)  # each process imports torch, which takes a while on a busy machine
@pytest.mark.parametrize("backend", ["loky", "ray"])
def test_every_worker_knows_it(tmp_path: Path, backend: str) -> None:
    (tmp_path / "of_mine.py").write_text(EXAMPLE.read_text())
    done = bench(tmp_path, "--import", "of_mine", "--workers", "2", "--seeds", "1", "--backend", backend, "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["scores"]["suite"]["OPDA"]
    assert scores["margin-entropy"]["runs"] == 1 and scores["source-only"]["runs"] == 1


def test_without_the_import_the_name_is_unknown(tmp_path: Path) -> None:
    done = bench(tmp_path)
    assert done.returncode == 2 and "--import my_module" in done.stderr
