"""A run that is killed at random moments and resumed ends bit for bit as one that was never touched.

    python benchmarks/kills.py                           # every method, 20 kills each
    python benchmarks/kills.py --methods gmm,tent --kills 3

Real SIGKILLs, anywhere: while a batch is learned from, while a checkpoint is written, while one is read back. The last
column counts those that hit a file half written.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from driftgate.lab.data.streams import TensorStream
from driftgate.methods import Method, available, create
from driftgate.models import SourceModel
from driftgate.models.statistics import SourceStatistics
from driftgate.progress import remove_progress
from driftgate.rng import seeded
from driftgate.shifts import ClassSplit
from driftgate.stream import run_stream

SPLIT, SIZE, FEATURES, BATCHES, BATCH_SIZE = ClassSplit(3, 2, 2), 8, 16, 12, 16


def small_method(name: str) -> Method:
    """The method around a small network, set to learn from every batch."""
    model = SourceModel.build(
        "cnn", [f"class {index}" for index in range(SPLIT.num_source)], input_size=(SIZE, SIZE), feature_dim=FEATURES
    )
    draw = seeded(1)
    model.statistics = SourceStatistics(
        torch.randn(SPLIT.num_source, FEATURES, generator=draw), torch.zeros(FEATURES), torch.eye(FEATURES)
    )
    wished: dict[str, Any] = {"min_batch": 1, "max_grad_norm": 1.0, "seed": 3}
    return create(name, model, **{key: wished[key] for key in wished.keys() & available()[name].Settings.model_fields})


def small_stream() -> TensorStream:
    """Noise with labels, the same each time."""
    draw = seeded(2)
    images = torch.randint(0, 256, (BATCHES * BATCH_SIZE, 3, SIZE, SIZE), generator=draw, dtype=torch.int64).to(
        torch.uint8
    )
    classes = torch.randint(SPLIT.num_source + 2, (len(images),), generator=draw)
    return TensorStream(images, SPLIT.target_labels(classes), batch_size=BATCH_SIZE, seed=4)


def run(name: str, checkpoint: Path | None, result: Path) -> None:
    """The whole run, or what is left of it; a digest of everything it leaves goes to ``result``."""
    method = small_method(name)
    log = run_stream(method, small_stream(), SPLIT, checkpoint=checkpoint, checkpoint_every=0).log
    digest = hashlib.sha256()
    tensors = {**method.state_dict(), **{f"log.{key}": value for key, value in log.tensors().items()}}
    for key in sorted(tensors.keys() - {"log.seconds"}):
        digest.update(key.encode() + tensors[key].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    result.write_text(digest.hexdigest())


def in_child(name: str, checkpoint: Path | None, result: Path) -> int:
    """``run`` in a process of its own; forked, because to import torch takes longer than the run."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            run(name, checkpoint, result)
            os._exit(0)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
    return pid


def untouched(name: str, folder: Path) -> tuple[str, float]:
    """Digest and seconds of a run that saves as often and is left alone."""
    started = time.monotonic()
    _, status = os.waitpid(in_child(name, folder / "left alone.safetensors", folder / "left alone"), 0)
    if status != 0:
        raise SystemExit(f"{name}: the run fails by itself")
    return (folder / "left alone").read_text(), time.monotonic() - started


def killed(name: str, folder: Path, kills: int, draw: random.Random) -> tuple[int, int]:
    """Kill and resume until ``kills`` processes died: runs finished, and kills that hit a half-written file."""
    expected, seconds = untouched(name, folder)
    checkpoint, result = folder / "run.safetensors", folder / "run"
    died = finished = half_written = 0
    while died < kills or finished == 0:
        pid = in_child(name, checkpoint, result)
        if died < kills:
            time.sleep(draw.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            died += 1
            half_written += (folder / ".run.safetensors.tmp").exists()
            continue
        if status != 0 or result.read_text() != expected:
            raise SystemExit(f"{name}: after {died} kills the run ended otherwise than one that was left alone")
        finished += 1
        result.unlink()
        remove_progress(checkpoint)
    return finished, half_written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(available()))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # forked processes have no other threads
    print("| method | kills | runs finished, all bit for bit the same | kills that hit a half-written file |")
    print("|---|---|---|---|", flush=True)
    for name in chosen.methods.split(","):
        with tempfile.TemporaryDirectory() as folder:
            finished, half_written = killed(name, Path(folder), chosen.kills, random.Random(f"{name} {chosen.seed}"))
        print(f"| {name} | {chosen.kills} | {finished} | {half_written} |", flush=True)


if __name__ == "__main__":
    main()
