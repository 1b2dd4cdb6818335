"""Rows of features instead of pictures: a classifier on 64 sensors, and new classes nobody trained it on.

    python examples/rows.py

The rows are scikit-learn's digits, 8 x 8 sensors each, of which the classifier learns 0 to 6. In the stream the plate
with the sensors sits turned by 20 degrees, and 7 to 9 appear. Printed are H-scores, high if known digits are named and
new ones rejected; part of the gain is that of the batch's own normalisation (bn-stats).
"""

from __future__ import annotations

import torch
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import driftgate
from driftgate.metrics import HScore

KNOWN, TRAINING = 7, 700


def trained(rows: Tensor, labels: Tensor) -> nn.Module:
    """Your classifier: from normalised rows to logits."""
    layers = (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
    network = nn.Sequential(*layers, nn.Linear(32, KNOWN))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(120):
        chosen = torch.randint(0, len(rows), (64,))
        loss = nn.functional.cross_entropy(network(rows[chosen]), labels[chosen], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network


def score(name: str, seed: int) -> float:
    """H-score of a method on the turned stream."""
    torch.manual_seed(seed)
    order, digits = torch.randperm(1797), load_digits()
    turned = rotate(digits.images, 20, axes=(1, 2), reshape=False, order=1).reshape(-1, 64)
    rows, stream = (torch.tensor(values, dtype=torch.float32)[order] for values in (digits.data, turned))
    labels = torch.tensor(digits.target)[order]
    source, known = rows[:TRAINING], labels[:TRAINING] < KNOWN
    mean, std = source.mean(dim=0), source.std(dim=0) + 0.5
    network = trained(((source - mean) / std)[known], labels[:TRAINING][known])
    model = driftgate.wrap(network, list("0123456"), mean=mean.tolist(), std=std.tolist(), pretrained=False)
    method, metric = driftgate.create(name, model), HScore(range(KNOWN))
    for batch, truth in DataLoader(TensorDataset(stream[TRAINING:], labels[TRAINING:]), batch_size=32):
        metric.update(method.step(batch).labels, torch.where(truth < KNOWN, truth, driftgate.UNKNOWN))
    return float(metric.compute()["h_score"])


if __name__ == "__main__":
    for seed in range(3):
        scores = (f"{name} {score(name, seed):.3f}" for name in ("source-only", "bn-stats", "gmm"))
        print(f"seed {seed}: {', '.join(scores)}")
