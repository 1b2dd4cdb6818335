"""The gallery of recent unknowns: pictures in memory, grouped by the likeness of their features, to be named."""

from __future__ import annotations

import base64
import re
import threading
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.serve.answers import BatchReport
from driftgate.serve.clock import timestamp
from driftgate.types import UNKNOWN, DriftgateError

ALIKE = 0.5
"""Cosine, between features less their mean, above which two samples look alike."""
FEWEST = 4
"""Samples that make a group."""
A_BATCH = 6
"""Unknowns kept of one batch at most, so that the gallery looks back further than a few seconds."""
THUMBNAIL = 64
"""Pixels of a thumbnail's longer side at most."""


@dataclass
class Unknown:
    """One sample nobody knew: pixels (C, H, W) uint8 as the model saw them, its features (D,), and the name it got."""

    id: str
    pixels: Tensor
    features: Tensor
    novelty: float
    time: str
    name: str | None = None


class Gallery:
    """The last ``size`` unknowns; listens to the engine. Lives in memory only: a restart forgets it."""

    def __init__(self, size: int = 240) -> None:
        self.size, self.revision = size, 0
        self._items: OrderedDict[str, Unknown] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, report: BatchReport) -> None:
        """Keep the unknowns of a batch."""
        if report.inputs.ndim != 4 or report.features is None:
            return
        places = (report.prediction.labels == UNKNOWN).nonzero().flatten().tolist()
        now = timestamp()
        found = [
            Unknown(
                report.answers[place].id,
                (report.inputs[place].cpu() * 255).round().to(torch.uint8),
                report.features[place].float().cpu().clone(),
                report.answers[place].novelty,
                now,
            )
            for place in places[:: max(1, -(-len(places) // A_BATCH))]
        ]
        with self._lock:
            self._items.update((item.id, item) for item in found)
            while len(self._items) > self.size:
                self._items.popitem(last=False)
            self.revision += bool(found)

    def groups(self) -> tuple[list[list[Unknown]], list[Unknown]]:
        """Those that have a name by it, the rest by likeness, the largest first; and those like no other."""
        with self._lock:
            items = list(self._items.values())
        if not items:
            return [], []
        labels = alike(torch.stack([item.features for item in items]), [item.name for item in items])
        grouped: dict[int, list[Unknown]] = {}
        for item, label in zip(items, labels, strict=True):
            grouped.setdefault(label, []).append(item)
        alone = grouped.pop(-1, [])
        return sorted(grouped.values(), key=lambda members: (name_of(members) is None, -len(members))), alone

    def describe(self, thumbnails: int = 0) -> dict[str, Any]:
        """The groups as JSON, newest pictures first, so many of each with a thumbnail."""
        revision = self.revision
        groups, alone = self.groups()
        named = [{"name": name_of(members), "items": _listed(members, thumbnails)} for members in groups]
        return {"revision": revision, "size": self.size, "groups": named, "alone": _listed(alone, thumbnails)}

    def picture(self, item_id: str) -> bytes:
        """One unknown as PNG."""
        with self._lock:
            item = self._items.get(item_id)
        if item is None:
            raise DriftgateError(f"Expected the id of one of the last {self.size} unknowns but got {item_id!r}.")
        return png(item.pixels)

    def name(self, ids: list[str], name: str | None) -> int:
        """Give unknowns a name, or take it back with None; says how many there were."""
        with self._lock:
            found = [self._items[item_id] for item_id in ids if item_id in self._items]
            for item in found:
                item.name = name or None
            self.revision += bool(found)
        return len(found)

    def clear(self) -> None:
        """Forget all pictures."""
        with self._lock:
            self._items.clear()
            self.revision += 1

    def as_zip(self) -> bytes:
        """One folder a group, as data sets have them: the names given, else numbers."""
        buffer = BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            groups, alone = self.groups()
            folders = [(name_of(members) or f"group-{number}", members) for number, members in enumerate(groups, 1)]
            for name, members in [*folders, ("alone", alone)]:
                for item in members:
                    archive.writestr(f"unknowns/{_safe(name)}/{item.id}.png", png(item.pixels))
        return buffer.getvalue()


def alike(features: Tensor, names: list[str | None]) -> list[int]:
    """(n, D) -> a group for each sample, -1 for those like no other.

    Samples of one name are a group, and those like its mean join it. Of the rest, the sample with the most others like
    it makes a group with these, again and again: no chains, so that all of a group look like its centre.
    """
    directions = F.normalize(features - features.mean(dim=0), dim=1)
    likeness = directions @ directions.T > ALIKE
    labels = torch.full((len(features),), -1)
    for number, name in enumerate(sorted({name for name in names if name is not None})):
        members = torch.tensor([own == name for own in names])
        centre = F.normalize(directions[members].mean(dim=0), dim=0)
        free = torch.tensor([own is None for own in names]) & (labels < 0)
        labels[members | (free & (directions @ centre > ALIKE))] = number
    number = int(labels.max()) + 1
    while True:
        free = labels < 0
        counts = (likeness & free).sum(dim=1) * free
        leader = int(counts.argmax())
        if counts[leader] < FEWEST:
            return [int(label) for label in labels]
        labels[likeness[leader] & free] = number
        number += 1


def name_of(members: list[Unknown]) -> str | None:
    """The name that members of a group were given."""
    return next((item.name for item in members if item.name is not None), None)


def png(pixels: Tensor) -> bytes:
    """(C, H, W) uint8 -> a PNG."""
    from PIL import Image

    array = pixels[0].numpy() if len(pixels) == 1 else pixels[:3].permute(1, 2, 0).contiguous().numpy()
    buffer = BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def _listed(members: list[Unknown], thumbnails: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"id": item.id, "novelty": item.novelty, "time": item.time} for item in reversed(members)
    ]
    for row, item in zip(rows[:thumbnails], reversed(members), strict=False):
        small = item.pixels[:, :: _stride(item.pixels), :: _stride(item.pixels)]
        row["thumbnail"] = f"data:image/png;base64,{base64.b64encode(png(small)).decode()}"
    return rows


def _stride(pixels: Tensor) -> int:
    return max(1, max(pixels.shape[1:]) // THUMBNAIL)


def _safe(name: str) -> str:
    """A name as that of a folder, wherever the archive is unpacked."""
    return re.sub(r"[^\w .-]", "_", name).strip(". ")[:80] or "_"
