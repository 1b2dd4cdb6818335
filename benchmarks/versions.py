"""Import time, step time and peak memory of two versions of the package, in turns in one run.

    git worktree add /tmp/before REVISION
    python benchmarks/versions.py /tmp/before/src                 # against the package that is imported here
    python benchmarks/versions.py /tmp/before/src --rounds 3 --backbone cnn --size 28

Every measurement is a process of its own. Times are the processor's, one thread, so that other programs on the machine
count for little; peaks are those of the process above the loaded model. `gmm` has the preset `paper`, which is the same
work in every version.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import driftgate

IMPORT = """
import time; started = time.process_time()
import driftgate; driftgate.create
print(time.process_time() - started)
"""
STEPS = """
import json, resource, sys, time, torch
from driftgate.methods import create
from driftgate.models import SourceModel
backbone, size, batch, steps = json.loads(sys.argv[1])
names = [f"class {index}" for index in range(9)]
model = SourceModel.build(backbone, names, input_size=(size, size), weights="none")
method = create("gmm", model, preset="paper")
images = torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, seconds = peak(), []
for _ in range(steps + 1):
    started = time.process_time()
    method.step(images)
    seconds.append(time.process_time() - started)
print(json.dumps([sorted(seconds[1:])[steps // 2], peak() - before]))
"""


def measured(source: Path, script: str, *arguments: str) -> str:
    """What a script prints with the package of ``source``."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the src folder of the other version")
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    versions = {"before": given.before.absolute(), "now": Path(driftgate.__file__).parents[1]}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in versions}
    work = json.dumps([given.backbone, given.size, given.batch, given.steps])
    for _ in range(given.rounds):
        for name, source in versions.items():
            seconds, peak = json.loads(measured(source, STEPS, work))
            found[name].append((float(measured(source, IMPORT)), seconds, peak))
    for place, what in enumerate(("import, s", "step, s", "peak, MiB")):
        values = {name: [row[place] for row in rows] for name, rows in found.items()}
        ratio = statistics.median(now / then for now, then in zip(values["now"], values["before"], strict=True))
        shown = ", ".join(f"{name} {statistics.median(rows):.3f}" for name, rows in values.items())
        print(f"{what}: {shown}; ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
