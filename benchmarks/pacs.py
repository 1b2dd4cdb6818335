"""The PACS table: four sources, three shifts, each method over the three other domains mixed.

    python benchmarks/pacs.py --root ../shared/data/pacs128 --seeds 3 --out runs/pacs

A finished training or run is never done again: stop it when you like and start it again. The table of all records in
the folder is printed at the end and written to `table.md` there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from driftgate.bench.jobs import Progress, available_cores, run_jobs
from driftgate.checkpoint import write_text
from driftgate.data.datasets import open_dataset
from driftgate.data.shifts import Shift
from driftgate.data.streams import DomainStream
from driftgate.methods import create
from driftgate.models import SourceModel
from driftgate.pretrain import PretrainSettings, pretrain
from driftgate.stream import run_stream

METHODS = "source-only,bn-stats,gmm"
INPUT_SIZE = (112, 112)
BATCH_SIZE = 64
HELD_OUT = 0.1

Records = dict[tuple[str, str, str, int], dict[str, Any]]
"""(source, shift, method, seed) -> run record."""


def model_file(out: Path, source: str, shift: Shift) -> Path:
    return out / "models" / f"{source}-{shift.value}.safetensors"


def source_model(root: Path, out: Path, source: str, shift: Shift, epochs: int | None, progress: Progress) -> Path:
    """Train the source model of a cell, unless it is there; a stopped training goes on."""
    file = model_file(out, source, shift)
    if not file.exists():
        data = open_dataset("pacs", root)
        split = data.split(shift)
        model = SourceModel.build("lite0", data.class_names[: split.num_source], input_size=INPUT_SIZE)
        settings = PretrainSettings.for_dataset("pacs", held_out=HELD_OUT, epochs=epochs)
        checkpoint = file.with_suffix(".progress.safetensors")
        report = pretrain(
            model,
            data.domain(source),
            split,
            settings,
            workers=0,
            checkpoint=checkpoint,
            on_step=lambda step: progress(f"{source} {shift.value} training", step.step, step.steps),
        )
        write_text(file.with_suffix(".json"), json.dumps({"held_out_accuracy": report.held_out_accuracy}))
        model.save(file)
        checkpoint.unlink(missing_ok=True)
    return file


def train(root: Path, out: Path, source: str, shift: Shift, epochs: int | None, progress: Progress) -> None:
    """One source model, as a job of its own."""
    source_model(root, out, source, shift, epochs, progress)


def run(root: Path, out: Path, source: str, shift: Shift, name: str, seed: int, limit: int, progress: Progress) -> None:
    """One method over one stream; the seed decides the order of the stream and the augmentation."""
    record = out / "records" / f"{source}-{shift.value}-{name}-seed{seed}.json"
    if record.exists():
        return
    data = open_dataset("pacs", root)
    split = data.split(shift)
    method = create(name, SourceModel.load(model_file(out, source, shift)), seed=seed)
    stream = DomainStream(
        [data.domain(target) for target in data.targets(source)],
        split,
        input_size=INPUT_SIZE,
        batch_size=BATCH_SIZE,
        seed=seed,
        workers=0,
        limit=limit or None,
    )
    label = f"{source} {shift.value} {name} seed {seed}"
    total = len(stream)
    protocol = {"data": "pacs", "source": source, "seed": seed, "batch_size": BATCH_SIZE, "limit": limit or None}
    checkpoint = record.with_suffix(".progress.safetensors")
    run_stream(
        method,
        stream,
        split,
        protocol=protocol,
        checkpoint=checkpoint,
        on_batch=lambda log: progress(label, len(log), total),
    ).save(record)
    checkpoint.unlink(missing_ok=True)


def read_records(out: Path) -> Records:
    found: Records = {}
    for file in sorted((out / "records").glob("*.json")):
        record = json.loads(file.read_text())
        protocol = record["protocol"]
        found[protocol["source"], protocol["shift"], record["method"], protocol["seed"]] = record
    return found


def table(records: Records, out: Path, methods: Sequence[str]) -> str:
    """A row a cell, percent, mean over the seeds that are there; in brackets the best fixed threshold in hindsight."""
    lines = [
        f"| source | shift | held out | {' | '.join(methods)} | seeds |",
        "|---|---|---|" + "---|" * (len(methods) + 1),
    ]
    means: dict[str, list[float]] = {name: [] for name in methods}
    for source, shift in dict.fromkeys((source, shift) for source, shift, _, _ in records):
        cells, seeds = [], 0
        for name in methods:
            rows = [record for key, record in records.items() if key[:3] == (source, shift, name)]
            scores = [100 * float(row["metrics"][row["score"]]) for row in rows]
            best = [100 * float(row["metrics"]["best_threshold_score"]) for row in rows]
            seeds = len(rows)
            means[name].append(sum(scores) / max(seeds, 1))
            cells.append(f"{sum(scores) / seeds:.1f} ({sum(best) / seeds:.1f})" if rows else "-")
        held_out = json.loads((out / "models" / f"{source}-{shift}.json").read_text())["held_out_accuracy"]
        lines.append(f"| {source} | {shift} | {100 * held_out:.1f} | {' | '.join(cells)} | {seeds} |")
    overall = " | ".join(f"**{sum(values) / max(len(values), 1):.1f}**" for values in means.values())
    lines.append(f"| **mean** | | | {overall} | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/pacs"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sources", default="photo,art_painting,cartoon,sketch")
    parser.add_argument("--shifts", default="PDA,ODA,OPDA")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--epochs", type=int, help="of source training; the data set's own if not given")
    parser.add_argument("--limit", type=int, default=0, help="images of each stream, 0 for all")
    parser.add_argument("--workers", type=int, default=available_cores())
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    cells = list(product(arguments.sources.split(","), (Shift(name) for name in arguments.shifts.split(","))))
    quiet: Progress = lambda *_: None  # noqa: E731
    trainings = [(arguments.root, arguments.out, *cell, arguments.epochs) for cell in cells]
    run_jobs(train, trainings, workers=arguments.workers, progress=quiet)
    runs = [
        (arguments.root, arguments.out, *cell, name, seed, arguments.limit)
        for seed, cell, name in product(range(arguments.seeds), cells, methods)
    ]
    run_jobs(run, runs, workers=arguments.workers, progress=quiet)
    text = table(read_records(arguments.out), arguments.out, methods)
    print(text)
    write_text(arguments.out / "table.md", text + "\n")


if __name__ == "__main__":
    main()
