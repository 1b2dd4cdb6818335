"""Files that are whole or not there: filled under another name, put on the disk, renamed; one writer at a time.

A killed process or a power cut leaves the old file or the new one. What it had half written lies under one fixed name
beside the file, so that the next writer finds it and removes it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from driftgate.types import DriftgateError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system that knows no locks answers; files are written there all the same."""


def write_atomically(path: str | Path, write: Callable[[str], object], *, durable: bool = True) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it; on failure nothing is left behind.

    A link is followed, a file that was there keeps its mode, and a second writer waits for the first. ``durable`` waits
    until content and name are on the disk; without it, a power cut may leave an empty file.
    """
    with failed_write(path):
        target = _behind_links(Path(path))
        new_folders = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        temporary = target.with_name(f".{target.name}.tmp")
        with _own(temporary, wait=True):
            if mode is not None:
                os.chmod(temporary, mode)
            write(str(temporary))
            if durable:
                with open(temporary, "rb+") as file:
                    os.fsync(file.fileno())
            os.replace(temporary, target)
        if durable:
            for folder in (target.parent, *(folder.parent for folder in new_folders)):
                _flush_names(folder)


@contextmanager
def failed_write(path: str | Path) -> Iterator[None]:
    """Where a file is written: a full or closed disk becomes a ``DriftgateError``."""
    try:
        yield
    except OSError as error:
        raise DriftgateError(
            f"Expected to write {path} but it failed: {_reason(error)}; what was there before is as it was. Make room, "
            "or name another place."
        ) from error


def write_text(path: str | Path, text: str, *, durable: bool = True) -> None:
    """Write a text file atomically; see ``write_atomically``."""
    write_atomically(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"), durable=durable)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A plain file open for reading; a pipe, which would be waited on for ever, or a device raises OSError."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("no plain file")
    return os.fdopen(handle, "rb")


@contextmanager
def only_writer(path: str | Path | None) -> Iterator[None]:
    """Be the one who writes ``path``, if anything, for as long as the work on it takes; a second one is refused.

    The lock is a file beside it that the system frees when its process ends, however it ends.
    """
    if path is None:
        yield
        return
    target = _behind_links(Path(path))
    lock = target.with_name(f".{target.name}.lock")
    new_folders = [folder for folder in target.parents if not folder.exists()]
    with ExitStack() as held:
        held.callback(_remove_empty, new_folders)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle = held.enter_context(_own(lock, wait=False))
        except BlockingIOError as error:
            owner = lock.read_text(encoding="ascii", errors="replace") if lock.exists() else ""
            raise DriftgateError(
                f"Expected to be the only one who writes {path} but {f'process {owner}' if owner else 'another'} is at "
                "it; wait for it, or name another place."
            ) from error
        except OSError as error:
            raise DriftgateError(
                f"Expected a place to write {path} but it takes no files: {_reason(error)}; name another place."
            ) from error
        with suppress(OSError):  # on a full disk the lock holds all the same
            os.write(handle, str(os.getpid()).encode())
        yield


@contextmanager
def _own(path: Path, *, wait: bool) -> Iterator[int]:
    """A fresh file at ``path`` that nobody else has, locked until the end, and then removed unless it was renamed.

    What a killed process left there is removed first; the lock tells it from the file of one that is still at work.
    """
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            fresh = True
        except FileExistsError:
            try:
                handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            except FileNotFoundError:
                continue  # its owner was quicker
            fresh = False
        try:
            _lock(handle, wait=wait)
            # While this process waited, the file may have been renamed or removed, and another may have its name.
            mine = _is_at(handle, path)
            if mine and not fresh:
                path.unlink()
            if mine and fresh:
                yield handle
                return
        finally:
            if fresh and _is_at(handle, path):
                path.unlink()
            os.close(handle)


def _lock(handle: int, *, wait: bool) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: an open file can be neither renamed nor removed there, which is lock enough
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _behind_links(path: Path) -> Path:
    """Where the content belongs: behind symbolic links; refuses a folder, a pipe or a device."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    except OSError as error:
        raise DriftgateError(
            f"Expected a file to write at {path} but it cannot be looked at: {_reason(error)}; name another place."
        ) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no plain file"
        raise DriftgateError(f"Expected a file to write at {path} but it is {kind}; name another place.")
    return Path(os.path.realpath(path))


def _remove_empty(folders: Sequence[Path]) -> None:
    """Leave no trace of work that wrote nothing."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _flush_names(folder: Path) -> None:
    """Put a folder's names on the disk; the content of a file that nobody finds again is lost all the same."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _reason(error: OSError) -> str:
    return error.strerror or " ".join(str(error).split()) or type(error).__name__
