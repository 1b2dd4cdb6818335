"""Wrap a classifier you have, adapt it over a DataLoader, save it, and take the network back.

    python examples/wrap_dataloader.py

The network is a toy and its pictures are noise around one colour a class, which fades; put your own in their places.
"""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import driftgate

CLASS_NAMES = ["apple", "pear", "plum"]
COLOURS = torch.tensor([[0.8, 0.2, 0.2], [0.4, 0.8, 0.2], [0.4, 0.2, 0.6], [0.2, 0.5, 0.9]])  # the last is no fruit


def pictures(labels: Tensor, light: float) -> Tensor:
    """Pictures (N, 3, 32, 32) as cameras give them: bytes."""
    values = COLOURS[labels].view(-1, 3, 1, 1) + 0.2 * torch.randn(len(labels), 3, 32, 32)
    return (255 * light * values.clamp(0, 1)).to(torch.uint8)


def my_network() -> nn.Module:
    """Your trained classifier: normalised pictures to logits, in whatever layers."""
    body = nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    network = nn.Sequential(body, nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, len(CLASS_NAMES)))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(60):
        labels = torch.randint(0, 3, (32,))
        logits = network((pictures(labels, 1.0) / 255 - 0.5) / 0.25)
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=0.2)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network


def main() -> None:
    """Four lines do it: wrap, create, loop, step."""
    torch.manual_seed(0)
    network, labels = my_network(), torch.randint(0, 4, (640,))
    loader = DataLoader(TensorDataset(pictures(labels, 0.6), labels), batch_size=32)
    model = driftgate.wrap(network, CLASS_NAMES, input_size=(32, 32), mean=0.5, std=0.25)
    method = driftgate.create("gmm", model)
    for batch in loader:  # (pictures, labels): the labels are not looked at
        out = method.step(batch)
        print(f"step {method.steps:2d}: {int((out.labels == driftgate.UNKNOWN).sum()):2d} of {len(out)} unknown")
    with tempfile.TemporaryDirectory() as folder:
        method.save(f"{folder}/adapted.safetensors")
        again = driftgate.load(f"{folder}/adapted.safetensors", model=my_network())
    print(f"goes on at step {again.steps}; the network is the one that was wrapped: {method.network() is network}")


if __name__ == "__main__":
    main()
