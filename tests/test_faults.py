"""The short forms of ``make soak`` and ``make fuzz``: the same code with fewer kills, inputs and steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import load_benchmark

from driftgate import available

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.timeout(900)  # of a machine with much other work, too


def script(*arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork")
def test_killed_runs_end_as_if_they_had_been_left_alone() -> None:
    table = script("kills.py", "--methods", "gmm,adacontrast,owttt", "--kills", 2)
    assert [line.split("|")[1:3] for line in table.splitlines()[2:]] == [
        [" gmm ", " 2 "],
        [" adacontrast ", " 2 "],
        [" owttt ", " 2 "],
    ]


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return load_benchmark("fuzz")


@pytest.mark.parametrize("target", ["lists", "checkpoints", "progress", "suites", "records"])
@pytest.mark.filterwarnings("ignore")
def test_readers_let_out_nothing_but_their_own_errors(fuzz: ModuleType, target: str) -> None:
    outcomes = fuzz.fuzz(target, 0, 60)
    assert sum(outcomes.values()) == 60
    assert outcomes["refused"] > 0 or target == "records", "some inputs must be bad enough"
    assert len(outcomes) > 1, "and some sound enough to go all the way"


@pytest.mark.filterwarnings("ignore")
def test_batches_that_no_camera_sends_leave_every_method_whole(fuzz: ModuleType) -> None:
    outcomes = fuzz.fuzz("batches", 0, 8 * len(available()))
    assert outcomes["refused"] > 0 and outcomes["taken"] > 0


def test_the_fuzzer_itself_notices(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(file: Path, num_classes: int | None) -> object:
        return int(file.read_bytes().split()[1])

    monkeypatch.setattr(fuzz, "read_list", careless)
    with pytest.raises(AssertionError, match=r"lists: input \d+ brought out"):
        fuzz.fuzz("lists", 0, 50)


def test_a_short_soak_stays_where_it_was() -> None:
    soak = load_benchmark("soak")
    found = soak.soak("gmm", 260, 8, 8)
    faults = [text for text in soak.faults(found) if "slowed" not in text]  # 40 steps on a busy machine tell nothing
    assert faults == []
    assert soak.faults({**found, "growth": 0.5, "slowing": 1.0}) == ["memory grew by 50.0 %", "steps slowed by 100 %"]
    assert "open_files grew" in soak.faults({**found, "end": {**found["end"], "open_files": 10**6}})
