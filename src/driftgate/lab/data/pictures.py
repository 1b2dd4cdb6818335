"""A plain folder of pictures as a stream without labels: newest last, and those that come later if it is followed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftgate.lab.data.domains import image_paths
from driftgate.lab.data.loading import BatchLoader, BrokenImage, Transform, decode, load_each, printable
from driftgate.models.input import PAPER_RESIZE, InputSpec, prepare
from driftgate.models.pictures import MAX_PIXELS
from driftgate.types import DriftgateError

LOOK_SECONDS = 1.0
"""Between two looks into a folder that is followed."""

SETTLED_SECONDS = 2.0
"""A picture that has not changed for so long, or between two looks, is written to its end."""


class PictureFolder(BatchLoader):
    """Batches ``{"images": (N, C, H, W) uint8, "files": N names}`` of the pictures below ``path``, newest last.

    Args:
        path: the folder; folders inside it are read too.
        spec: what the model takes; pictures of other sizes are brought to it.
        batch_size: pictures in a batch; fewer where no more are there.
        done: names, relative to the folder, of pictures to leave out.
        follow: go on with the pictures that come later.
        idle: end after so many seconds without a new one; None for never.
        stopped: asked between two batches and two looks; the stream ends where it answers True.
        workers: threads that decode.
        max_pixels: of a picture; a larger one counts as broken.

    A picture that cannot be read is left out and counted in ``skipped``.
    """

    def __init__(
        self,
        path: str | Path,
        spec: InputSpec,
        *,
        batch_size: int = 64,
        done: Iterable[str] = (),
        follow: bool = False,
        idle: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
        workers: int = 1,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(strict=False, workers=workers)
        self.path, self.spec, self.batch_size = Path(path), spec, batch_size
        if not self.path.is_dir():
            raise DriftgateError(f"Expected a folder of pictures but {path} is none; name one that is there.")
        self.transform = Transform(spec.image_size)  # refuses a model of rows
        self.follow, self.idle, self.stopped, self.max_pixels = follow, idle, stopped, max_pixels
        self._seen = set(done)
        self._waiting: dict[str, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        last = time.monotonic()
        while not self.stopped():
            names = self.look()
            yield from self._batches(names)
            now = time.monotonic()
            last = now if names else last
            if not self.follow or (self.idle is not None and now - last >= self.idle):
                return
            time.sleep(LOOK_SECONDS)

    def look(self) -> list[str]:
        """The new pictures, oldest first, by name where they are of one age; each is named once.

        In a folder that is followed, one that may still be written to waits for the next look.
        """
        found, waiting = [], {}
        for name in image_paths(self.path):
            if name in self._seen:
                continue
            try:
                status = (self.path / name).stat()
            except FileNotFoundError:
                continue  # taken away in the meantime
            facts = (status.st_size, status.st_mtime_ns)
            if self.follow and self._waiting.get(name) != facts and time.time() - status.st_mtime < SETTLED_SECONDS:
                waiting[name] = facts
            else:
                found.append((status.st_mtime_ns, name))
        self._waiting = waiting
        names = [name for _, name in sorted(found)]
        self._seen.update(names)
        return names

    def _batches(self, names: list[str]) -> Generator[dict[str, Any], None, None]:
        parts = (names[start : start + self.batch_size] for start in range(0, len(names), self.batch_size))
        with closing(self.loaded(self._load, parts, warn=True)) as batches:
            for batch in batches:
                if self.stopped():
                    return
                yield batch

    def _load(self, names: list[str]) -> tuple[dict[str, Any] | None, list[BrokenImage]]:
        images, kept, broken = load_each(self._pixels, names)
        files = [printable(name) for name in kept]
        return ({"images": torch.stack(images), "files": files} if kept else None), broken

    def _pixels(self, name: str) -> Tensor:
        """A picture of any size -> (C, H, W) uint8, as the model's own transform has it; else as the paper's."""
        picture = decode(os.path.join(self.path, name), self.max_pixels)
        if self.spec.channels == 3 and self.spec.resize in (None, PAPER_RESIZE):
            return self.transform(picture)
        spec = self.spec.model_copy(update={"resize": self.spec.resize or PAPER_RESIZE})
        return (prepare([picture], spec)[0] * 255.0).round().to(torch.uint8)
