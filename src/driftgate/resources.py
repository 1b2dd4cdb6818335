"""Memory of this process, as the system counts it."""

from __future__ import annotations

import ctypes
import gc
import logging
import platform
from pathlib import Path

logger = logging.getLogger(__name__)

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def reset_peak_memory() -> bool:
    """Start a new measurement of the peak where the system can (Linux); answers whether it did."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        logger.debug("peak memory cannot be reset here; it is the peak of the whole process")
        return False
    return True


def peak_memory() -> int:
    """Largest resident memory of the process since the reset, in bytes."""
    found = _status("VmHWM")
    if found is not None:
        return found
    import resource  # not on Windows, where the first way does not work either

    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def resident_memory() -> int | None:
    """Resident memory of the process now, in bytes; None where the system does not tell (other than Linux)."""
    return _status("VmRSS")


def give_back_memory() -> None:
    """Return memory that is free to the system, where the C library can (glibc); its allocator keeps it otherwise."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        logger.debug("this C library cannot return memory on demand")


def _status(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
