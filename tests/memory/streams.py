"""Streams for the mixture's tests, and how they are compared with the oracle."""

from __future__ import annotations

import numpy as np
import torch
from memory.oracle import Array, OracleMixture
from torch import Tensor

from driftgate.memory import StreamingGMM

CLASSES, DIM, SAMPLES = 6, 16, 64
Batch = tuple[Array, Array]


def tensors(batch: Batch) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(batch[0]), torch.from_numpy(batch[1])


def random_spreads(rng: np.random.Generator) -> Array:
    """(C, R, R): each class has correlated features, with standard deviations from 0.3 to 3."""
    spreads = []
    for _ in range(CLASSES):
        basis, _ = np.linalg.qr(rng.normal(size=(DIM, DIM)))
        spreads.append(basis * rng.uniform(0.3, 3.0, size=DIM))
    return np.stack(spreads)


def stream(count: int, *, offset: float = 0.0, absent: range = range(0), seed: int = 0) -> list[Batch]:
    """Batches in float32 precision; the last two classes have weights near 0, class 0 is away during ``absent``."""
    rng = np.random.default_rng(seed)
    centers, spreads = 4.0 * rng.normal(size=(CLASSES, DIM)), random_spreads(rng)
    made = []
    for index in range(count):
        labels = rng.integers(CLASSES, size=SAMPLES)
        noise = rng.normal(size=(SAMPLES, DIM))
        features = offset + centers[labels] + np.einsum("nrs,ns->nr", spreads[labels], noise)
        logits = rng.normal(size=(SAMPLES, CLASSES)) + 5.0 * (labels[:, None] == np.arange(CLASSES))
        weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        weights[:, -2] *= 1e-6
        weights[:, -1] *= 1e-12
        if index in absent:
            weights[:, 0] = 0.0
        made.append((features.astype(np.float32).astype(np.float64), weights.astype(np.float32).astype(np.float64)))
    return made


def run(mixture: StreamingGMM, batches: list[Batch]) -> OracleMixture:
    """The same batches through the mixture and its oracle."""
    oracle = OracleMixture(mixture.num_classes, mixture.dim, mixture.decay, mixture.mean_shift)
    for batch in batches:
        mixture.update(*tensors(batch))
        oracle.update(*batch)
    return oracle


def assert_close(found: Tensor, expected: Array, tolerance: float = 1e-3) -> None:
    """Every entry to ``tolerance`` of the largest of its class: a mean near 0 has no relative error of its own."""
    scale = np.abs(expected).reshape(len(expected), -1).max(axis=1).reshape(-1, *[1] * (expected.ndim - 1))
    error = np.abs(found.numpy().astype(np.float64) - expected) / scale
    assert error.max() < tolerance, f"relative error {error.max()}"


def duplicated(rng: np.random.Generator) -> Array:
    return np.repeat(rng.normal(size=(4, DIM)), 16, axis=0)


def constant(rng: np.random.Generator) -> Array:
    return np.full((SAMPLES, DIM), 0.1)


def rank_deficient(rng: np.random.Generator) -> Array:
    return rng.normal(size=(SAMPLES, 2)) @ rng.normal(size=(2, DIM))


def huge_offset(rng: np.random.Generator) -> Array:
    return 1e6 + rng.normal(size=(SAMPLES, DIM))


def mixed_scales(rng: np.random.Generator) -> Array:
    return rng.normal(size=(SAMPLES, DIM)) * np.logspace(-8, 8, DIM)


HARD_BATCHES = [duplicated, constant, rank_deficient, huge_offset, mixed_scales]


def batches_of_the_papers_size() -> list[Batch]:
    """Ten batches of 64 samples in 64 dimensions; 40 classes are more than one block of work."""
    rng = np.random.default_rng(3)
    centers = 3.0 * rng.normal(size=(40, 64))
    made = []
    for _ in range(10):
        labels = rng.integers(40, size=64)
        logits = rng.normal(size=(64, 40)) + 3.0 * (labels[:, None] == np.arange(40))
        weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        made.append((centers[labels] + rng.normal(size=(64, 64)), weights))
    return made
