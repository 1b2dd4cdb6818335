"""Does the network wait for its images, and does memory grow with their number? Measured beside plain references.

Waiting: EfficientNet-Lite0 at 112 px takes forward and backward steps over a folder of PACS's shape; the share of the
time spent in waiting for the next batch, beside the share when nothing is loaded ahead. Decoding: images a second in
threads and in processes, as ratios to a single thread. Memory: resident memory of a process that streams from a list
of 1,000 lines and of one with 100,000.

    python benchmarks/loading.py --root ../shared/data/pacs128
    python benchmarks/loading.py --json          (draws its own pictures of the same size)
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.domains import Domain, FileDomain
from driftgate.lab.data.loading import Transform, decode, load_ahead
from driftgate.lab.data.streams import DomainStream
from driftgate.models.backbones import build_backbone
from driftgate.shifts import ClassSplit
from driftgate.types import Batch

SIZE = (112, 112)
BATCH = 64
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
WAIT_TARGET = 0.10
LINES = (1_000, 100_000)
GROWTH_TARGET = 24 * 2**20


def draw_pacs(root: Path, per_class: int = 40) -> Path:
    """Pictures of 128 x 128 with the detail of photographs, so that decoding them costs as much."""
    random = np.random.default_rng(0)
    for domain in DOMAINS:
        for name in CLASSES:
            (root / domain / name).mkdir(parents=True)
            for index in range(per_class):
                coarse = Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8))
                coarse.resize((128, 128), Image.Resampling.BICUBIC).save(root / domain / name / f"{index:03d}.jpg")
    return root


class Network(nn.Module):
    """EfficientNet-Lite0 with a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        backbone = build_backbone("lite0", input_size=SIZE)
        self.backbone = backbone.module
        self.classifier = nn.Linear(1280, len(CLASSES))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def step(self, batch: Batch) -> None:
        features: torch.Tensor = self.backbone(batch.images).flatten(1)
        self.zero_grad()
        torch.autograd.backward(F.cross_entropy(self.classifier(features), batch.labels))


def waiting_share(network: Network, stream: DomainStream, steps: int) -> dict[str, float]:
    """Share of the time that goes into waiting for the next batch; the first batch counts too."""
    waited = total = 0.0
    with closing(stream.batches()) as batches:
        for _ in range(steps):
            started = time.perf_counter()
            batch = next(batches)
            arrived = time.perf_counter()
            network.step(batch)
            done = time.perf_counter()
            waited, total = waited + arrived - started, total + done - started
    return {"share": waited / total, "seconds_per_step": total / steps}


def measure_waiting(domains: list[Domain], steps: int) -> dict[str, Any]:
    """Loading ahead beside loading in the step itself."""
    split = ClassSplit(len(CLASSES), 0, 0)
    network = Network().train()
    results = {}
    for name, workers in (("warm-up", 1), ("in the step", 0), ("1 thread", 1), ("2 threads", 2)):
        stream = DomainStream(domains, split, input_size=SIZE, batch_size=BATCH, workers=workers)
        count = 2 if name == "warm-up" else min(steps, len(stream))
        results[name] = waiting_share(network, stream, count)
    del results["warm-up"]
    return results


def load_chunk(paths: list[str]) -> list[np.ndarray[Any, Any]]:
    """Decode and transform; at the top level, so that a process can be told to do it and send the pixels back."""
    transform = Transform(SIZE)
    return [np.ascontiguousarray(transform(decode(path)).numpy()) for path in paths]


def measure_decoding(paths: list[str], repeats: int = 3) -> dict[str, float]:
    """Images a second for one thread, two threads and two processes that send their pixels back."""
    chunks = [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(load_chunk, chunks[:4]))  # start the processes
        ways: dict[str, Callable[[], Iterator[Any]]] = {
            "1 thread": lambda: load_ahead(load_chunk, chunks, workers=1),
            "2 threads": lambda: load_ahead(load_chunk, chunks, workers=2),
            "2 processes": lambda: pool.map(load_chunk, chunks),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):  # interleaved, so that a busy machine slows all alike
            for name, way in ways.items():
                started = time.perf_counter()
                for _ in way():
                    pass
                rates[name].append(len(paths) / (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in rates.items()}


def stream_list(root: str) -> None:
    """In a process of its own: stream from a list and print the resident memory."""
    data = open_dataset("folder", root)
    stream = DomainStream([data.domain("day")], data.split(custom="7/0/0"), input_size=SIZE, batch_size=BATCH)
    with closing(stream.batches()) as batches:
        for _ in range(min(10, len(stream))):
            next(batches)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(json.dumps({"samples": stream.num_samples, "resident": pages * os.sysconf("SC_PAGE_SIZE")}))


def measure_memory(images: list[str]) -> dict[int, int]:
    """Resident bytes by the number of lines of the list."""
    resident = {}
    for lines in LINES:
        with tempfile.TemporaryDirectory() as folder:
            written = (f"{images[i % len(images)]} {i % len(CLASSES)}\n" for i in range(lines))
            (Path(folder) / "day_list.txt").write_text("".join(written))
            command = [sys.executable, __file__, "--probe", folder]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            resident[lines] = int(json.loads(run.stdout)["resident"])
    return resident


def measure(root: Path, steps: int) -> dict[str, Any]:
    data = open_dataset("pacs", root.resolve())
    domains = [data.domain(name) for name in data.domains]
    paths = [domain.path(i) for domain in domains if isinstance(domain, FileDomain) for i in range(0, len(domain), 2)]
    waiting = measure_waiting(domains, steps)
    decoding = measure_decoding(paths[:1024])
    memory = measure_memory(paths[:1000])
    growth = memory[LINES[1]] - memory[LINES[0]]
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "images": sum(len(domain) for domain in domains),
        "waiting": waiting,
        "decoding_images_per_second": decoding,
        "decoding_ratio": {name: rate / decoding["1 thread"] for name, rate in decoding.items()},
        "resident_bytes": memory,
        "resident_growth_bytes": growth,
        "resident_ratio": memory[LINES[1]] / memory[LINES[0]],
        "ok": waiting["1 thread"]["share"] < WAIT_TARGET and growth < GROWTH_TARGET,
    }


def show(result: dict[str, Any]) -> None:
    print(f"EfficientNet-Lite0, {SIZE[0]} px, batches of {BATCH}, {result['images']:,} images, {result['cores']} cores")
    print(f"{'loading':14} {'waiting':>8} {'s/step':>8}")
    for name, row in result["waiting"].items():
        print(f"{name:14} {row['share']:8.1%} {row['seconds_per_step']:8.3f}")
    print(f"target for 1 thread: below {WAIT_TARGET:.0%}\n")
    print(f"{'decoding':14} {'images/s':>8} {'ratio':>8}")
    for name, rate in result["decoding_images_per_second"].items():
        print(f"{name:14} {rate:8.0f} {result['decoding_ratio'][name]:8.2f}")
    print(f"\n{'list lines':14} {'resident MiB':>12}")
    for lines, size in result["resident_bytes"].items():
        print(f"{lines:<14,} {size / 2**20:12.1f}")
    print(f"ratio {result['resident_ratio']:.3f}, growth {result['resident_growth_bytes'] / 2**20:.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of PACS; without it pictures are drawn")
    parser.add_argument("--steps", type=int, default=12, help="network steps to measure each way of loading with")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.probe:
        stream_list(arguments.probe)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.root or draw_pacs(Path(folder))
        result = measure(root, arguments.steps)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
