"""What the laboratory itself costs: a sweep of many tiny runs, and a report of many records.

    python benchmarks/laboratory.py sweep --runs 1000
    python benchmarks/laboratory.py report --records 10000 runs/digits

The first tells how much of the time of a sweep was spent outside its runs (from loading the model to the record on the
disk); the second copies the records of a folder under other seeds until there are enough, and tells seconds and memory.
Both tell the processor's time beside the clock's, which other programs on the machine make longer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from driftgate.lab.bench import sweep as sweep_module
from driftgate.lab.bench.plan import make_plan
from driftgate.lab.bench.suite import parse_suite
from driftgate.lab.bench.sweep import run_sweep
from driftgate.lab.report.page import write_report
from driftgate.resources import peak_memory

TINY = {
    "name": "tiny",
    "data": "digits",
    "backbone": "cnn",
    "pairs": ["rendered -> uci"],
    "shifts": ["OPDA"],
    "methods": ["gmm", "source-only"],
}

CLOCKS = ("by the clock", "processor's time")


def now() -> NDArray[np.float64]:
    """Seconds by either clock."""
    return np.array([time.perf_counter(), time.process_time()])


def sweep(runs: int, batches: int, out: Path) -> None:
    plan = make_plan(parse_suite({**TINY, "seeds": runs // 2}, "here"), limit=batches, quick_training=True)
    run_sweep(plan._replace(runs=plan.runs[:2]), out)  # trains the model and opens the data
    inside = np.zeros(2)
    run = sweep_module.run

    def timed(*arguments: Any) -> None:
        nonlocal inside
        started = now()
        run(*arguments)
        inside += now() - started

    with mock.patch.object(sweep_module, "run", timed):
        started = now()
        result = run_sweep(plan, out)
        spent = now() - started
    print(f"{len(result.records)} runs in one process")
    for clock, whole, part in zip(CLOCKS, spent, inside, strict=True):
        each = 1000 * part / (runs - 2)
        print(f"{clock}: {whole:.0f} s, {each:.0f} ms a run, outside the runs {100 * (1 - part / whole):.1f} %")


def report(records: int, folder: Path, out: Path) -> None:
    documents = [json.loads(path.read_text()) for path in sorted((folder / "records").glob("*.json"))]
    (out / "records").mkdir(parents=True)
    for number in range(records):
        document = documents[number % len(documents)]
        turn = number // len(documents)
        copy = {**document, "id": f"{document['id']}-{turn}", "seed": document["seed"] + 100 * turn}
        (out / "records" / f"{copy['id']}.json").write_text(json.dumps(copy))
    started = now()
    written = write_report([out], out / "report")
    for clock, whole in zip(CLOCKS, now() - started, strict=True):
        print(f"{records} records, {clock}: {whole:.0f} s")
    print(f"peak {peak_memory() / 2**20:,.0f} MiB")
    print(f"page {written.page.stat().st_size / 2**20:.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sweep", "report"])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/digits"))
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--records", type=int, default=10_000)
    arguments = parser.parse_intermixed_args()  # the folder may stand behind the options
    with tempfile.TemporaryDirectory() as out:
        if arguments.what == "sweep":
            sweep(arguments.runs, arguments.batches, Path(out))
        else:
            report(arguments.records, arguments.folder, Path(out) / "runs")


if __name__ == "__main__":
    main()
