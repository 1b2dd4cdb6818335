"""The folder of a running service: its state, a lock, and a note of every step, so that a kill can be told apart.

``state.safetensors`` is a saved method like any other; the one before it stays beside it, in case the disk spoils the
newer. ``service.json`` holds what the service itself counts. ``steps`` is written over after every step, without
waiting for the disk: it outlives the process, if not always the machine.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from driftgate.files import write_text
from driftgate.methods import Method, load_method
from driftgate.models.spec import CUSTOM_BACKBONE
from driftgate.types import DriftgateError

STATE, BEFORE, NEW = "state.safetensors", "state.before.safetensors", "state.new.safetensors"
SERVICE, STEPS, LOCK = "service.json", "steps", "lock"

NOT_WRITTEN = (OSError, DriftgateError)
"""What a full disk raises: the system's own, or that of ``driftgate.files``, with the system's as its cause."""

logger = logging.getLogger(__name__)


class StateFolder:
    """Durable state of one service; a second service on the same folder is refused.

    Attributes:
        life: counts the starts of the service on this folder and its ways back, so that a version (life, steps) never
            means two states.
        lost: steps that were done but not saved when the last service ended.
        problems: what was found unreadable at the start, as sentences.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / LOCK, thread_local=False)  # taken by one thread, given back by another
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise DriftgateError(
                f"Expected a state folder of its own but another service uses {self.path}; stop it or name another."
            ) from error
        self.problems: list[str] = []
        self.lost = 0
        self.counts: dict[str, Any] = self._read_counts()
        self.life = int(self.counts.get("life", 0))
        self._steps = os.open(self.path / STEPS, os.O_RDWR | os.O_CREAT, 0o644)

    @property
    def snapshots(self) -> Path:
        """Where the guard keeps its ring."""
        return self.path / "snapshots"

    def start(self, fresh: Method) -> Method:
        """The method as it was saved last, or ``fresh`` where nothing was; refuses the state of another method."""
        noted = self._noted_steps()
        method = self._saved(fresh) or fresh
        self.lost = max(noted - method.steps, 0)
        self.new_life()
        self.note(method.steps)
        return method

    def new_life(self) -> None:
        """From now on versions are of another line than all before."""
        self.life += 1
        self.save_counts()

    def note(self, steps: int) -> None:
        """Remember that so many steps were done, saved or not."""
        os.pwrite(self._steps, f"{steps:<20d}\n".encode(), 0)

    def save(self, method: Method) -> None:
        """Write the state to the disk; a kill at any moment leaves this one or the one before."""
        new, state = self.path / NEW, self.path / STATE
        method.save(new)
        if state.exists():
            os.replace(state, self.path / BEFORE)
        os.replace(new, state)
        self.save_counts()

    def save_counts(self) -> None:
        write_text(self.path / SERVICE, json.dumps({**self.counts, "life": self.life}) + "\n")

    def put_aside(self, path: Path, error: Exception) -> None:
        """Keep what cannot be read under another name, and remember to tell."""
        aside = path.with_name(f"{path.name}.unreadable-{self.life}")
        os.replace(path, aside)
        self.problems.append(f"{path.name} could not be read and is now {aside.name}: {error}")
        logger.error("%s", self.problems[-1])

    def close(self) -> None:
        os.close(self._steps)
        self._lock.release()

    def _saved(self, fresh: Method) -> Method | None:
        for name in (STATE, BEFORE):
            path = self.path / name
            if not path.exists():
                continue
            try:
                # A network of the user's own cannot be built from a file, only filled.
                own = fresh.model.clone() if fresh.model.spec.backbone == CUSTOM_BACKBONE else None
                method = load_method(path, model=own)
            except (DriftgateError, OSError) as error:
                self.put_aside(path, error)
                continue
            _check_same(fresh, method, self.path)
            return method
        return None

    def _noted_steps(self) -> int:
        noted = os.pread(self._steps, 32, 0).strip()
        return int(noted) if noted.isdigit() else 0

    def _read_counts(self) -> dict[str, Any]:
        path = self.path / SERVICE
        if not path.exists():
            return {}
        try:
            counts = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(counts, dict) and isinstance(counts.get("life"), int):
                return counts
            raise ValueError("it holds no counts")
        except (OSError, ValueError) as error:
            self.problems.append(f"{SERVICE} could not be read, counting starts anew: {error}")
            logger.error("%s", self.problems[-1])
            # A life no earlier service can have reached, for its number is not known any more.
            return {"life": 1_000_000}


def _check_same(fresh: Method, saved: Method, path: Path) -> None:
    """Refuse to go on with a state that other arguments made."""
    pairs = {
        "method": (fresh.name, saved.name),
        "settings": (fresh.settings, saved.settings),
        "model": (fresh.model.spec, saved.model.spec),
    }
    for what, (asked, found) in pairs.items():
        if asked != found:
            raise DriftgateError(
                f"Expected the {what} that {path} was made with, {found}, but got {asked}; name another state folder, "
                "or the same arguments as before."
            )


def reason_of(error: Exception) -> str:
    """What the system says of a file that could not be written."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    return str(getattr(cause, "strerror", None) or cause)
