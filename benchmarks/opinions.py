"""What does each opinion add to an answer, and at which level does it reject? Nothing learns here.

    python benchmarks/opinions.py --model art.safetensors --data pacs --root DIR --source art_painting --shift OPDA

A row for each set of opinions of ``gmm`` (``second_opinion``, ``neighbor_opinion``, ``third_opinion``), the stream seen
batch by batch: accuracy of the known samples where nobody is rejected, the score where the more doubtful half is
rejected (as gates by quantiles do), where all above a level are, the score of the best threshold in hindsight, the area
under the ROC curve, and the share that lies above the level.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from norm_blend import score

import driftgate
from driftgate.lab.bench.sweep import single_thread
from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.streams import DomainStream
from driftgate.metrics import best_threshold, novelty_auroc
from driftgate.models import SourceModel
from driftgate.novelty.gate import LEVEL
from driftgate.shifts import ClassSplit, Shift
from driftgate.types import UNKNOWN

OPINIONS = ("second_opinion", "neighbor_opinion", "third_opinion")
ROWS = ((0.0, 0.0, 0.0), (0.25, 0.0, 0.0), (0.25, 0.3, 0.0), (0.25, 0.0, 1.0), (0.0, 0.3, 1.0), (0.25, 0.3, 1.0))
HEADS = (*OPINIONS, "known, none rejected", "half rejected", f"above {LEVEL}", "best threshold", "AUROC", "share above")


def answers(
    model: SourceModel, stream: DomainStream, opinions: tuple[float, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Class, novelty and target (N,) each of the stream's samples."""
    settings: dict[str, Any] = dict(zip(OPINIONS, opinions, strict=True))
    method = driftgate.create("gmm", model, teach_share=0.0, novelty="prediction_entropy", **settings)
    classes, novelty, targets = [], [], []
    for batch in stream.batches():
        prediction = method.step(batch.images)
        classes.append(prediction.scores.argmax(dim=1))
        novelty.append(prediction.novelty)
        targets.append(batch.labels)
    return torch.cat(classes), torch.cat(novelty), torch.cat(targets)


def numbers(classes: torch.Tensor, novelty: torch.Tensor, targets: torch.Tensor, split: ClassSplit) -> list[float]:
    """The columns of a row behind the opinions."""
    known = targets != UNKNOWN
    return [
        float((classes == targets)[known].double().mean()),
        score(novelty, float(novelty.median()), classes, targets, split),
        score(novelty, LEVEL, classes, targets, split),
        best_threshold(novelty, classes, targets, split.shared_classes)[0],
        novelty_auroc(novelty, targets) if bool((~known).any()) else float("nan"),
        float((novelty > LEVEL).double().mean()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "data", "source", "shift"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--root")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--precision", default="float32")
    asked = parser.parse_args()
    data = open_dataset(asked.data, asked.root)
    split = data.split(Shift(asked.shift))
    domains = [data.domain(name, seed=0) for name in data.targets(data.canonical(asked.source))]
    print(f"| {' | '.join(HEADS)} |\n{'|---' * len(HEADS)}|")
    for opinions in ROWS:
        model = SourceModel.load(asked.model)
        model.set_precision(asked.precision)
        size, limit = model.spec.image_size, asked.batches * asked.batch_size
        with single_thread():
            stream = DomainStream(domains, split, input_size=size, batch_size=asked.batch_size, seed=0, limit=limit)
            found = numbers(*answers(model, stream, opinions), split)
        told = [f"{opinion:g}" for opinion in opinions] + [f"{100 * number:.1f}" for number in found]
        print(f"| {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
