"""What a bad minute does, with and without the guard: clean digits, an episode of hostile batches, clean digits again.

    python benchmarks/hostile.py                              # every gradient method, OPDA, 60 batches
    python benchmarks/hostile.py --methods gmm --batches 300 --set skip_unusual=false
    python benchmarks/hostile.py --methods gmm --calm 2000    # no episode: how often does the guard ring, and why?

For every kind of episode: the score on the clean batches after it, in per cent, the method learning on; ``never`` is
the score of the same batches without an episode before them. ``alarm`` is the episode's batch at which the guard first
rang, and the signal that rang; ``again`` the clean batch at which it first let the method learn again; ``early`` counts
alarms before the episode. The digits are drawn anew for each batch, so that a stream of any length is to be had.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from driftgate.guard import Guard
from driftgate.lab.bench.sweep import single_thread
from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.streams import DomainStream
from driftgate.lab.serve_demo import BATCH_SIZE, train_source
from driftgate.methods import available, create
from driftgate.methods.gradient import GradientMethod
from driftgate.metrics import HScore, OnlineAccuracy
from driftgate.models import SourceModel
from driftgate.rng import seeded
from driftgate.shifts import ClassSplit, Shift
from driftgate.types import UNKNOWN, DivergedError

AFTER, HOSTILE = 30, 60
"""Clean batches after an episode; and those its pictures are drawn from."""

KINDS = ("only unknown", "one class", "black", "noise", "upside down")
MORE_KINDS = ("copies", "mixed")
MIXED = ("only unknown", "black", "noise", "one class", "copies")
Clean = list[tuple[Tensor, Tensor]]


def hostile_batch(kind: str, images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """One batch of an episode, from the images and labels of the stream."""

    def some(places: Tensor) -> Tensor:
        return images[places[torch.randint(len(places), (BATCH_SIZE,), generator=generator)]]

    if kind == "only unknown":
        return some((labels == UNKNOWN).nonzero().flatten())
    if kind == "one class":
        return some((labels == 0).nonzero().flatten())
    if kind == "black":
        return torch.zeros(BATCH_SIZE, *images.shape[1:])
    if kind == "copies":
        return some(torch.arange(len(images)))[:1].repeat(BATCH_SIZE, 1, 1, 1)
    if kind == "noise":
        return torch.rand(BATCH_SIZE, *images.shape[1:], generator=generator)
    return some(torch.arange(len(images))).flip(2)


def episode(kind: str, count: int, clean: Clean) -> Iterator[Tensor]:
    """``count`` hostile batches."""
    images, labels = (torch.cat(parts) for parts in zip(*clean, strict=True))
    generator = seeded(7)
    for index in range(count):
        yield hostile_batch(MIXED[index % len(MIXED)] if kind == "mixed" else kind, images, labels, generator)


def score(learner: Any, batches: Iterable[tuple[Tensor, Tensor]], split: ClassSplit) -> float:
    """The shift's score in per cent; the learner goes on learning. 0 for a network that diverged."""
    accuracy, h_score = OnlineAccuracy(), HScore(split.shared_classes)
    for images, labels in batches:
        try:
            predictions = learner.step(images).labels
        except DivergedError:
            predictions = torch.full_like(labels, UNKNOWN - 1)
        accuracy.update(predictions, labels)
        h_score.update(predictions, labels)
    value = accuracy.compute() if split.shift is Shift.PDA else h_score.compute()["h_score"]
    return 100.0 * float(value)


def endure(learner: Any, batches: Iterable[Tensor]) -> None:
    """Learn from hostile batches, or go down with them."""
    for images in batches:
        try:
            learner.step(images)
        except DivergedError:
            return


def resumed(name: str, source: SourceModel, settings: dict[str, Any], folder: Path) -> Guard:
    """A guard that goes on from the newest snapshot of ``folder``, as after a restart of the service."""
    guard = Guard(create(name, source.clone(), **settings), folder, keep=100)
    guard.rollback(guard.snapshots()[-1].id)
    return guard


def compare(
    name: str,
    source: SourceModel,
    split: ClassSplit,
    clean: Clean,
    episodes: list[tuple[str, int]],
    settings: dict[str, Any],
) -> None:
    """Print a row for each episode, a kind and a length."""
    before, after, other = clean[: -AFTER - HOSTILE], clean[-AFTER - HOSTILE : -HOSTILE], clean[-HOSTILE:]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        guard = Guard(create(name, source.clone(), **settings), folder, keep=100)
        for images, _ in before:
            guard.step(images)
        guard.snapshot("before the episode")
        early = [event for event in guard.events if event.kind == "alarm"]
        never = score(resumed(name, source, settings, folder).method, after, split)
        for kind, count in episodes:
            plain = resumed(name, source, settings, folder).method
            endure(plain, episode(kind, count, other))
            without = score(plain, after, split)
            guarded = resumed(name, source, settings, folder)
            known, first = {snapshot.id for snapshot in guarded.snapshots()}, guarded.health().look
            endure(guarded, episode(kind, count, other))
            rang = [event for event in guarded.events if event.kind == "alarm"]
            alarm = f"{rang[0].look - first}, {rang[0].signal}" if rang else "none"
            held = score(guarded, after, split)
            slow = [event.look - first - count for event in guarded.events if event.kind == "slow"]
            again = str(slow[-1]) if slow else "-"
            row = (name, kind, str(count), *(f"{value:.1f}" for value in (never, without, held)), alarm, again)
            print(f"| {' | '.join(row)} | {len(early)} |", flush=True)
            for path in folder.glob("snapshot-*"):  # the next episode comes after the same snapshots
                if int(path.stem.split("-")[1]) not in known:
                    path.unlink()


def stay_calm(
    name: str,
    source: SourceModel,
    split: ClassSplit,
    clean: Iterable[tuple[Tensor, Tensor]],
    settings: dict[str, Any],
) -> None:
    """Print how often the guard rings on a calm stream, and the scores of the stream's tenths with it and without: a
    method that falls by itself rings for a reason."""
    batches = list(clean)
    tenth = max(1, len(batches) // 10)
    parts = [batches[start : start + tenth] for start in range(0, tenth * 10, tenth)]
    plain = create(name, source.clone(), **settings)
    without = " ".join(f"{score(plain, part, split):.0f}" for part in parts)
    with tempfile.TemporaryDirectory() as place:
        guard = Guard(create(name, source.clone(), **settings), place)
        held = " ".join(f"{score(guard, part, split):.0f}" for part in parts)
    rang = [f"{event.look} ({event.signal})" for event in guard.events if event.kind == "alarm"]
    row = (name, str(guard.health().look), without, held, str(len(rang)), ", ".join(rang) or "none")
    print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    gradient = [name for name, method in available().items() if issubclass(method, GradientMethod)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(gradient))
    parser.add_argument("--shift", default="OPDA")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"and there are {', '.join(MORE_KINDS)}")
    parser.add_argument("--batches", default="60", help="lengths of the episodes, like 60,300")
    parser.add_argument("--before", type=int, default=200, help="clean batches before an episode")
    parser.add_argument("--calm", type=int, help="batches of a stream without an episode")
    parser.add_argument("--model", type=Path, help="a source model of these digits; trained if there is none")
    parser.add_argument("--set", action="append", default=[], help="a setting of the methods, like skip_unusual=false")
    chosen = parser.parse_args()
    settings = {name: yaml.safe_load(value) for name, _, value in (text.partition("=") for text in chosen.set)}
    episodes = [(kind, int(count)) for count in chosen.batches.split(",") for kind in chosen.kinds.split(",")]
    data = open_dataset("digits")
    split = data.split(Shift(chosen.shift))
    with single_thread():
        source = SourceModel.load(chosen.model) if chosen.model else train_source(split, chosen.seed)
        stream = DomainStream(
            [data.domain("mnist-drawn", seed=chosen.seed)],
            split,
            input_size=source.spec.image_size,
            batch_size=BATCH_SIZE,
            seed=chosen.seed,
            workers=0,
            limit=BATCH_SIZE * (chosen.calm or chosen.before + AFTER + HOSTILE),
        )
        if chosen.calm:
            print("| method | looks | without, by tenths | with | alarms | at |\n|---|---|---|---|---|---|")
            for name in chosen.methods.split(","):
                stay_calm(name, source, split, ((batch.images, batch.labels) for batch in stream.batches()), settings)
            return
        clean = [(batch.images, batch.labels) for batch in stream.batches()]
        columns = ("method", "episode", "batches", "never", "without", "with", "alarm", "again", "early")
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for name in chosen.methods.split(","):
            compare(name, source, split, clean, episodes, settings)


if __name__ == "__main__":
    main()
