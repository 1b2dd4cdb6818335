"""Domains: the samples of one look, read from class folders, from a list file, or held in memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from driftgate.lab.data.loading import IMAGE_SUFFIXES, Transform, decode, printable
from driftgate.models.pictures import to_rgb
from driftgate.types import DriftgateError

MAX_DEPTH = 8
"""Folders inside a class folder are read too, as usual; this deep at most, so that a looping link ends."""

FIRST_LINES = 20
"""So many lines of a list file are tried before its images count as missing."""


class Domain(Protocol):
    """Samples in data set order, decoded one by one."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> Tensor:
        """(n,) int64, class index of each sample."""

    def __len__(self) -> int: ...

    def describe(self, index: int) -> str:
        """What to call the sample in a report."""

    def load(self, index: int, transform: Transform) -> Tensor:
        """The sample as (3, H, W) uint8; ``BrokenImage`` if it cannot be read."""


class PathTable:
    """Many paths in little memory: each folder once, the files' names in one buffer; about 20 bytes an image.

    A list of strings takes over 100, which is what would make memory grow with the number of images.
    """

    def __init__(self, paths: Iterable[bytes] = ()) -> None:
        self._folders: dict[bytes, int] = {}
        self._folder_names: list[bytes] = []
        self._folder_of = array("I")
        self._names = bytearray()
        self._ends = array("Q")
        for path in paths:
            self.append(path)

    def append(self, path: bytes) -> None:
        folder, name = path[: path.rfind(b"/") + 1], path[path.rfind(b"/") + 1 :]
        if folder not in self._folders:
            self._folders[folder] = len(self._folder_names)
            self._folder_names.append(folder)
        self._folder_of.append(self._folders[folder])
        self._names += name
        self._ends.append(len(self._names))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self._ends):
            raise IndexError(index)
        start = self._ends[index - 1] if index else 0
        return self._folder_names[self._folder_of[index]] + bytes(self._names[start : self._ends[index]])


class FileDomain:
    """Images in files: ``paths`` relative to ``base``, ``classes`` their class indices."""

    def __init__(self, name: str, base: Path, paths: PathTable, classes: Tensor) -> None:
        if len(paths) != len(classes):
            raise DriftgateError(f"Expected one class for each of {len(paths)} paths but got {len(classes)}.")
        self.name, self.base, self.classes = name, base, classes
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def path(self, index: int) -> str:
        """The file of a sample."""
        return os.path.join(self.base, os.fsdecode(self._paths[index]))

    def describe(self, index: int) -> str:
        return printable(self.path(index))

    def load(self, index: int, transform: Transform) -> Tensor:
        return transform(decode(self.path(index)))


class MemoryDomain:
    """Images held in memory: ``images`` (n, 3, H, W) uint8, ``classes`` (n,).

    Images that have the model's input size already are left as they are: neither resized nor cropped.
    """

    def __init__(self, name: str, images: Tensor, classes: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8 or len(images) != len(classes):
            raise DriftgateError(
                f"Expected uint8 images (n, 3, H, W) and n classes but got {images.dtype} {tuple(images.shape)} "
                f"and {len(classes)} classes."
            )
        self.name, self.images, self.classes = name, images, classes.long()

    def __len__(self) -> int:
        return len(self.images)

    def describe(self, index: int) -> str:
        return f"{self.name}[{index}]"

    def load(self, index: int, transform: Transform) -> Tensor:
        image = self.images[index]
        if tuple(image.shape[1:]) == transform.size:
            return transform.mirrored(image)
        return transform(to_rgb(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())))


def is_image_name(name: str) -> bool:
    """Not hidden, and ending like a picture."""
    return not name.startswith(".") and name.lower().endswith(IMAGE_SUFFIXES)


def visible_folders(folder: Path) -> list[str]:
    """Names of the folders inside, in ASCII order, without hidden ones and what archives leave behind."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(name for name in names if not name.startswith(".") and name != "__MACOSX")


def image_paths(folder: Path, depth: int = 0) -> Iterator[str]:
    """Paths of all images below ``folder``, relative to it, in ASCII order, folder by folder."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if is_image_name(entry.name) and not entry.is_dir())
    yield from names
    if depth < MAX_DEPTH:
        for inner in visible_folders(folder):
            for path in image_paths(folder / inner, depth + 1):
                yield f"{inner}/{path}"


def class_folders(folder: Path) -> list[str]:
    """Folders of ``folder`` that hold at least one image, in ASCII order; an empty one is no class."""
    return [name for name in visible_folders(folder) if next(image_paths(folder / name), None) is not None]


def read_tree(name: str, folder: Path, class_names: Sequence[str]) -> FileDomain:
    """The domain in ``folder``/<class>/*; classes are numbered as in ``class_names``."""
    paths, classes = PathTable(), array("q")
    present = set(visible_folders(folder))
    for index, class_name in enumerate(class_names):
        if class_name in present:
            for path in image_paths(folder / class_name):
                paths.append(os.fsencode(f"{class_name}/{path}"))
                classes.append(index)
    return FileDomain(name, folder, paths, _tensor(classes))


@dataclass(frozen=True)
class ListFile:
    """A read list file: paths as written, labels, and the name of the folder that holds each label's images.

    ``folder_names`` is empty if the paths do not show the classes: two labels in one folder, or a label in two.
    """

    file: Path
    paths: PathTable
    labels: Tensor
    folder_names: dict[int, str]


def read_list(file: Path, num_classes: int | None = None) -> ListFile:
    """Lines ``path label``; the path may hold blanks. Errors name the line."""
    paths, labels, folders, telling = PathTable(), array("q"), dict[int, bytes](), True
    with open(file, "rb") as lines:
        for number, raw in enumerate(lines, start=1):
            line = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
            if not line:
                continue
            parts = line.rsplit(None, 1)
            label = _label(parts[1]) if len(parts) == 2 else None
            if label is None:
                raise DriftgateError(
                    f"Expected 'path label' in line {number} of {file} but got {line.decode(errors='replace')!r}."
                )
            if label < 0 or (num_classes is not None and label >= num_classes):
                wanted = "0 or more" if num_classes is None else f"0 to {num_classes - 1}"
                raise DriftgateError(
                    f"Expected a label from {wanted} in line {number} of {file} but got {label}; labels are class "
                    "indices in ASCII order of the class names."
                )
            paths.append(parts[0])
            labels.append(label)
            folder = os.path.basename(os.path.dirname(parts[0]))
            telling = telling and folders.setdefault(label, folder) == folder
    if not len(paths):
        raise DriftgateError(f"Expected lines 'path label' in {file} but it is empty.")
    telling = telling and len(set(folders.values())) == len(folders) and b"" not in folders.values()
    names = {label: os.fsdecode(folder) for label, folder in folders.items()} if telling else {}
    return ListFile(file, paths, _tensor(labels), names)


def list_domain(name: str, listed: ListFile, bases: Sequence[Path], class_names: Sequence[str]) -> FileDomain:
    """The domain of a list file; its paths are looked for under ``bases``, decided by its first lines.

    Public lists often carry the author's own absolute paths: leading folders are left out until the rest is found. Some
    (SHOT's of Office-Home) number the classes in an order of their own: where the folders show the classes, their
    place in ``class_names`` counts, and the label only where they do not.
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
            f"{int(classes.max())}."
        )
    for number in range(min(len(listed.paths), FIRST_LINES)):
        first = os.fsdecode(listed.paths[number])
        for dropped in range(len(_parts(first))):
            rest = _without(first, dropped)
            for base in bases:
                if os.path.isfile(os.path.join(base, rest)):
                    return FileDomain(name, base, _shortened(listed.paths, dropped), classes)
    tried = " or ".join(str(base) for base in bases)
    raise DriftgateError(
        f"Expected the images of {listed.file} under {tried} but {printable(os.fsdecode(listed.paths[0]))} is not "
        "there, nor those that follow; put the images beside the list."
    )


def _shortened(paths: PathTable, dropped: int) -> PathTable:
    if dropped == 0:
        return paths
    return PathTable(os.fsencode(_without(os.fsdecode(paths[index]), dropped)) for index in range(len(paths)))


def _parts(path: str) -> list[str]:
    """``/a/b/c.jpg`` -> ``['/', 'a', 'b', 'c.jpg']``, so that dropping one part makes it relative."""
    inner = [part for part in path.split("/") if part not in {"", "."}]
    return ["/", *inner] if path.startswith("/") else inner


def _without(path: str, dropped: int) -> str:
    return path if dropped == 0 else "/".join(_parts(path)[dropped:])


def _label(text: bytes) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _tensor(values: array[int]) -> Tensor:
    return torch.from_numpy(np.frombuffer(values, dtype=np.int64).copy()) if len(values) else torch.zeros(0).long()
