"""A stream at twice the speed that the step can bear, by a real clock: who is predicted in time, what is learned.

    python benchmarks/pacing.py [--batches 2000] [--speed 2] [--delay-steps 5]

`gmm` on 28 x 28 pixels, 32 images a batch, one thread. First the median of some steps alone; then batches come at that
time divided by `--speed`, whoever listens, and `max_delay` is `--delay-steps` of it. Delays are counted from the moment
a batch was due by the schedule, not from when it was taken.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import torch
from torch import Tensor

import driftgate
from driftgate.models import UNTRAINED
from driftgate.pacing import TRIALS, Pacing
from driftgate.resources import give_back_memory, resident_memory
from driftgate.rng import seeded

EARLY = 200
"""Batches before the first reading of memory."""


def batches(count: int) -> Iterator[Tensor]:
    generator = seeded(0)
    patterns = torch.rand(10, 3, 28, 28, generator=generator)
    for _ in range(count):
        chosen = torch.randint(10, (32,), generator=generator)
        yield (patterns[chosen] + 0.2 * torch.randn(32, 3, 28, 28, generator=generator)).clamp_(0.0, 1.0)


def by_the_clock(count: int, gap: float, behind: list[float]) -> Iterator[Tensor]:
    """The trials when they are asked for, then a batch every ``gap`` seconds; ``behind`` tells by how much each was
    taken later than it was due."""
    stream = batches(count)
    for _ in range(TRIALS):
        behind.append(0.0)
        yield next(stream)
    started = time.monotonic()
    for place, batch in enumerate(stream):
        due = started + place * gap
        time.sleep(max(0.0, due - time.monotonic()))
        behind.append(time.monotonic() - due)
        yield batch


def memory() -> float:
    give_back_memory()
    return (resident_memory() or 0) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--speed", type=float, default=2.0)
    parser.add_argument("--delay-steps", type=float, default=5.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = driftgate.SourceModel.build("cnn", [f"class {index}" for index in range(10)], weights=UNTRAINED)
    method = driftgate.create("gmm", model)
    alone = [step.seconds for step in driftgate.stream_steps(method, batches(40))]
    step = statistics.median(alone[10:])
    gap, max_delay = step / arguments.speed, arguments.delay_steps * step
    print(f"a step alone {1000 * step:.0f} ms; a batch every {1000 * gap:.0f} ms, max_delay {1000 * max_delay:.0f} ms")

    pacing, early = Pacing(max_delay), 0.0
    behind: list[float] = []
    delays: list[float] = []
    for paced in driftgate.stream_steps(method, by_the_clock(arguments.batches, gap, behind), max_delay=pacing):
        delays.append(paced.delay + behind[paced.number - 1])
        if paced.number == EARLY:
            early = memory()
    late, longest, usual = sum(delay > max_delay for delay in delays), max(delays), statistics.median(delays)
    end = memory()
    print(f"{len(delays)} batches: {pacing.learned} learned from, {pacing.not_learned} only predicted; {late} late")
    print(f"delays: median {1000 * usual:.0f} ms, largest {1000 * longest:.0f} ms of {1000 * max_delay:.0f} ms")
    growth = 100 * (end / early - 1)
    print(f"resident memory: {early:.1f} MiB after batch {EARLY}, {end:.1f} MiB at the end ({growth:+.1f} %)")


if __name__ == "__main__":
    main()
