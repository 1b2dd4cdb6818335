"""Inputs that nobody would write, against everything that reads: only a ``DriftgateError`` may come out.

    python benchmarks/fuzz.py                                   # every target, 100,000 inputs each
    python benchmarks/fuzz.py lists --inputs 1000
    python benchmarks/fuzz.py batches --methods gmm --start 5000 --inputs 1000

Targets: list files, checkpoints, progress of runs, suites, records, and batches (every method in turn; its state must
stay finite, and as it was where the batch was refused). Input number n is drawn from n alone: any failure is named by
its number and can be had again with ``--start n --inputs 1``, and long runs can be done in pieces.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fuzz_batches import BatchFuzzer
from fuzz_inputs import changed_bytes, changed_document, list_text, odd_tensor
from kills import SPLIT, small_method, small_stream
from safetensors import safe_open
from safetensors.torch import save_file

from driftgate.checkpoint import KEY, SUMS
from driftgate.lab.bench.results import read_results
from driftgate.lab.bench.suite import read_suite
from driftgate.lab.data.domains import list_domain, read_list
from driftgate.methods import available, load_method
from driftgate.models import SourceModel
from driftgate.stream import run_stream
from driftgate.types import DriftgateError

Attempt = Callable[[random.Random], str]
"""Makes an input, gives it to its reader, and says what became of it in one word; DriftgateErrors count as refused."""

SUITE = """
name: small
data: digits
backbone: cnn
pairs: [rendered -> mnist]
shifts: [PDA, OPDA]
splits: {PDA: 6/4/0}
methods: [source-only, {name: gmm, settings: {lr: 0.01}, preset: paper}]
batch_size: 8
unknown_shares: [0.3, 0->0.8]
seeds: [0, 1]
training: {epochs: 1, lr: 1e-3}
"""


def lists(folder: Path) -> Attempt:
    """List files of all kinds of bytes, read and looked up."""
    (folder / "cat").mkdir()
    (folder / "cat" / "1.png").write_bytes(b"")
    file = folder / "Art_list.txt"

    def attempt(draw: random.Random) -> str:
        file.write_bytes(list_text(draw))
        listed = read_list(file, draw.choice([None, 12]))
        names = sorted(set(listed.folder_names.values())) or [str(number) for number in range(12)]
        domain = list_domain("art", listed, [folder, folder.parent], names, root=draw.choice([folder, None]))
        return f"read, {'one' if len(domain) == 1 else 'many'}"

    return attempt


def checkpoints(folder: Path) -> Attempt:
    """Files of a method and of a model: bytes flipped, documents of other shapes, tensors of other kinds."""
    method = small_method("gmm")
    for batch in list(small_stream().batches())[:2]:
        method.step(batch.images)
    method.save(folder / "method.safetensors")
    method.model.save(folder / "model.safetensors")
    readers: dict[str, Callable[[Path], object]] = {"method": load_method, "model": SourceModel.load}
    sound = {name: _content(folder / f"{name}.safetensors") for name in readers}
    file = folder / "x.safetensors"

    def attempt(draw: random.Random) -> str:
        name = draw.choice(list(readers))
        raw, document, tensors = sound[name]
        if draw.random() < 0.3:
            file.write_bytes(changed_bytes(raw, draw))
        else:
            # Without checksums, as older versions wrote them: otherwise nothing behind them would be reached.
            other = {key: value for key, value in document.items() if key != SUMS}
            chosen = dict(tensors)
            if draw.random() < 0.5:
                other = changed_document(other, draw)
            else:
                key = draw.choice(list(chosen))
                chosen[key] = odd_tensor(chosen[key], draw)
            save_file(chosen, file, metadata={KEY: json.dumps(other)})
        readers[name](file)
        return "loaded"

    return attempt


def _content(file: Path) -> tuple[bytes, dict[str, Any], dict[str, torch.Tensor]]:
    with safe_open(file, framework="pt") as opened:
        document = json.loads(opened.metadata()[KEY])
        return file.read_bytes(), document, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def progress(folder: Path) -> Attempt:
    """A run whose log or checkpoint was damaged after its last batch."""
    path, method, stream = folder / "run.safetensors", small_method("source-only"), small_stream()
    stream.order = stream.order[: 3 * stream.batch_size]
    run_stream(method, stream, SPLIT, checkpoint=path, checkpoint_every=0)
    files = {file: file.read_bytes() for file in (path, folder / "run.safetensors.log")}

    def attempt(draw: random.Random) -> str:
        for file, content in files.items():
            file.write_bytes(content)
        hit = draw.choice(list(files))
        hit.write_bytes(changed_bytes(files[hit], draw))
        run_stream(method, stream, SPLIT, checkpoint=path, checkpoint_every=1e9)
        return "resumed"

    return attempt


def suites(folder: Path) -> Attempt:
    """YAML of suites, as text and as documents."""
    file = folder / "suite.yaml"
    import yaml

    sound = yaml.safe_load(SUITE)

    def attempt(draw: random.Random) -> str:
        if draw.random() < 0.4:
            file.write_bytes(changed_bytes(SUITE.encode(), draw))
        else:
            file.write_text(json.dumps(changed_document(sound, draw)), encoding="utf-8")
        read_suite(file)
        return "read"

    return attempt


def records(folder: Path) -> Attempt:
    """Records of runs in a folder of results; a bad one is left out with a warning, never an error for the others."""
    record = run_stream(small_method("gmm"), small_stream(), SPLIT, protocol={"target": ["b"], "seed": 0}).record
    named = {"id": "a", "suite": "s", "source": "a", "target": "b", "shift": "OPDA", "seed": 0, "digest": "0" * 64}
    sound = json.loads(json.dumps({**record, **named, "study": None, "variant": None}))
    (folder / "records").mkdir()
    file, beside = folder / "records" / "odd.json", folder / "records" / "sound.json"

    def attempt(draw: random.Random) -> str:
        if draw.random() < 0.4:
            file.write_bytes(changed_bytes(json.dumps(sound).encode(), draw))
        else:
            file.write_text(json.dumps(changed_document({**sound, "id": "b", "seed": 1}, draw)))
        # A frame of runs costs forty times what it costs to refuse a record: most lie alone.
        beside.write_text(json.dumps(sound)) if draw.random() < 0.05 else beside.unlink(missing_ok=True)
        found = read_results([folder])
        return f"read, {sum(len(suite.frame) for suite in found)} runs"

    return attempt


TARGETS: dict[str, Callable[[Path], Attempt]] = {
    "lists": lists,
    "checkpoints": checkpoints,
    "progress": progress,
    "suites": suites,
    "records": records,
}
BATCHES = "batches"
MEMORY = Path("/dev/shm")
"""Files in memory, where the system has them: the readers are tried, not the disk, and they are a hundred thousand."""


def fuzz(target: str, start: int, inputs: int, methods: list[str] | None = None) -> Counter[str]:
    """What became of the inputs; raises at the first that brings out anything but a ``DriftgateError``."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        if target == BATCHES:
            attempt: Attempt = BatchFuzzer([small_method(name) for name in methods or list(available())])
        else:
            attempt = TARGETS[target](Path(folder))
        gc.freeze()  # a run looks at its memory and collects first, through all modules again and again
        for number in range(start, start + inputs):
            try:
                outcomes[attempt(random.Random(f"{target} {number}"))] += 1
            except DriftgateError:
                outcomes["refused"] += 1
            except Exception as error:
                raise AssertionError(f"{target}: input {number} brought out {type(error).__name__}: {error}") from error
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=[*TARGETS, BATCHES])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--methods", help="for batches; all if not given")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    methods = None if chosen.methods is None else chosen.methods.split(",")
    for target in chosen.targets:
        started, busy = time.monotonic(), time.process_time()
        outcomes = fuzz(target, chosen.start, chosen.inputs, methods).most_common()
        found = ", ".join(f"{count:,} {word}" for word, count in outcomes)
        print(
            f"{target}: inputs {chosen.start:,} to {chosen.start + chosen.inputs - 1:,} in "
            f"{time.monotonic() - started:.0f} s ({time.process_time() - busy:.0f} s of the processor): {found}",
            flush=True,
        )


if __name__ == "__main__":
    main()
