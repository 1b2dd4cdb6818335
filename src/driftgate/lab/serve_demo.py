"""What ``driftgate serve --demo`` serves: a model of typeset digits, and a stream of handwriting that plays itself.

The model knows the digits 0 to 5; the stream shows all ten, so that four of ten are unknown. Now and then something
goes wrong with the camera, and the guard has something to do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from driftgate.guard import GuardSettings
from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.pretrain import PretrainSettings, pretrain
from driftgate.models import SourceModel
from driftgate.rng import seeded
from driftgate.serve.service import Service
from driftgate.shifts import ClassSplit, Shift
from driftgate.types import DriftgateError

SHIFT = Shift.ODA
BATCH_SIZE, SECONDS = 64, 0.5
GUARD = GuardSettings(warmup=10, past=40, lag=5, snapshot_every=10, settle=8, slow_looks=20)
"""Quicker to judge than the default: nobody looks at a demo for an hour."""

Trouble = Callable[[Tensor, torch.Generator], Tensor]

CHAPTERS: tuple[tuple[str, int, Trouble], ...] = (
    ("handwriting", 120, lambda images, _: images),
    ("noise instead of pictures", 15, lambda images, generator: torch.rand(images.shape, generator=generator)),
    ("handwriting", 120, lambda images, _: images),
    ("the camera is covered", 15, lambda images, _: images * 0.02),
    ("handwriting", 120, lambda images, _: images),
    ("the camera hangs upside down", 25, lambda images, _: images.flip(-2)),
)
"""What is played, for how many batches, again and again."""


def train_source(split: ClassSplit, seed: int) -> SourceModel:
    """A small network that knows the typeset digits of the split's source classes, as the suite ``demo`` trains it."""
    data = open_dataset("digits")
    model = SourceModel.build("cnn", data.class_names[: split.num_source], seed=seed)
    settings = PretrainSettings.for_dataset("digits", seed=seed)
    pretrain(model, data.domain("rendered", seed=seed), split, settings, workers=0)
    return model


def demo_model(path: Path) -> SourceModel:
    """The model in ``path``, trained on typeset digits if it is not there yet: some 20 seconds."""
    if not path.exists():
        split = open_dataset("digits").split(SHIFT)
        train_source(split, 0).save(path)
    return SourceModel.load(path)


def demo_stream() -> Iterator[tuple[str, Tensor]]:
    """Chapter and batch (N, 3, 28, 28), for ever."""
    from driftgate.lab.data.digits import load_digits

    images, _ = load_digits("mnist")
    generator = seeded(0)
    while True:
        for chapter, batches, trouble in CHAPTERS:
            for _ in range(batches):
                chosen = torch.randint(len(images), (BATCH_SIZE,), generator=generator)
                yield chapter, trouble(images[chosen].float() / 255.0, generator)


def play(service: Service, seconds: float = SECONDS) -> threading.Thread:
    """Feed the stream to a service, a batch every so many seconds, until it stops."""

    def feed() -> None:
        for chapter, batch in demo_stream():
            service.playing = chapter
            started = time.monotonic()
            with suppress(DriftgateError):  # its queue is full of other people's pictures, or it stops
                service.engine.submit(batch).result()
            if service.stopping.wait(max(seconds - (time.monotonic() - started), 0.0)):
                return

    thread = threading.Thread(target=feed, name="demo", daemon=True)
    thread.start()
    return thread
