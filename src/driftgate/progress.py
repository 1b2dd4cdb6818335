"""A run on the disk, so that it can go on: the method as it stands now, and the log of all batches, which only grows.

The method's file is written anew each time and stays as large as it is. The log is appended to, in blocks of the
batches since the last time: a length, a checksum, and tensors in safetensors. The method's file says how much of
the log belongs to it; what a kill left behind that was never seen by anybody, and is cut off.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from driftgate.checkpoint import Pace, foreign_content, read_checkpoint, under_prefix, with_prefix, write_checkpoint
from driftgate.files import failed_write, only_writer
from driftgate.log import StreamLog
from driftgate.methods.base import Method
from driftgate.methods.persistence import with_names_of_today
from driftgate.types import DriftgateError, Stream

KIND = "run-in-progress"
HEAD = struct.Struct("<QI")
"""Before each block: how many bytes it has, and their CRC-32."""


class Progress:
    """The two files of a run, ``path`` and ``path``.log, for as long as it goes on; None for a run without any.

    Inside ``with``, nobody else may write them, and Ctrl-C and SIGTERM wait for the end of a batch.

    Args:
        path: of the method's file.
        identity: what makes another run the same run.
        every: seconds between two saves; 0 for one after each batch.
    """

    def __init__(self, path: str | Path | None, identity: dict[str, Any], every: float) -> None:
        self.path = None if path is None else Path(path)
        self.log_path = Path() if path is None else _log_path(path)
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))  # as it comes back from the file
        self._pace = Pace(every)
        self._held, self._stopped = ExitStack(), threading.Event()
        self._batches = self._size = 0

    def __enter__(self) -> Progress:
        self._stopped = self._held.enter_context(saving_to(self.path))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def after_batch(self, method: Method, stream: Stream, log: StreamLog) -> None:
        """Save if it is time to; where a signal has asked for the end, save and end with ``KeyboardInterrupt``."""
        if self.path is None:
            return
        stopped = self._stopped.is_set()
        if stopped or self._pace.due():
            self.save(method, stream, log)
        if stopped:
            raise KeyboardInterrupt

    def save(self, method: Method, stream: Stream, log: StreamLog) -> None:
        """Put everything on the disk: the log first, so that the method's file never tells of more than there is."""
        if self.path is None:
            return
        self._append(log)
        facts = {"skipped": list(stream.skipped), "log": {"batches": self._batches, "bytes": self._size}}
        write_checkpoint(self.path, KIND, with_prefix("method", method.state_dict()), {**self.identity, **facts})

    def resume(self, method: Method, stream: Stream) -> StreamLog:
        """Put back what was saved, if anything was; the log so far."""
        if self.path is None or not self.path.exists():
            return StreamLog()
        tensors, info = read_checkpoint(self.path, KIND)
        for name, mine in self.identity.items():
            if info.get(name) != mine:
                raise DriftgateError(
                    f"Expected to resume a run with {name} {mine} but {self.path} holds one with {info.get(name)}; "
                    "remove the file to start anew."
                )
        with foreign_content(self.path):
            if "log" in info:
                log = self._read(int(info["log"]["batches"]), int(info["log"]["bytes"]))
            else:  # from before the log had a file of its own
                log = StreamLog.from_tensors(under_prefix("log", tensors))
            method.load_state_dict(with_names_of_today(under_prefix("method", tensors)))
            stream.restore_skipped(info["skipped"])
        return log

    def _append(self, log: StreamLog) -> None:
        if len(log) == self._batches:
            return
        block = save({name: tensor.contiguous() for name, tensor in log.tensors(first=self._batches).items()})
        with failed_write(self.log_path), open(self.log_path, "r+b" if self._size else "wb") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.write(HEAD.pack(len(block), zlib.crc32(block)) + block)
            file.flush()
            os.fsync(file.fileno())
        self._batches, self._size = len(log), self._size + HEAD.size + len(block)

    def _read(self, batches: int, size: int) -> StreamLog:
        log, read = StreamLog(), 0
        with open(self.log_path, "rb") as file:
            while read < size:
                length, checksum = HEAD.unpack(file.read(HEAD.size))
                block = file.read(min(length, size))
                if zlib.crc32(block) != checksum:
                    break
                log.extend(StreamLog.from_tensors(load(block)))
                read += HEAD.size + length
        if (len(log), read) != (batches, size):
            raise DriftgateError(
                f"Expected {batches} batches in {self.log_path} but {len(log)} can be read; the file is damaged: take "
                "a copy of it, or remove it and the file beside it to start anew."
            )
        self._batches, self._size = batches, size
        return log


def remove_progress(path: str | Path) -> None:
    """Remove the files of a run whose result is safe."""
    Path(path).unlink(missing_ok=True)
    _log_path(path).unlink(missing_ok=True)


def _log_path(path: str | Path) -> Path:
    return Path(f"{path}.log")


@contextmanager
def saving_to(path: str | Path | None) -> Iterator[threading.Event]:
    """For a loop that saves to ``path``, if any: nobody else may, and a signal, which sets the event, waits for it."""
    with only_writer(path), ended_by_signals() if path is not None else nullcontext(threading.Event()) as stopped:
        yield stopped


@contextmanager
def ended_by_signals() -> Iterator[threading.Event]:
    """Set by Ctrl-C or SIGTERM, for a loop that finishes the step at hand and saves; a second one breaks off.

    Only the main thread may say what a signal does, and only where nobody else has said so: elsewhere it is never set.
    """
    stopped = threading.Event()
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    mine = {number: handler for number, handler in usual.items() if signal.getsignal(number) == handler}
    if threading.current_thread() is not threading.main_thread():
        mine = {}

    def stop(*_: object) -> None:
        stopped.set()
        for number, handler in mine.items():
            signal.signal(number, handler)

    for number in mine:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in mine.items():
            signal.signal(number, handler)
