"""The paper's suites from end to end on generated trees as large as the real data sets, up to the report.

    python benchmarks/paper_trees.py                            # visda, domainnet and office-home, one seed
    python benchmarks/paper_trees.py --suites domainnet --pairs "clipart->sketch"

The pictures are noise of 16 x 16 pixels, one a domain and class, and every image of that class is a link to it: what is
tried out is that reading, splits, plans, every method and the report take the numbers of classes and images of the real
trees. The scores mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from driftgate.lab.data.layouts import RECIPES

IMAGES = {
    "visda": {"train": 152_397, "validation": 55_388},
    "domainnet": {"clipart": 48_833, "painting": 75_759, "real": 175_327, "sketch": 70_386},
    "office-home": {"art": 2_427, "clipart": 4_365, "product": 4_439, "real_world": 4_357},
}
"""Images of each domain of the real data sets."""


def write_tree(root: Path, data: str, images_of: Mapping[str, int]) -> None:
    """A folder a domain and class; the images of each domain are spread evenly over the classes."""
    recipe, random = RECIPES[data], np.random.default_rng(0)
    for domain, images in images_of.items():
        for label in range(recipe.num_classes):
            folder = root / domain / f"class_{label:03d}"
            folder.mkdir(parents=True)
            first = folder / "0.png"
            Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(first)
            count = images // recipe.num_classes + (label < images % recipe.num_classes)
            for index in range(1, count):
                os.link(first, folder / f"{index}.png")


def driftgate(*arguments: str) -> dict[str, object]:
    """What a command prints as JSON; one that fails, as a sweep with a failed run does, ends everything."""
    command = [sys.executable, "-c", "from driftgate.lab.cli import app; app()", *arguments, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default=",".join(IMAGES))
    parser.add_argument("--limit", type=int, default=2, help="batches of each stream")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--pairs", help="of the suite; all if not given")
    arguments = parser.parse_args()
    print("| suite | images | classes | runs | minutes | page, MiB |\n|---|---|---|---|---|---|")
    for suite in arguments.suites.split(","):
        with tempfile.TemporaryDirectory() as folder:
            root, out = Path(folder, "data"), Path(folder, "out")
            write_tree(root, suite, IMAGES[suite])
            started = time.perf_counter()
            sweep = driftgate(
                *("bench", suite, "--root", str(root), "--out", str(out), "--backbone", "cnn", "--quick-training"),
                *("--limit", str(arguments.limit), "--seeds", arguments.seeds),
                *(("--pairs", arguments.pairs) if arguments.pairs else ()),
            )
            page = Path(str(driftgate("report", str(out))["page"]))
            minutes = (time.perf_counter() - started) / 60
            print(
                f"| {suite} | {sum(IMAGES[suite].values()):,} | {RECIPES[suite].num_classes} | {sweep['done']} | "
                f"{minutes:.1f} | {page.stat().st_size / 2**20:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
