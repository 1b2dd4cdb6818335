"""A network without batch norm in pieces: peak memory, time and weights of `gmm` beside the whole batch.

    OMP_NUM_THREADS=1 python benchmarks/pieces.py                   # ViT-B/16, 64 images, 112 px
    python benchmarks/pieces.py --size 224                          # needs 20 GB
    python benchmarks/pieces.py --size 224 --count                  # counts bytes, computes nothing

Each configuration takes the same steps from the same random weights, in a process of its own: one of 16 images, which
makes the momentum, then ``--steps`` of whole batches. Peak memory is that of the process above the loaded model,
gradients and momentum (two copies of the weights) included. Weights are compared after the last step.

``--count`` runs the passes of a step on torch's device without contents, meta, and counts the bytes of all tensors
alive at a time: gradients and momentum included, weights not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import driftgate
from driftgate.models import SourceModel
from driftgate.models.passes import MemoryMode, Passes
from driftgate.resources import peak_memory, reset_peak_memory, resident_memory
from driftgate.rng import DrawFrom, seeded

MEBIBYTE = 1024**2
MODES: tuple[MemoryMode, ...] = get_args(MemoryMode)
LARGEST_DIFFERENCE, LARGEST_SHARE = 1e-5, 0.2


class ViT(nn.Module):
    """ViT-B/16: 12 blocks of width 768 and 12 heads, 86 million parameters; from torch's own layers."""

    def __init__(self, size: int, num_classes: int) -> None:
        super().__init__()
        width = 768
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // 16) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 12, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)
        nn.init.normal_(self.head.weight, std=0.1)  # partly sure of itself, or there is nothing to learn from

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.places
        logits: Tensor = self.head(self.blocks(tokens)[:, 0])
        return logits


def build(chosen: argparse.Namespace) -> SourceModel:
    with DrawFrom(seeded(0)):
        network = ViT(chosen.size, chosen.classes)
    names = [f"class {index}" for index in range(chosen.classes)]
    return driftgate.wrap(network, names, input_size=(chosen.size, chosen.size), mean=0.5, std=0.25)


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors made inside that were alive at a time at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for part in tree_leaves(made):
            if isinstance(part, Tensor):
                storage = part.untyped_storage()
                self.held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        if sum(size for _, size in self.held.values()) > self.most:
            dead = [key for key, (storage, _) in self.held.items() if storage.expired()]  # type: ignore[no-untyped-call]
            for key in dead:
                del self.held[key]
            self.most = max(self.most, sum(size for _, size in self.held.values()))
        return made


def count(chosen: argparse.Namespace) -> None:
    """The passes over two views without contents, in every way."""
    model = build(chosen).to("meta")
    model.__dict__["_autocast"] = nullcontext  # which does not know this device
    momentum = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    ways: list[tuple[MemoryMode, int | None]] = [
        (memory, size) for size in (None, chosen.piece_size) for memory in MODES
    ]
    print("| memory | piece_size | MiB |\n|---|---|---|")
    for memory, model.piece_size in ways:
        with Alive() as alive:
            passes = Passes(model, memory=memory)
            views = [torch.empty(chosen.batch_size, *model.spec.shape, device="meta") for _ in range(2)]
            outputs = [passes.forward(view, last=view is views[-1]) for view in views]
            passes.backward(torch.stack([part.square().sum() for output in outputs for part in output]).sum())
        model.zero_grad(set_to_none=True)
        print(f"| {memory} | {model.piece_size or ''} | {(alive.most + momentum) / MEBIBYTE:,.0f} |", flush=True)


def measure(chosen: argparse.Namespace) -> dict[str, float]:
    """Steps of one configuration in this process; writes the weights to ``--weights``."""
    model = build(chosen)
    loaded, generator = resident_memory() or 0, seeded(1)
    method = driftgate.create("gmm", model, adapt_layers="all", memory=chosen.memory, piece_size=chosen.piece_size)
    peak, seconds = 0, []
    for count in [16, *[chosen.batch_size] * chosen.steps]:
        images = torch.rand(count, 3, chosen.size, chosen.size, generator=generator)
        reset_peak_memory()
        started = time.process_time()
        method.step(images)
        seconds.append(time.process_time() - started)
        peak = max(peak, peak_memory() - loaded)
    save_file({name: value.contiguous() for name, value in model.unwrapped().state_dict().items()}, chosen.weights)
    return {"seconds": min(seconds[1:]), "peak_bytes": peak}


def run(
    folder: Path, chosen: argparse.Namespace, label: str, *options: str
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """``measure`` in a fresh process, and the weights it left."""
    weights = folder / f"{label}.safetensors"
    same = [
        f"--{name}={getattr(chosen, name.replace('-', '_'))}" for name in ("size", "classes", "batch-size", "steps")
    ]
    command = [sys.executable, __file__, "--weights", str(weights), *same, *options]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found, load_file(weights)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=112, help="height and width of the images")
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--piece-size", type=int)
    parser.add_argument("--count", action="store_true", help="count bytes instead, without computing anything")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--memory", default="fast", help=argparse.SUPPRESS)
    parser.add_argument("--weights", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.count:
        chosen.piece_size = chosen.piece_size or 8
        count(chosen)
        return 0
    if chosen.weights:
        print(json.dumps(measure(chosen)))
        return 0
    pieces = f"--piece-size={chosen.piece_size or 8}"
    with tempfile.TemporaryDirectory() as folder:
        whole, expected = run(Path(folder), chosen, "whole")
        print(
            "| | processor seconds | to whole | peak MiB above the model | to whole | largest difference of a weight |"
        )
        print("|---|---|---|---|---|---|")
        print(f"| whole | {whole['seconds']:.1f} | 1.00 | {whole['peak_bytes'] / MEBIBYTE:,.0f} | 1.00 | |")
        met = True
        for label, options in {"pieces": [pieces], "pieces, low": [pieces, "--memory=low"]}.items():
            found, weights = run(Path(folder), chosen, label, *options)
            difference = max(float((weights[name] - value).abs().max()) for name, value in expected.items())
            share = found["peak_bytes"] / whole["peak_bytes"]
            met = met and difference <= LARGEST_DIFFERENCE and share <= LARGEST_SHARE
            print(
                f"| {label} | {found['seconds']:.1f} | {found['seconds'] / whole['seconds']:.2f} | "
                f"{found['peak_bytes'] / MEBIBYTE:,.0f} | {share:.2f} | {difference:.1e} |",
                flush=True,
            )
    print(
        f"At most {LARGEST_SHARE} of the peak and {LARGEST_DIFFERENCE:.0e} of difference: {'met' if met else 'MISSED'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
