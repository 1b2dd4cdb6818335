"""Wrap a network you already have, leave it running on a stream, stop and go on where it was.

    python examples/own_model.py

The network here is a toy and the stream is noise that slowly darkens; put your own in their places.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import driftgate

CLASS_NAMES = ["apple", "pear", "plum"]


def my_network() -> tuple[nn.Module, nn.Module]:
    """Your trained network in two parts: images to features, features to logits."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 32, 5, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    return nn.Sequential(backbone, nn.Flatten()), nn.Linear(128, len(CLASS_NAMES))


def wrap() -> driftgate.SourceModel:
    """Tell driftgate how to feed the network; it checks every batch against this."""
    backbone, classifier = my_network()
    return driftgate.SourceModel(
        backbone,
        classifier,
        class_names=CLASS_NAMES,
        input_size=(48, 48),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )


def my_camera(batches: int) -> Iterator[Tensor]:
    """Your stream: float tensors (N, 3, H, W) in [0, 1], any N."""
    generator = torch.Generator().manual_seed(1)
    for number in range(batches):
        yield torch.rand(32, 3, 48, 48, generator=generator) * (1.0 - 0.5 * number / batches)


def main() -> None:
    """Adapt, save, load, go on."""
    file = Path(tempfile.mkdtemp()) / "adapted.safetensors"
    method = driftgate.create("gmm", wrap())
    for images in my_camera(10):
        out = method.step(images)
        names = [CLASS_NAMES[label] if label != driftgate.UNKNOWN else "unknown" for label in out.labels.tolist()]
        print(f"step {method.steps:2d}: {names.count('unknown'):2d} of {len(names)} unknown, first is {names[0]}")
    method.save(file)
    again = driftgate.load(file, model=wrap())  # a backbone of your own cannot be rebuilt from a file alone
    print(f"saved {file.stat().st_size:,} bytes, of which {again.num_bytes:,} remember the stream")
    print(f"going on at step {again.steps}: {again.step(next(my_camera(1))).labels[:5].tolist()}")


if __name__ == "__main__":
    main()
