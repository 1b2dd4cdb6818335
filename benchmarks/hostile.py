"""What a bad minute does: clean digits, an episode of hostile batches, clean digits again.

    python benchmarks/hostile.py                                  # gmm, OPDA and ODA, seed 0, 60 batches
    python benchmarks/hostile.py --batches 300 --set skip_unusual=false

For every kind of episode: the score on the first and the second 8 clean batches after it, in per cent, and how many of
its batches taught. ``none`` is the control, the same clean batches without an episode before them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
import yaml
from torch import Tensor

from driftgate.lab.bench.demo import BATCH_SIZE, train_source
from driftgate.lab.bench.jobs import single_thread
from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.streams import DomainStream
from driftgate.methods import create
from driftgate.methods.base import Method
from driftgate.metrics import HScore, OnlineAccuracy
from driftgate.models import SourceModel
from driftgate.rng import seeded
from driftgate.shifts import ClassSplit, Shift
from driftgate.types import UNKNOWN, UNLABELED

CALM_BATCHES, JUDGED_BATCHES = 30, 8
KINDS = ("none", "only unknown", "one class", "black", "copies", "noise", "upside down", "mixed")
MIXED = ("only unknown", "black", "noise", "one class", "copies")


def hostile_batch(kind: str, images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """One batch of an episode, from the images and labels of the stream."""

    def some(places: Tensor) -> Tensor:
        return images[places[torch.randint(len(places), (BATCH_SIZE,), generator=generator)]]

    everywhere = torch.arange(len(images))
    if kind == "only unknown":
        return some((labels == UNKNOWN).nonzero().flatten())
    if kind == "one class":
        return some((labels == 0).nonzero().flatten())
    if kind == "black":
        return torch.zeros(BATCH_SIZE, *images.shape[1:])
    if kind == "copies":
        return some(everywhere)[:1].repeat(BATCH_SIZE, 1, 1, 1)
    if kind == "noise":
        return torch.rand(BATCH_SIZE, *images.shape[1:], generator=generator)
    return some(everywhere).flip(2)


def episode(kind: str, count: int, images: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """``count`` hostile batches."""
    generator = seeded(7)
    for index in range(0 if kind == "none" else count):
        yield hostile_batch(MIXED[index % len(MIXED)] if kind == "mixed" else kind, images, labels, generator)


def score(method: Method, batches: list[tuple[Tensor, Tensor]], split: ClassSplit) -> float:
    """The shift's score on these batches in per cent; the method goes on learning."""
    accuracy, h_score = OnlineAccuracy(), HScore(split.shared_classes)
    for images, labels in batches:
        predictions = method.step(images).labels
        accuracy.update(predictions, labels)
        h_score.update(predictions, labels)
    value = accuracy.compute() if split.shift is Shift.PDA else h_score.compute()["h_score"]
    return 100.0 * float(value)


Clean = list[tuple[Tensor, Tensor]]


def prepare(shift: Shift, seed: int) -> tuple[SourceModel, ClassSplit, Clean]:
    """The source model, and the batches of the stream with their labels."""
    data = open_dataset("digits")
    split = data.split(shift)
    model = train_source(split, seed, None, lambda *_: None)
    stream = DomainStream(
        [data.domain("mnist", seed=seed)], split, input_size=model.spec.image_size, batch_size=BATCH_SIZE, seed=seed
    )
    return model, split, [(batch.images, batch.labels) for batch in stream.batches()]


def run(method: Method, batches: Clean, split: ClassSplit, kind: str, count: int) -> tuple[float, float, int]:
    """Scores of the two groups of clean batches after the episode, and how many hostile batches taught."""
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    for calm, _ in batches[:CALM_BATCHES]:
        method.step(calm)
    answers = [method.step(hostile) for hostile in episode(kind, count, images, labels)]
    taught = sum(bool((answer.pseudo_labels != UNLABELED).any()) for answer in answers)
    after = batches[CALM_BATCHES : CALM_BATCHES + 2 * JUDGED_BATCHES]
    return score(method, after[:JUDGED_BATCHES], split), score(method, after[JUDGED_BATCHES:], split), taught


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shifts", default="OPDA,ODA")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--set", action="append", default=[], help="a setting of gmm, like skip_unusual=false")
    chosen = parser.parse_args()
    settings = {name: yaml.safe_load(value) for name, _, value in (text.partition("=") for text in chosen.set)}
    print("| shift | seed | episode | next 8 batches | 8 after them | taught |\n|---|---|---|---|---|---|")
    with single_thread():
        for shift in chosen.shifts.split(","):
            for seed in map(int, chosen.seeds.split(",")):
                model, split, batches = prepare(Shift(shift), seed)
                for kind in KINDS:
                    method = create("gmm", model.clone(), **settings)
                    first, second, taught = run(method, batches, split, kind, chosen.batches)
                    hostile = 0 if kind == "none" else chosen.batches
                    print(
                        f"| {shift} | {seed} | {kind} | {first:.1f} | {second:.1f} | {taught} of {hostile} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
