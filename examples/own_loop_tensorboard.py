"""A loop of your own, with curves for TensorBoard.

    python examples/own_loop_tensorboard.py && tensorboard --logdir runs/tensorboard

The stream has no labels. What can be seen without: losses, the share of samples rejected and learned from, novelty.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import driftgate
from driftgate.loggers import TensorBoardLogger

CENTERS = 4.0 * torch.eye(5, 8)  # the last of the five classes is new


def rows(labels: Tensor, turned: float) -> Tensor:
    """Rows of 8 features around the centre of their class; ``turned`` mixes neighbouring features."""
    return CENTERS[labels] @ (torch.eye(8) + turned * torch.eye(8).roll(1, 0)) + torch.randn(len(labels), 8)


def my_network() -> nn.Module:
    """Your trained classifier of four classes."""
    network = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(100):
        labels = torch.randint(0, 4, (64,))
        loss = nn.functional.cross_entropy(network(rows(labels, 0.0)), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network


def main() -> None:
    """The loop: a step, its curves, and whatever you do with the answer."""
    torch.manual_seed(0)
    model = driftgate.wrap(my_network(), ["ash", "elm", "fir", "oak"], pretrained=False)
    method = driftgate.create("gmm", model)
    stream = (rows(torch.randint(0, 5, (32,)), turned=number / 100) for number in range(60))
    with TensorBoardLogger("runs/tensorboard") as logger:
        for step in driftgate.stream_steps(method, stream):
            logger(step)
            rejected = int((step.prediction.labels == driftgate.UNKNOWN).sum())
            if rejected > 16:
                print(f"batch {step.number}: {rejected} of {len(step.prediction)} rejected; have a look at them")
    losses = ", ".join(f"{name} {float(value):.3f}" for name, value in step.prediction.losses.items())
    print(f"after {method.steps} steps: {losses}; curves in runs/tensorboard")


if __name__ == "__main__":
    main()
