"""Checkpoints: tensors in safetensors, everything else as JSON in its metadata; nothing is ever unpickled.

Every tensor has its checksum in the metadata, and the metadata have theirs: a file that changed since it was written
is refused.
"""

from __future__ import annotations

import json
import logging
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from driftgate.files import write_atomically
from driftgate.files import write_text as write_text  # noqa: PLC0414  # its old place
from driftgate.types import DriftgateError

FORMAT = 1
KEY, SUM_KEY = "driftgate", "driftgate-checksum"
"""Where a file's metadata hold the JSON document, and the checksum of that document."""
SUMS = "checksums"
"""Where the document holds the checksum of each tensor."""
LONGEST_REASON = 300
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls the types a checkpoint may hold."""

logger = logging.getLogger(__name__)

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
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sums = {name: checksum(tensor) for name, tensor in plain.items()}
    document = json.dumps({"format": FORMAT, "kind": kind, **info, SUMS: sums})
    metadata = {KEY: document, SUM_KEY: f"{zlib.crc32(document.encode()):08x}"}
    write_atomically(path, lambda temporary: _save(temporary, plain, metadata))


def _save(path: str, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file into the file at ``path``.

    The library's own ``save_file`` writes under a name of its own choice first, which a kill leaves behind for ever,
    and copies every tensor. The format: length of the header, a JSON header with types, shapes and places, then the
    bytes; wide types first, so that every tensor lies where its type may.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in ordered:
            file.write(_bytes(tensor))


def _bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def read_checkpoint(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and info of a checkpoint; refuses files that are something else, or not what was written."""
    if not Path(path).is_file():
        found = "it is a folder" if Path(path).is_dir() else "there is no such file"
        raise DriftgateError(f"Expected a checkpoint at {path} but {found}; name the file that was saved.")
    with foreign_content(path):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if KEY not in metadata:
            raise DriftgateError(
                f"Expected a driftgate checkpoint at {path} but it carries no driftgate metadata; name a file that "
                "driftgate saved."
            )
        info = json.loads(metadata[KEY])
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise DriftgateError(
            f"Expected checkpoint format {FORMAT} but {path} has another; use the driftgate that wrote it."
        )
    if info.get("kind") != kind:
        raise DriftgateError(
            f"Expected a checkpoint of kind {kind!r} but {path} holds {info.get('kind')!r}; name a file of that kind."
        )
    _check_sums(path, tensors, metadata, info.pop(SUMS, None))
    return tensors, info


def checksum(tensor: Tensor) -> str:
    """CRC-32 of kind, shape and bytes: it finds every flipped bit. No signature: who writes the file writes it too."""
    head = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    return f"{zlib.crc32(_bytes(tensor.contiguous()), zlib.crc32(head)):08x}"


def _check_sums(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str], sums: Any) -> None:
    if sums is None and SUM_KEY not in metadata:
        logger.warning("%s was written before checkpoints had checksums: whether it is damaged cannot be told.", path)
        return
    damaged = "its metadata" if metadata.get(SUM_KEY) != f"{zlib.crc32(metadata[KEY].encode()):08x}" else None
    if damaged is None and isinstance(sums, dict):
        differing = {name for name, tensor in tensors.items() if sums.get(name) != checksum(tensor)}
        damaged = next((repr(name) for name in sorted(differing | (sums.keys() ^ tensors.keys()))), None)
    if damaged is not None or not isinstance(sums, dict):
        raise DriftgateError(
            f"Expected {path} as it was written but {damaged or 'its metadata'} has changed since: the file is "
            "damaged; take a copy of it."
        )


@contextmanager
def foreign_content(path: str | Path) -> Iterator[None]:
    """Where a file is interpreted: whatever stumbles over its content becomes one ``DriftgateError`` that names it."""
    try:
        yield
    except DriftgateError:
        raise
    except Exception as error:  # damaged and hostile files raise almost anything, from KeyError to RecursionError
        reason = " ".join(str(error).split())
        raise DriftgateError(
            f"Expected a driftgate checkpoint at {path} but it cannot be read ({type(error).__name__}: "
            f"{reason[:LONGEST_REASON]}); take a copy of it, or make it again."
        ) from error


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put ``prefix.`` before every name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name starts with ``prefix.``, without it."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
