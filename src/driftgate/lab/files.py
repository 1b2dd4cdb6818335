"""Files of commands: where they may be written, and what is in them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftgate.types import DriftgateError


def writable_file(path: Path) -> Path:
    """Refuse a file that cannot be written before hours are spent on what should go there; leaves no trace."""
    if path.is_dir():
        raise DriftgateError(f"Expected the name of a file to write but {path} is a folder; add a file name.")
    _try_to_write(path.parent, path)
    return path


def writable_folder(path: Path) -> Path:
    """The same for a folder of results."""
    _try_to_write(path, path)
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def digest_of(facts: Mapping[str, Any]) -> str:
    """SHA-256 of facts ready for JSON, whatever their order."""
    text = json.dumps(facts, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _try_to_write(folder: Path, given: Path) -> None:
    """Create a file in ``folder``, or in the nearest folder above it that is there, and delete it again.

    Permission bits would not tell of read-only and full disks.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{given.name}.")
        os.close(handle)
        os.unlink(temporary)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DriftgateError(
            f"Expected a place to write {given} but {folder} does not take files: {reason}; name another place."
        ) from error
