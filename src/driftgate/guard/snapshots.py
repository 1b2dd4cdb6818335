"""Snapshots of a method on disk: the start whole, then a ring of what has changed since.

``start.safetensors`` is a saved method like any other. A snapshot holds only the tensors that differ from it, so that
one of a network whose norm layers learn takes kilobytes.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftgate.checkpoint import read_checkpoint, under_prefix, with_prefix, write_checkpoint
from driftgate.methods.base import KIND as METHOD
from driftgate.methods.base import Method, method_info
from driftgate.types import DriftgateError

KIND = "guard-snapshot"
START = "start.safetensors"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """One snapshot in the ring.

    Attributes:
        id: what ``rollback`` takes; a later one is larger, and 0 is the start.
        steps: of the method when it was taken.
        look: of the guard when it was taken.
        reason: why it was taken.
        num_bytes: of the file.
        created: seconds since 1970 by the machine's clock.
    """

    id: int
    steps: int
    look: int
    reason: str
    num_bytes: int
    created: float


class SnapshotRing:
    """The start of ``method``, which stays, and its last ``keep`` snapshots in ``folder``.

    A folder that holds snapshots already is taken over if its start is that of the same method, model and settings.
    """

    def __init__(self, method: Method, folder: str | Path, keep: int) -> None:
        self.method, self.folder, self.keep = method, Path(folder), keep
        self.snapshots: list[Snapshot] = []
        start = self.folder / START
        if start.exists():
            self._take_over(read_checkpoint(start, METHOD)[1])
        else:
            write_checkpoint(start, METHOD, method.state_dict(), method_info(method))
        facts = start.stat()
        self.snapshots.insert(0, Snapshot(0, 0, 0, "start", facts.st_size, facts.st_mtime))

    def take(self, look: int, reason: str, tensors: dict[str, Tensor], extra: dict[str, Any]) -> Snapshot:
        """Write what differs from the start; ``tensors`` and ``extra``, what JSON knows, are given back later."""
        start = read_checkpoint(self.folder / START, METHOD)[0]
        now = {name: value.cpu() for name, value in self.method.state_dict().items()}
        changed = {name: value for name, value in now.items() if not _same(value, start.get(name))}
        number, created = self.snapshots[-1].id + 1, time.time()
        info = {
            "method": self.method.name,
            "steps": self.method.steps,
            "look": look,
            "reason": reason,
            "created": created,
            "gone": [name for name in start if name not in now],
            "extra": extra,
        }
        write_checkpoint(
            self._path(number), KIND, {**with_prefix("method", changed), **with_prefix("guard", tensors)}, info
        )
        size = self._path(number).stat().st_size
        self.snapshots.append(Snapshot(number, self.method.steps, look, reason, size, created))
        while len(self.snapshots) > self.keep + 1:
            self._path(self.snapshots.pop(1).id).unlink(missing_ok=True)
        return self.snapshots[-1]

    def put_back(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Give the method the state of a snapshot; returns its ``tensors`` and ``extra``, both empty for the start."""
        if number not in [snapshot.id for snapshot in self.snapshots]:
            there = ", ".join(str(snapshot.id) for snapshot in self.snapshots)
            raise DriftgateError(f"Expected a snapshot out of {there} but got {number}; old ones leave the ring.")
        state = read_checkpoint(self.folder / START, METHOD)[0]
        tensors: dict[str, Tensor] = {}
        extra: dict[str, Any] = {}
        if number > 0:
            found, info = read_checkpoint(self._path(number), KIND)
            state = {name: value for name, value in state.items() if name not in info["gone"]}
            state |= under_prefix("method", found)
            tensors, extra = under_prefix("guard", found), info["extra"]
        self.method.load_state_dict(state)
        return tensors, extra

    def start_model(self) -> dict[str, Tensor]:
        """The tensors of the network at the start, by their names in the model."""
        return under_prefix("model", read_checkpoint(self.folder / START, METHOD)[0])

    def _take_over(self, found: dict[str, Any]) -> None:
        for name, mine in method_info(self.method).items():
            if found.get(name) != mine:
                raise DriftgateError(
                    f"Expected a guard's folder with {name} {mine} but {self.folder} has {found.get(name)}; name "
                    "another folder, or remove it."
                )
        for path in sorted(self.folder.glob("snapshot-*.safetensors")):
            try:
                info = read_checkpoint(path, KIND)[1]
            except DriftgateError as error:  # one broken file must not cost the others
                logger.warning("%s left out: %s", path.name, error)
                continue
            number = int(path.stem.removeprefix("snapshot-"))
            size = path.stat().st_size
            self.snapshots.append(Snapshot(number, info["steps"], info["look"], info["reason"], size, info["created"]))

    def _path(self, number: int) -> Path:
        return self.folder / f"snapshot-{number:08d}.safetensors"


def _same(value: Tensor, start: Tensor | None) -> bool:
    if start is None or value.shape != start.shape or value.dtype != start.dtype:
        return False
    return torch.equal(value.detach().cpu(), start)
