"""From a file to pixels: decoding of any picture, the paper's resize and crop, and loading ahead of the network."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from driftgate.files import open_regular
from driftgate.models.pictures import FORMATS, MAX_PIXELS, open_picture, to_rgb, upright
from driftgate.text import shown, shown_name
from driftgate.types import Batch, DriftgateError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
RESIZE_RATIO = 256 / 224
"""The paper resizes to 256 x 256 and crops 224 x 224; other input sizes keep that ratio."""

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


class BrokenImage(DriftgateError):
    """A sample that cannot be decoded: a missing, truncated or foreign file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"Expected an image but {path} cannot be read ({reason}); mend it or remove it.")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class Transform:
    """Resize to 256/224 of ``size`` (the aspect ratio ignored), crop ``size``, mirror if asked.

    Attributes:
        size: height and width the model expects.
        place: where the crop lies in the margin, from (0, 0) top left to (1, 1); the middle is the test transform.
        mirror: whether left and right are exchanged.
    """

    size: tuple[int, int]
    place: tuple[float, float] = (0.5, 0.5)
    mirror: bool = False

    def __call__(self, picture: Image.Image) -> Tensor:
        """RGB picture of any size -> (3, H, W) uint8."""
        height, width = self.size
        full_height, full_width = resized(height), resized(width)
        top = _offset(full_height - height, self.place[0])
        left = _offset(full_width - width, self.place[1])
        if picture.size == (full_width, full_height):
            picture = picture.crop((left, top, left + width, top + height))
        else:
            # One resize of the part that is kept equals resize and crop, and saves the work on the margin.
            across, down = picture.width / full_width, picture.height / full_height
            right = min((left + width) * across, picture.width)  # rounding must not lead outside
            bottom = min((top + height) * down, picture.height)
            box = (left * across, top * down, right, bottom)
            picture = picture.resize((width, height), Image.Resampling.BILINEAR, box=box)
        return self.mirrored(pixels(picture))

    def mirrored(self, image: Tensor) -> Tensor:
        return image.flip(-1) if self.mirror else image


def resized(side: int) -> int:
    """Side of the picture before the crop: 256 for 224, 128 for 112."""
    return round(side * RESIZE_RATIO)


def train_transform(size: tuple[int, int], flip: bool, seed: int, epoch: int, index: int) -> Transform:
    """Random crop and mirroring, drawn from (seed, epoch, index) alone, so that any step can be repeated."""
    random = np.random.default_rng([seed % 2**63, epoch, index])
    down, across, side = random.random(3)
    return Transform(size, (float(down), float(across)), bool(flip and side < 0.5))


def pixels(picture: Image.Image) -> Tensor:
    """RGB picture -> (3, H, W) uint8; a view of (H, W, 3), the layout the network is fastest with."""
    return torch.from_numpy(np.array(picture, dtype=np.uint8)).permute(2, 0, 1)


def decode(path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture in a file, upright and in RGB, whatever its mode; ``BrokenImage`` if it cannot be read.

    One of more than ``max_pixels`` is not even tried.
    """
    try:
        with open_regular(path) as file, open_picture(file, max_pixels) as picture:
            picture.load()
            return to_rgb(upright(picture))
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise almost anything on damaged bytes
        raise BrokenImage(printable(path), _reason(error)) from error


def check_header(path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS) -> None:
    """Raise ``BrokenImage`` unless the file begins like an image; the pixels are not decoded."""
    try:
        with open_regular(path) as file, open_picture(file, max_pixels):
            pass
    except Exception as error:
        raise BrokenImage(printable(path), _reason(error)) from error


def printable(path: str | os.PathLike[str]) -> str:
    """A path that can be written as UTF-8 and shown on a terminal, even if the file's name is made for neither."""
    return shown_name(os.fsencode(path).decode("utf-8", errors="replace"))


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, UnidentifiedImageError):
        return f"none of {', '.join(FORMATS)}"
    return shown(" ".join(str(getattr(error, "strerror", None) or error).split())) or type(error).__name__


def _offset(margin: int, place: float) -> int:
    """Integer offset in 0..margin; equally likely ones for ``place`` uniform in [0, 1), the middle for 0.5."""
    return min(int(place * (margin + 1)), margin)


def to_floats(images: list[Tensor]) -> Tensor:
    """N images (3, H, W) uint8 -> (N, 3, H, W) float32 in [0, 1], channels last in memory.

    In numpy, because torch would start a team of threads inside every loading thread for it.
    """
    stacked: NDArray[np.uint8] = np.stack([image.permute(1, 2, 0).numpy() for image in images])
    floats: NDArray[np.float32] = np.divide(stacked, np.float32(255), dtype=np.float32)
    return torch.from_numpy(floats).permute(0, 3, 1, 2)


def load_each(load: Callable[[T], Tensor], items: Iterable[T]) -> tuple[list[Tensor], list[T], list[BrokenImage]]:
    """The images that can be read, which items they are of, and the errors of the others."""
    images, kept, broken = [], [], []
    for item in items:
        try:
            images.append(load(item))
            kept.append(item)
        except BrokenImage as error:
            broken.append(error)
    return images, kept, broken


Loaded = tuple[Batch | None, list[BrokenImage]]
"""A batch of what could be read, None where nothing could, and the errors of the rest."""


class BatchLoader:
    """Batches loaded ahead in ``workers`` threads, without what is broken; ``strict`` fails at it instead."""

    def __init__(self, strict: bool, workers: int) -> None:
        self.strict, self.workers = strict, workers
        self._skipped: dict[str, None] = {}

    @property
    def skipped(self) -> list[str]:
        """The broken images left out of the batches given out so far."""
        return list(self._skipped)

    def loaded(
        self, load: Callable[[T], tuple[R | None, list[BrokenImage]]], items: Iterable[T], *, warn: bool = False
    ) -> Generator[R, None, None]:
        """The batches that ``load`` makes of ``items``, in order."""
        with closing(load_ahead(load, items, workers=self.workers)) as found:
            for batch, broken in found:
                if broken and self.strict:
                    raise broken[0]
                for error in broken if warn else ():
                    logger.warning("skipped: %s", error)
                self._skipped.update(dict.fromkeys(error.path for error in broken))
                if batch is not None:
                    yield batch


def load_ahead(
    function: Callable[[T], R], items: Iterable[T], *, workers: int, ahead: int | None = None
) -> Generator[R, None, None]:
    """``map(function, items)`` in order, computed in ``workers`` threads and at most ``ahead`` results early.

    Threads, not processes: Pillow decodes and resizes without the interpreter's lock, and nothing has to be pickled.
    Closing the generator ends the threads. With 0 workers the caller's own thread does the work.
    """
    if workers < 0:
        raise DriftgateError(f"Expected a number of workers of 0 or more but got {workers}; 0 reads in this thread.")
    if workers == 0:
        for item in items:
            yield function(item)
        return
    limit = workers if ahead is None else ahead
    pool = ThreadPoolExecutor(workers, thread_name_prefix="driftgate-loading")
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > limit:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
