"""Speed and memory of one mixture step (update + log-likelihood) beside a plain reference, measured in one run.

The reference is what the equations look like when typed in: N x C x R x R outer products and one scipy
``multivariate_normal`` a class, in float64. The third column of times is a bare float32 matrix product of the same
work, the limit of the machine: the moments, (C, N) x (N, R(R+1)/2), and the whitening, (C, R, R) x (C, R, N).

Times are medians over interleaved runs, so that a busy machine slows all three alike. Extra peak memory is the peak
resident memory during a step minus the resident memory before it, each in a process of its own; it therefore holds
what numpy, scipy, torch and their libraries allocate, and needs Linux.

    python benchmarks/gmm_step.py
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

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from driftgate.memory import StreamingGMM
from driftgate.resources import peak_memory, reset_peak_memory, resident_memory

Array = NDArray[np.float64]

SAMPLES, DIM, DECAY = 64, 64, 0.999
CLASSES = (9, 65, 200, 345)
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


def driftgate_step(num_classes: int, data: list[tuple[Array, Array]]) -> Step:
    mixture = StreamingGMM(num_classes, DIM, DECAY)
    tensors = [tuple(torch.from_numpy(part).float() for part in batch) for batch in data]

    def step(turn: int) -> object:
        features, weights = tensors[turn % len(tensors)]
        mixture.update(features, weights)
        return mixture.log_likelihood(features)

    return step


def product_step(num_classes: int, data: list[tuple[Array, Array]]) -> Step:
    weights = torch.from_numpy(data[0][1]).float().T.contiguous()
    outer, factors = torch.randn(SAMPLES, DIM * (DIM + 1) // 2), torch.randn(num_classes, DIM, DIM)
    offsets = torch.randn(num_classes, DIM, SAMPLES)
    return lambda turn: (weights @ outer, factors @ offsets)


STEPS = {"reference": reference_step, "driftgate": driftgate_step, "product": product_step}


def milliseconds(num_classes: int, rounds: int, repeats: int) -> dict[str, float]:
    """Median time of a step of each; ``repeats`` fast steps go beside one slow one."""
    data = batches(num_classes, 8)
    steps = {name: make(num_classes, data) for name, make in STEPS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):  # the first round warms up
        for name, step in steps.items():
            time.sleep(SETTLE_SECONDS)
            for again in range(1 if name == "reference" else repeats):
                start = time.perf_counter()
                step(turn * repeats + again)
                if turn > 0:
                    seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


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


def compare(num_classes: int, rounds: int, repeats: int) -> dict[str, float]:
    times = milliseconds(num_classes, rounds, repeats)
    reference_mib, ours_mib = extra_memory("reference", num_classes), extra_memory("driftgate", num_classes)
    return {
        "classes": num_classes,
        "reference_ms": times["reference"],
        "driftgate_ms": times["driftgate"],
        "speedup": times["reference"] / times["driftgate"],
        "product_ms": times["product"],
        "ratio_to_product": times["driftgate"] / times["product"],
        "reference_mib": reference_mib,
        "driftgate_mib": ours_mib,
        "memory_ratio": reference_mib / ours_mib if ours_mib > 0 else math.inf,
    }


def missed_targets(row: dict[str, float]) -> list[str]:
    classes, missed = int(row["classes"]), []
    if row["speedup"] < SPEED_TARGETS.get(classes, 0.0):
        missed.append(f"C={classes}: {row['speedup']:.1f}x faster, target {SPEED_TARGETS[classes]:.0f}x")
    if row["memory_ratio"] < MEMORY_TARGET:  # NaN, not measured, misses nothing
        missed.append(f"C={classes}: {row['memory_ratio']:.1f}x less memory, target {MEMORY_TARGET:.0f}x")
    return missed


def print_table(rows: list[dict[str, float]]) -> None:
    print(f"One mixture step, N={SAMPLES}, R={DIM}, {torch.get_num_threads()} threads, medians")
    print("        time in ms                                    | extra peak memory in MiB")
    print("   C   reference  driftgate  ratio  product  to product | reference  driftgate  ratio")
    for row in rows:
        print(
            f"{row['classes']:4.0f}  {row['reference_ms']:10.2f} {row['driftgate_ms']:10.3f} {row['speedup']:6.1f}"
            f" {row['product_ms']:8.3f} {row['ratio_to_product']:11.2f} |"
            f" {row['reference_mib']:9.1f} {row['driftgate_mib']:10.2f} {row['memory_ratio']:6.1f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed and memory of one mixture step beside a plain reference.")
    parser.add_argument("--classes", type=int, nargs="+", default=list(CLASSES), help="numbers of classes to measure")
    parser.add_argument("--rounds", type=int, default=7, help="runs of the reference")
    parser.add_argument("--repeats", type=int, default=10, help="runs of the others beside each run of the reference")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    parser.add_argument("--measure", choices=sorted(STEPS), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(measure_memory(chosen.measure, chosen.classes[0]))
        return 0
    rows = [compare(num_classes, chosen.rounds, chosen.repeats) for num_classes in chosen.classes]
    missed = [text for row in rows for text in missed_targets(row)]
    if chosen.json:
        print(json.dumps({"samples": SAMPLES, "dim": DIM, "rows": rows, "missed_targets": missed}, indent=2))
    else:
        print_table(rows)
        print("All targets met." if not missed else "Missed: " + "; ".join(missed))
    return 1 if missed and chosen.check else 0


if __name__ == "__main__":
    sys.exit(main())
