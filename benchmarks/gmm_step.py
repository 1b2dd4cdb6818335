"""Speed and memory of one mixture step (update + log-likelihood) beside a plain reference, measured in one run.

The reference is what the equations look like when typed in: N x C x R x R outer products and one scipy
``multivariate_normal`` a class, in float64. The mixture is measured in both forms, with a covariance a class (full) and
with one for all (tied); the reference is the same for both. The third column of times is the form's own work as bare
float32 matrix products, the limit of the machine: for full the moments, (C, N) x (N, R(R+1)/2), and the whitening,
(C, R, R) x (C, R, N); for tied the moments, (C + R, N) x (N, R), the spread of the means, (R, C) x (C, R), the
whitening, (R, R) x (R, N + C), and the distances, (C, R) x (R, N). The equations need float64, so the ratio to the same
products in float64 stands beside.

Runs are interleaved, so that a busy machine slows all alike; times are medians over the rounds, ratios of times medians
of each round's own ratio. A step of a millisecond still suffers
otherwise than one of seconds; ``--cpu-time`` counts what the process itself worked, on one thread. Extra peak memory is
the peak resident memory during a step minus the resident memory before it, each in a process of its own; it therefore
holds what numpy, scipy, torch and their libraries allocate, and needs Linux.

    python benchmarks/gmm_step.py
    OMP_NUM_THREADS=1 python benchmarks/gmm_step.py --cpu-time
    python benchmarks/gmm_step.py --json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from driftgate.memory import CovarianceForm, StreamingGMM
from driftgate.resources import peak_memory, reset_peak_memory, resident_memory

Array = NDArray[np.float64]

SAMPLES, DIM, DECAY = 64, 64, 0.999
CLASSES = (9, 65, 200, 345)
FORMS: tuple[CovarianceForm, ...] = get_args(CovarianceForm)
SPEED_TARGETS = {9: 40.0, 345: 60.0}
MEMORY_TARGET = 25.0
SETTLE_SECONDS = 0.2
"""Threads of numpy's and torch's libraries wait actively for a while after their last work; let them fall asleep."""


class PlainReference:
    """Eqs. 1-3 and the Gaussian density as written, in float64."""

    def __init__(self, num_classes: int) -> None:
        self.weights: Array = np.zeros(num_classes)
        self.means: Array = np.zeros((num_classes, DIM))
        self.covariances: Array = np.zeros((num_classes, DIM, DIM))

    def step(self, features: Array, weights: Array) -> Array:
        past = DECAY * self.weights
        self.weights = past + weights.sum(axis=0)
        self.means = (past[:, None] * self.means + weights.T @ features) / self.weights[:, None]
        offsets = features[:, None, :] - self.means
        outer = offsets[..., :, None] * offsets[..., None, :]
        summed = (weights[..., None, None] * outer).sum(axis=0)
        self.covariances = (past[:, None, None] * self.covariances + summed) / self.weights[:, None, None]
        columns = []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            density = multivariate_normal(mean, covariance + 1e-6 * np.eye(DIM), allow_singular=True)
            columns.append(density.logpdf(features))
        return np.stack(columns, axis=1)


def batches(num_classes: int, count: int) -> list[tuple[Array, Array]]:
    """Clustered features and the softmax outputs of a fairly sure classifier."""
    rng = np.random.default_rng(num_classes)
    centers = 3.0 * rng.normal(size=(num_classes, DIM))
    made = []
    for _ in range(count):
        labels = rng.integers(num_classes, size=SAMPLES)
        features = centers[labels] + rng.normal(size=(SAMPLES, DIM))
        logits = rng.normal(size=(SAMPLES, num_classes)) + 6.0 * (labels[:, None] == np.arange(num_classes))
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        made.append((features, weights / weights.sum(axis=1, keepdims=True)))
    return made


Step = Callable[[int], object]


def reference_step(num_classes: int, data: list[tuple[Array, Array]]) -> Step:
    reference = PlainReference(num_classes)
    return lambda turn: reference.step(*data[turn % len(data)])


def driftgate_step(num_classes: int, data: list[tuple[Array, Array]], form: CovarianceForm) -> Step:
    mixture = StreamingGMM(num_classes, DIM, DECAY, covariance=form)
    tensors = [tuple(torch.from_numpy(part).float() for part in batch) for batch in data]

    def step(turn: int) -> object:
        features, weights = tensors[turn % len(tensors)]
        mixture.update(features, weights)
        return mixture.log_likelihood(features)

    return step


def full_product_step(num_classes: int, data: list[tuple[Array, Array]], dtype: torch.dtype) -> Step:
    weights = torch.from_numpy(data[0][1]).to(dtype).T.contiguous()
    outer = torch.randn(SAMPLES, DIM * (DIM + 1) // 2, dtype=dtype)
    factors, offsets = (
        torch.randn(num_classes, DIM, DIM, dtype=dtype),
        torch.randn(num_classes, DIM, SAMPLES, dtype=dtype),
    )
    return lambda turn: (weights @ outer, factors @ offsets)


def tied_product_step(num_classes: int, data: list[tuple[Array, Array]], dtype: torch.dtype) -> Step:
    features, weights = (torch.from_numpy(part).to(dtype) for part in data[0])
    left = torch.cat([weights.T, features.T])
    means, factor = torch.randn(num_classes, DIM, dtype=dtype), torch.randn(DIM, DIM, dtype=dtype)
    points = torch.cat([features, means]).T.contiguous()
    return lambda turn: (left @ features, means.T @ means, factor @ points, means @ features.T)


STEPS: dict[str, Callable[[int, list[tuple[Array, Array]]], Step]] = {
    "reference": reference_step,
    "full": partial(driftgate_step, form="full"),
    "tied": partial(driftgate_step, form="tied"),
    "full product": partial(full_product_step, dtype=torch.float32),
    "tied product": partial(tied_product_step, dtype=torch.float32),
    "full product float64": partial(full_product_step, dtype=torch.float64),
    "tied product float64": partial(tied_product_step, dtype=torch.float64),
}


@dataclass(frozen=True)
class Row:
    """One form of the mixture at one number of classes."""

    classes: int
    covariance: CovarianceForm
    reference_ms: float
    driftgate_ms: float
    product_ms: float
    speedup: float
    ratio_to_product: float
    ratio_to_float64_product: float
    reference_mib: float
    driftgate_mib: float

    @property
    def memory_ratio(self) -> float:
        return self.reference_mib / self.driftgate_mib if self.driftgate_mib > 0 else math.inf

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"memory_ratio": self.memory_ratio}


def milliseconds(num_classes: int, rounds: int, repeats: int, clock: Callable[[], float]) -> dict[str, Array]:
    """Time of a step by ``clock``, a number a round: one run of the reference, else the median of ``repeats``."""
    data = batches(num_classes, 8)
    steps = {name: make(num_classes, data) for name, make in STEPS.items()}
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):  # the first round warms up
        for name, step in steps.items():
            time.sleep(SETTLE_SECONDS)
            seconds = []
            for again in range(1 if name == "reference" else repeats):
                start = clock()
                step(turn * repeats + again)
                seconds.append(clock() - start)
            found[name].append(1e3 * statistics.median(seconds))
    return {name: np.array(values[1:]) for name, values in found.items()}


def measure_memory(name: str, num_classes: int) -> float:
    """Extra peak memory of one step in MiB, in this process; the median of three steps after two to warm up."""
    step = STEPS[name](num_classes, batches(num_classes, 8))
    libc = ctypes.CDLL(None)
    peaks = []
    for turn in range(5):
        libc.malloc_trim(0)
        reset_peak_memory()
        before = resident_memory() or 0
        step(turn)
        peaks.append((peak_memory() - before) / 1024.0**2)
    return statistics.median(peaks[2:])


def extra_memory(name: str, num_classes: int) -> float:
    """``measure_memory`` in a fresh process; NaN where the system does not tell."""
    if not reset_peak_memory():
        return math.nan
    # Large blocks must go back to the system at once, or a step would hide in the leftovers of the one before.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--measure", name, "--classes", str(num_classes)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(result.stdout)


def compare(num_classes: int, rounds: int, repeats: int, clock: Callable[[], float]) -> list[Row]:
    times = milliseconds(num_classes, rounds, repeats, clock)
    memory = {name: extra_memory(name, num_classes) for name in ("reference", *FORMS)}
    return [
        Row(
            classes=num_classes,
            covariance=form,
            reference_ms=float(np.median(times["reference"])),
            driftgate_ms=float(np.median(times[form])),
            product_ms=float(np.median(times[f"{form} product"])),
            speedup=float(np.median(times["reference"] / times[form])),
            ratio_to_product=float(np.median(times[form] / times[f"{form} product"])),
            ratio_to_float64_product=float(np.median(times[form] / times[f"{form} product float64"])),
            reference_mib=memory["reference"],
            driftgate_mib=memory[form],
        )
        for form in FORMS
    ]


def missed_targets(row: Row) -> list[str]:
    where, speed, missed = f"C={row.classes}, {row.covariance}", SPEED_TARGETS.get(row.classes, 0.0), []
    if row.speedup < speed:
        missed.append(f"{where}: {row.speedup:.1f}x faster, target {speed:.0f}x")
    if row.memory_ratio < MEMORY_TARGET:  # NaN, not measured, misses nothing
        missed.append(f"{where}: {row.memory_ratio:.1f}x less memory, target {MEMORY_TARGET:.0f}x")
    return missed


def print_table(rows: list[Row]) -> None:
    print(f"One mixture step, N={SAMPLES}, R={DIM}, {torch.get_num_threads()} threads, medians")
    print("              time in ms                                              | extra peak memory in MiB")
    print("   C  form   reference  driftgate  ratio  product  to product  float64 | reference  driftgate  ratio")
    for row in rows:
        print(
            f"{row.classes:4d}  {row.covariance}  {row.reference_ms:10.2f} {row.driftgate_ms:10.3f} {row.speedup:6.1f}"
            f" {row.product_ms:8.3f} {row.ratio_to_product:11.2f} {row.ratio_to_float64_product:8.2f} |"
            f" {row.reference_mib:9.1f} {row.driftgate_mib:10.2f} {row.memory_ratio:6.1f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed and memory of one mixture step beside a plain reference.")
    parser.add_argument("--classes", type=int, nargs="+", default=list(CLASSES), help="numbers of classes to measure")
    parser.add_argument("--rounds", type=int, default=7, help="runs of the reference")
    parser.add_argument("--repeats", type=int, default=10, help="runs of the others beside each run of the reference")
    parser.add_argument("--cpu-time", action="store_true", help="time of the processor instead of the clock's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    parser.add_argument("--measure", choices=sorted(STEPS), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(measure_memory(chosen.measure, chosen.classes[0]))
        return 0
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    rows = [row for number in chosen.classes for row in compare(number, chosen.rounds, chosen.repeats, clock)]
    missed = [text for row in rows for text in missed_targets(row)]
    if chosen.json:
        found = {"samples": SAMPLES, "dim": DIM, "rows": [row.as_dict() for row in rows], "missed_targets": missed}
        print(json.dumps(found, indent=2))
    else:
        print_table(rows)
        print("All targets met." if not missed else "Missed: " + "; ".join(missed))
    return 1 if missed and chosen.check else 0


if __name__ == "__main__":
    sys.exit(main())
