"""How firm the ground of GLC, GLC++ and LEAD is: their guess of the number of target classes, and their neighbours.

Batches of handwritten digits, seen by the demo's source model. For each shift: milliseconds of processor time of one
guess (median); the share of batches whose guess stays when the features are scaled by 1 + 1e-6, which changes only the
last bits; and the share of samples that are among their own neighbours by the released rule (``neighbor_rule``).

    python benchmarks/soft_targets.py
    python benchmarks/soft_targets.py --batches 5 --seed 1
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F

from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.streams import DomainStream
from driftgate.lab.serve_demo import BATCH_SIZE, train_source
from driftgate.memory import nearest_but_first
from driftgate.methods.batchwise import SoftTargetSettings
from driftgate.methods.lead import LEADSettings
from driftgate.methods.target_classes import estimate_target_classes
from driftgate.models import SourceModel
from driftgate.models.normalization import batch_statistics, preserved_buffers
from driftgate.shifts import Shift

NUDGE = 1.0 + 1e-6
RATIOS = {"GLC": SoftTargetSettings().class_ratios, "LEAD": LEADSettings().class_ratios}


def guess(features: Tensor, num_classes: int, ratios: Sequence[float]) -> tuple[float | None, float]:
    """The ratio that a batch of unit features (N, D) gives, and the seconds of processor time it took."""
    started = time.process_time()
    with threadpool_limits(limits=1):
        found = estimate_target_classes(features, num_classes, ratios)
    return (None if found is None else found.ratio), time.process_time() - started


@torch.no_grad()
def own_neighbor_share(model: SourceModel, images: Tensor, bank: Tensor, count: int) -> float:
    """Share of the samples that the released rule names among their own ``count`` neighbours."""
    with preserved_buffers(model), batch_statistics(model, len(images)):
        near = nearest_but_first(model(images).features, bank, count)
    return float((near == torch.arange(len(near))[:, None]).any(dim=1).float().mean())


def row(shift: Shift, seed: int, batches: int) -> str:
    data = open_dataset("digits")
    split = data.split(shift)
    model = train_source(split, seed).eval()
    seconds: dict[str, list[float]] = {name: [] for name in RATIOS}
    stays: dict[str, list[bool]] = {name: [] for name in RATIOS}
    own = []
    size, limit = model.spec.image_size, batches * BATCH_SIZE
    target = [data.domain("mnist")]
    stream = DomainStream(target, split, input_size=size, batch_size=BATCH_SIZE, seed=seed, workers=0, limit=limit)
    for batch in stream.batches():
        with torch.no_grad():
            features = F.normalize(model(batch.images).features, dim=1)
        own.append(own_neighbor_share(model, batch.images, features, SoftTargetSettings().neighbors))
        for name, ratios in RATIOS.items():
            first, took = guess(features.double(), model.num_classes, ratios)
            seconds[name].append(took)
            stays[name].append(first == guess(NUDGE * features.double(), model.num_classes, ratios)[0])
    times = (f"{1000 * statistics.median(seconds[name]):.0f}" for name in RATIOS)
    shares = (f"{100 * statistics.mean(stays[name]):.0f}" for name in RATIOS)
    return f"| {shift.value} | {' | '.join((*times, *shares))} | {100 * statistics.mean(own):.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| shift | GLC, ms a guess | LEAD, ms a guess | GLC, % stay | LEAD, % stay | % their own neighbour |")
    print("|---|---|---|---|---|---|")
    for shift in Shift:
        print(row(shift, arguments.seed, arguments.batches), flush=True)


if __name__ == "__main__":
    main()
