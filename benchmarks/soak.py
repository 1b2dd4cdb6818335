"""Thousands of steps in one process: memory, time, threads and open files must stay where they were.

python benchmarks/soak.py                 # 20,000 steps of gmm on small pictures
python benchmarks/soak.py --method comet-f --steps 500 --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from typing import Any

import torch

from driftgate.methods import create
from driftgate.models import SourceModel
from driftgate.resources import give_back_memory, resident_memory
from driftgate.rng import seeded

SETTLED = 100
"""Steps after which nothing may grow any more: all buffers have been allocated by then."""
LARGEST_GROWTH = 0.02
LARGEST_SLOWING = 0.25
"""Of the last quarter of the steps against the first; in the processor's time, for others use the machine too."""


def soak(method: str, steps: int, batch_size: int, size: int) -> dict[str, Any]:
    """Take the steps and tell what the process held at step ``SETTLED`` and at the end."""
    model = SourceModel.build("cnn", [f"class {index}" for index in range(9)], input_size=(size, size))
    adapting, generator = create(method, model), seeded(0)
    seconds, held = [], {}
    for step in range(1, steps + 1):
        images = torch.rand(batch_size, 3, size, size, generator=generator)
        started = time.process_time()
        adapting.step(images)
        seconds.append(time.process_time() - started)
        if step in (SETTLED, steps):
            give_back_memory()  # what is held counts, not what the allocator has not returned yet
            held[step] = {
                "resident_bytes": resident_memory() or 0,
                "threads": threading.active_count(),
                "system_threads": len(os.listdir("/proc/self/task")),
                "open_files": len(os.listdir("/proc/self/fd")),
            }
    block = max((steps - SETTLED) // 4, 1)
    quarters = [statistics.median(seconds[start : start + block]) for start in range(SETTLED, steps - block + 1, block)]
    return {
        "method": method,
        "steps": steps,
        "settled": held[SETTLED],
        "end": held[steps],
        "growth": held[steps]["resident_bytes"] / held[SETTLED]["resident_bytes"] - 1.0,
        "slowing": quarters[-1] / quarters[0] - 1.0,
        "median_seconds": quarters,
    }


def faults(found: dict[str, Any]) -> list[str]:
    """What did not stay where it was."""
    counted = ("threads", "system_threads", "open_files")
    return [
        *([f"memory grew by {100 * found['growth']:.1f} %"] if found["growth"] > LARGEST_GROWTH else []),
        *([f"steps slowed by {100 * found['slowing']:.0f} %"] if found["slowing"] > LARGEST_SLOWING else []),
        *(f"{name} grew" for name in counted if found["end"][name] > found["settled"][name]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="gmm")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.steps <= SETTLED:
        parser.error(f"expected more than {SETTLED} steps but got {arguments.steps}")
    found = soak(arguments.method, arguments.steps, arguments.batch_size, arguments.size)
    if arguments.json:
        print(json.dumps({**found, "faults": faults(found)}, indent=2))
        return
    for name in ("resident_bytes", "threads", "system_threads", "open_files"):
        print(
            f"{name}: {found['settled'][name]:,} at step {SETTLED}, {found['end'][name]:,} at step {found['steps']:,}"
        )
    print(f"growth of memory {100 * found['growth']:+.2f} % (at most {100 * LARGEST_GROWTH:.0f} %)")
    times = ", ".join(f"{1000 * value:.1f}" for value in found["median_seconds"])
    print(f"median milliseconds of the processor a step, by quarter: {times}")
    if faults(found):
        raise SystemExit("; ".join(faults(found)))


if __name__ == "__main__":
    main()
