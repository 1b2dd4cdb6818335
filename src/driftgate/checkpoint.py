"""Checkpoints: tensors in safetensors, everything else as JSON in its metadata; nothing is ever unpickled.

Files are written under a temporary name, put on the disk and renamed, so that a killed process or a power cut leaves
the old file or the new one.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from driftgate.types import DriftgateError

FORMAT = 1
KEY = "driftgate"


CHECKPOINT_SECONDS = 120.0
"""Between two checkpoints of a run or training: what a kill costs at most. One of ResNet-50 is written in a second."""


class Pace:
    """Says when it is time to write again: so many seconds after the last time.

    Seconds, not steps: a step of a small network takes milliseconds, one of a large network half a minute.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether the seconds have passed; if so, they count anew from now on."""
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True


def write_checkpoint(path: str | Path, kind: str, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Write ``tensors`` and the JSON-able ``info`` as a checkpoint of the given ``kind``."""
    # A copy of each: safetensors refuses views that share memory, and channels_last tensors are not contiguous.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    document = json.dumps({"format": FORMAT, "kind": kind, **info})
    write_atomically(path, lambda temporary: save_file(plain, temporary, metadata={KEY: document}))


def read_checkpoint(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and info of a checkpoint; refuses files that are something else."""
    if not Path(path).is_file():
        found = "it is a folder" if Path(path).is_dir() else "there is no such file"
        raise DriftgateError(f"Expected a checkpoint at {path} but {found}.")
    try:
        with safe_open(path, framework="pt") as file:
            document = (file.metadata() or {}).get(KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DriftgateError(f"Expected a driftgate checkpoint at {path} but it cannot be read: {error}") from error
    if document is None:
        raise DriftgateError(f"Expected a driftgate checkpoint at {path} but it carries no driftgate metadata.")
    try:
        info = json.loads(document)
    except json.JSONDecodeError as error:
        raise DriftgateError(
            f"Expected a driftgate checkpoint at {path} but its metadata is broken: {error}."
        ) from error
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise DriftgateError(
            f"Expected checkpoint format {FORMAT} but {path} has another; use the driftgate that wrote it."
        )
    if info.get("kind") != kind:
        raise DriftgateError(f"Expected a checkpoint of kind {kind!r} but {path} holds {info.get('kind')!r}.")
    return tensors, info


def write_atomically(path: str | Path, write: Callable[[str], object], *, durable: bool = True) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it; on failure nothing is left behind.

    ``durable`` waits until the content is on the disk; without it, a power cut may leave an empty file.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
    os.close(handle)
    try:
        write(temporary)
        if durable:
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp lets nobody else read, which is right only while it is written
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The process's mask of permissions; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | Path, text: str, *, durable: bool = True) -> None:
    """Write a text file atomically; see ``write_atomically``."""
    write_atomically(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"), durable=durable)


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put ``prefix.`` before every name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name starts with ``prefix.``, without it."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
