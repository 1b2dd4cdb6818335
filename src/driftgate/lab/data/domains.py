"""Domains: the samples of one look, read from class folders, from a list file, or held in memory."""

from __future__ import annotations

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from PIL import Image
from torch import Tensor

from driftgate.lab.data.loading import IMAGE_SUFFIXES, Transform, decode, printable
from driftgate.models.pictures import MAX_PIXELS, to_rgb
from driftgate.text import shown_name
from driftgate.types import DriftgateError

logger = logging.getLogger(__name__)

MAX_DEPTH = 8
"""Folders inside a class folder are read too, as usual; this deep at most."""

FIRST_LINES = 20
"""So many lines of a list file are tried before its images count as missing."""

LONGEST_LINE = 16_384
"""Bytes in a line of a list file; a path has at most 4,096."""
LONGEST_SHOWN = 80
"""Bytes of a wrong line that an error repeats."""
MOST_CLASSES = 1_000_000
"""A label beyond is no class index but a mistake."""


class Domain(ABC):
    """Samples in data set order, decoded one by one; ``classes`` (n,) int64 has the class index of each."""

    name: str
    classes: Tensor

    def __len__(self) -> int:
        return len(self.classes)

    @abstractmethod
    def describe(self, index: int) -> str:
        """What to call the sample in a report."""

    @abstractmethod
    def load(self, index: int, transform: Transform) -> Tensor:
        """The sample as (3, H, W) uint8; ``BrokenImage`` if it cannot be read."""


class FileDomain(Domain):
    """Images in files: ``paths`` relative to ``base``, ``classes`` their class indices; larger ones are broken."""

    def __init__(
        self, name: str, base: Path, paths: Sequence[str], classes: Tensor, max_pixels: int = MAX_PIXELS
    ) -> None:
        self.name, self.base, self.paths, self.classes, self.max_pixels = name, base, paths, classes, max_pixels

    def path(self, index: int) -> str:
        return os.path.join(self.base, self.paths[index])

    def describe(self, index: int) -> str:
        return printable(self.path(index))

    def load(self, index: int, transform: Transform) -> Tensor:
        return transform(decode(self.path(index), self.max_pixels))


class MemoryDomain(Domain):
    """Images held in memory: ``images`` (n, 3, H, W) uint8, ``classes`` (n,).

    Images that have the model's input size already are left as they are: neither resized nor cropped.
    """

    def __init__(self, name: str, images: Tensor, classes: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8 or len(images) != len(classes):
            raise DriftgateError(
                f"Expected uint8 images (n, 3, H, W) and n classes but got {images.dtype} {tuple(images.shape)} "
                f"and {len(classes)} classes; convert them."
            )
        self.name, self.images, self.classes = name, images, classes.long()

    def describe(self, index: int) -> str:
        return f"{self.name}[{index}]"

    def load(self, index: int, transform: Transform) -> Tensor:
        image = self.images[index]
        if tuple(image.shape[1:]) == transform.size:
            return transform.mirrored(image)
        return transform(to_rgb(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())))


Skipped = dict[str, str]
"""Folders and links that could not be read, and why; whoever looks around adds to it."""


def visible_folders(folder: Path, skipped: Skipped | None = None) -> list[str]:
    """Names of the folders inside, in ASCII order, without hidden ones and what archives leave behind."""
    return _look(folder, skipped)[1]


def image_paths(folder: Path, skipped: Skipped | None = None) -> Iterator[str]:
    """Paths of all images below ``folder``, relative to it, in ASCII order, folder by folder, each folder once."""
    yield from _image_paths(folder, "", skipped, set(), 0)


def _image_paths(
    folder: Path, before: str, skipped: Skipped | None, seen: set[tuple[int, int]], depth: int
) -> Iterator[str]:
    try:
        facts = os.stat(folder)
    except OSError as error:
        _skip(folder, error, skipped)
        return
    if (facts.st_dev, facts.st_ino) in seen or depth > MAX_DEPTH:
        return
    seen.add((facts.st_dev, facts.st_ino))
    files, folders = _look(folder, skipped)
    yield from (before + name for name in files if name.lower().endswith(IMAGE_SUFFIXES))
    for inner in folders:
        yield from _image_paths(folder / inner, f"{before}{inner}/", skipped, seen, depth + 1)


def _look(folder: Path, skipped: Skipped | None) -> tuple[list[str], list[str]]:
    """Names of the files and of the folders in a folder that are not hidden, in ASCII order."""
    names: tuple[list[str], list[str]] = ([], [])
    try:
        with os.scandir(folder) as entries:
            found = sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        _skip(folder, error, skipped)
        return names
    for entry in found:
        try:
            # A link to a folder that it lies in itself leads round in circles.
            circular = entry.is_symlink() and f"{os.path.realpath(folder)}/".startswith(
                f"{os.path.realpath(entry.path)}/"
            )
            if not circular and entry.name != "__MACOSX":
                names[entry.is_dir()].append(entry.name)
        except OSError as error:  # a link to itself
            _skip(entry.path, error, skipped)
    return names


def _skip(path: str | Path, error: OSError, skipped: Skipped | None) -> None:
    name, reason = printable(path), error.strerror or type(error).__name__
    if skipped is None or name not in skipped:
        logger.warning("skipped: %s (%s)", name, reason)
    if skipped is not None:
        skipped[name] = reason


def class_folders(folder: Path, skipped: Skipped | None = None) -> list[str]:
    """Folders of ``folder`` that hold at least one image, in ASCII order; an empty one is no class."""
    return [
        name for name in visible_folders(folder, skipped) if next(image_paths(folder / name, skipped), None) is not None
    ]


def read_tree(
    name: str, folder: Path, class_names: Sequence[str], skipped: Skipped | None = None, max_pixels: int = MAX_PIXELS
) -> FileDomain:
    """The domain in ``folder``/<class>/*; classes are numbered as in ``class_names``."""
    paths: list[str] = []
    classes: list[int] = []
    present = set(visible_folders(folder, skipped))
    for index, class_name in enumerate(class_names):
        if class_name in present:
            for path in image_paths(folder / class_name, skipped):
                paths.append(f"{class_name}/{path}")
                classes.append(index)
    return FileDomain(name, folder, paths, torch.tensor(classes, dtype=torch.int64), max_pixels)


@dataclass(frozen=True)
class ListFile:
    """A read list file: paths as written, labels, and the name of the folder that holds each label's images.

    ``folder_names`` is empty if the paths do not show the classes: two labels in one folder, or a label in two.
    """

    file: Path
    paths: list[str]
    labels: Tensor
    folder_names: dict[int, str]


def read_list(file: Path, num_classes: int | None = None) -> ListFile:
    """Lines ``path label``; the path may hold blanks. Errors name the line."""
    paths, labels, folders, telling = list[str](), list[int](), dict[int, str](), True
    highest = MOST_CLASSES if num_classes is None else num_classes
    with open(file, "rb") as lines:
        for number, raw in enumerate(iter(lambda: lines.readline(LONGEST_LINE + 1), b""), start=1):
            line = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
            if not line and len(raw) <= LONGEST_LINE:
                continue
            parts = line.rsplit(None, 1)
            label = int(parts[1]) if len(parts) == 2 and re.fullmatch(rb"[+-]?\d{1,100}", parts[1]) else None
            if label is None or len(raw) > LONGEST_LINE or b"\0" in line:
                found = shown_name(line[:LONGEST_SHOWN].decode(errors="replace"))
                raise DriftgateError(
                    f"Expected 'path label' in line {number} of {file} but got {found!r}"
                    f"{' and more' if len(line) > LONGEST_SHOWN else ''}; mend the line or remove it."
                )
            if not 0 <= label < highest:
                raise DriftgateError(
                    f"Expected a label from 0 to {highest - 1} in line {number} of {file} but got "
                    f"{shown_name(parts[1][:LONGEST_SHOWN].decode(errors='replace'))}; labels are class indices in "
                    "ASCII order of the class names."
                )
            paths.append(os.fsdecode(parts[0]))
            labels.append(label)
            folder = os.path.basename(os.path.dirname(paths[-1]))
            telling = telling and folders.setdefault(label, folder) == folder
    if not len(paths):
        raise DriftgateError(f"Expected lines 'path label' in {file} but it is empty; fill or remove it.")
    telling = telling and len(set(folders.values())) == len(folders) and "" not in folders.values()
    return ListFile(file, paths, torch.tensor(labels), folders if telling else {})


def list_domain(
    name: str,
    listed: ListFile,
    bases: Sequence[Path],
    class_names: Sequence[str],
    *,
    root: Path | None = None,
    max_pixels: int = MAX_PIXELS,
) -> FileDomain:
    """The domain of a list file; its paths are looked for under ``bases``, decided by its first lines.

    Public lists often carry the author's own absolute paths: leading folders are left out until the rest is found. Some
    (SHOT's of Office-Home) number the classes in an order of their own: where the folders show the classes, their
    place in ``class_names`` counts, and the label only where they do not. Where a ``root`` is given, a list that leads
    out of it is refused: lists come from anybody.
    """
    classes = listed.labels
    if listed.folder_names:
        place = {class_name: index for index, class_name in enumerate(class_names)}
        renumbered = torch.arange(int(classes.max()) + 1)
        for label, folder in listed.folder_names.items():
            renumbered[label] = place[folder]
        classes = renumbered[classes]
    elif int(classes.max()) >= len(class_names):
        raise DriftgateError(
            f"Expected labels below {len(class_names)}, the number of classes, in {listed.file} but the largest is "
            f"{int(classes.max())}; mend the list."
        )
    base, dropped = _start_of(listed, bases, root)
    paths = [_without(path, dropped) for path in listed.paths]
    folders = dict.fromkeys(os.path.dirname(path) for path in paths)
    outside = next((folder for folder in folders if not _inside(root, base, folder)), None)
    if outside is not None:
        raise _outside(listed, outside, root)
    return FileDomain(name, base, paths, classes, max_pixels)


def _start_of(listed: ListFile, bases: Sequence[Path], root: Path | None) -> tuple[Path, int]:
    """The folder that a list's paths start from, and how many of their leading parts are left out."""
    outside = None
    for number in range(min(len(listed.paths), FIRST_LINES)):
        first = listed.paths[number]
        for dropped in range(len(PurePosixPath(first).parts)):
            rest = _without(first, dropped)
            for base in bases:
                if os.path.isfile(os.path.join(base, rest)):
                    if _inside(root, base, os.path.dirname(rest)):
                        return base, dropped
                    outside = outside or listed.paths[number]
    if outside is not None:
        raise _outside(listed, outside, root)
    tried = " or ".join(str(base) for base in bases)
    raise DriftgateError(
        f"Expected the images of {listed.file} under {tried} but {printable(listed.paths[0])} is not "
        "there, nor those that follow; put the images beside the list."
    )


def _inside(root: Path | None, base: Path, folder: str) -> bool:
    """Whether ``folder``, seen from ``base``, lies in ``root``; links inside of it are the user's own affair."""
    if root is None:
        return True
    place, wanted = os.path.abspath(os.path.join(base, folder)), os.path.abspath(root)
    return os.path.commonpath([place, wanted]) == wanted


def _outside(listed: ListFile, path: str, root: Path | None) -> DriftgateError:
    return DriftgateError(
        f"Expected images in {root} but {listed.file} leads to {printable(path)}, outside of it; "
        "give --allow-outside if you trust the list."
    )


def _without(path: str, dropped: int) -> str:
    """The path without its first parts; the first of ``/a/b/c.jpg`` is ``/``, so that what is left is relative."""
    return path if dropped == 0 else "/".join(PurePosixPath(path).parts[dropped:])
