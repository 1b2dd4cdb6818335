"""A hundred thousand of everything: class folders for ``data check``, records for the report's reader.

python benchmarks/many.py                      # 100,000 of each: seconds and peak memory
python benchmarks/many.py --number 2000
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kills import SPLIT, small_method, small_stream
from PIL import Image

from driftgate.lab.bench.results import read_results
from driftgate.lab.data.check import check_dataset
from driftgate.resources import give_back_memory, peak_memory, reset_peak_memory, resident_memory
from driftgate.stream import run_stream


def class_folders(folder: Path, number: int) -> Callable[[], int]:
    """A domain of so many classes, one picture each; answers how many were found."""
    Image.new("RGB", (8, 8)).save(folder / "one.png")
    for index in range(number):
        inner = folder / "tree" / "photo" / f"class {index:06d}"
        inner.mkdir(parents=True)
        # Links to a file are limited in number by some file systems, links to its name are not.
        os.symlink(folder / "one.png", inner / "x.png")
    split = f"{number // 2}/0/{number - number // 2}"
    return lambda: len(check_dataset("folder", folder / "tree", custom=split).classes)


def records(folder: Path, number: int) -> Callable[[], int]:
    """A folder of so many records; answers how many runs were read."""
    record = run_stream(small_method("source-only"), small_stream(), SPLIT, protocol={"seed": 0}).record
    (folder / "records").mkdir()
    for index in range(number):
        named = {"id": f"run-{index}", "suite": "many", "source": "a", "target": "b", "shift": "OPDA", "seed": index}
        text = json.dumps({**record, **named, "digest": f"{index:064d}"})
        (folder / "records" / f"run-{index}.json").write_text(text)
    return lambda: sum(len(suite.frame) for suite in read_results([folder]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=100_000)
    number = parser.parse_args().number
    logging.disable(logging.WARNING)
    for what, prepare in (("class folders", class_folders), ("records", records)):
        with tempfile.TemporaryDirectory() as folder:
            read = prepare(Path(folder), number)
            give_back_memory()
            before = resident_memory() or 0
            reset_peak_memory()
            started = time.monotonic()
            found = read()
            print(
                f"{found:,} of {number:,} {what} in {time.monotonic() - started:.1f} s, "
                f"{(peak_memory() - before) / 2**20:.0f} MiB at the peak",
                flush=True,
            )
            if found != number:
                raise SystemExit(f"only {found} of {number} {what} were found")


if __name__ == "__main__":
    main()
