"""Rows of features instead of pictures: a classifier on 64 sensors that drift, and new classes nobody trained it on.

    python examples/rows.py

The rows are scikit-learn's digits, of which the classifier learns 0 to 6. In the stream every sensor has got a gain and
an offset of its own and noise, and 7 to 9 appear. Printed is the H-score: named known digits, rejected new ones.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import driftgate
from driftgate.metrics import HScore

KNOWN, TRAINING = 7, 700


def trained(rows: Tensor, labels: Tensor) -> nn.Module:
    """Your classifier: from normalised rows to logits."""
    network = nn.Sequential(
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()),
        *(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU()),
        nn.Linear(32, KNOWN),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(120):
        chosen = torch.randint(0, len(rows), (64,))
        loss = nn.functional.cross_entropy(network(rows[chosen]), labels[chosen], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network


def score(name: str, seed: int) -> float:
    """H-score of a method on the drifted stream."""
    torch.manual_seed(seed)
    digits = load_digits()
    order = torch.randperm(len(digits.data))
    rows, labels = torch.tensor(digits.data, dtype=torch.float32)[order], torch.tensor(digits.target)[order]
    gain, offset = 0.4 + 0.9 * torch.rand(64), 5.0 * torch.rand(64)
    stream = rows[TRAINING:] * gain + offset + torch.randn(len(rows) - TRAINING, 64)
    learn = labels[:TRAINING] < KNOWN
    source, mean, std = rows[:TRAINING][learn], rows[:TRAINING].mean(dim=0), rows[:TRAINING].std(dim=0) + 0.5
    network = trained((source - mean) / std, labels[:TRAINING][learn])
    model = driftgate.wrap(network, [str(digit) for digit in range(KNOWN)], mean=mean.tolist(), std=std.tolist())
    method, metric = driftgate.create(name, model), HScore(range(KNOWN))
    for batch, truth in zip(stream.split(32), labels[TRAINING:].split(32), strict=True):
        metric.update(method.step(batch).labels, torch.where(truth < KNOWN, truth, driftgate.UNKNOWN))
    return float(metric.compute()["h_score"])


if __name__ == "__main__":
    for seed in range(3):
        print(f"seed {seed}: " + ", ".join(f"{name} {score(name, seed):.3f}" for name in ("source-only", "gmm")))
