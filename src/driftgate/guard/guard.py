"""The guard around a method: it watches, takes snapshots, and on alarm stops the learning and goes back.

    guard = Guard(driftgate.create("gmm", model), "guard/")
    for batch in loader:
        prediction = guard.step(batch)        # as method.step, but it learns only while all is well
    guard.health(), guard.events, guard.snapshots(), guard.rollback(3)

Labels are never needed: what is watched are the answers, the frozen source network's answers to a sample of the same
traffic, and the weights. docs/guard.md has the figures.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from driftgate.guard.evidence import SignalHealth
from driftgate.guard.snapshots import Snapshot, SnapshotRing
from driftgate.methods.base import Method
from driftgate.types import DivergedError, Prediction

logger = logging.getLogger(__name__)

Mode = Literal["learning", "slow", "stopped", "frozen"]
"""``slow`` for a while after an alarm, ``stopped`` by an alarm, ``frozen`` by the user."""

EventKind = Literal["alarm", "rollback", "slow", "learning", "freeze", "thaw", "snapshot", "failure"]

MOST_EVENTS = 10_000
"""Older ones are forgotten: a guard lives for weeks."""


class GuardSettings(BaseModel):
    """Settings of the guard. A look is what it judges at once: a batch, or as many small ones as are enough.

    Attributes:
        look_samples: samples that make a look.
        source_samples: so many of them are also answered by the network as it came; 0 for none.
        snapshot_every: looks between two snapshots.
        keep: snapshots in the ring, beside the start.
        warmup: looks that nothing is remembered of, while the method finds its feet.
        past: looks the calm past is made of.
        lag: the newest looks, which are no past yet: an episode must not be taken for normal while it begins.
        false_alarm: chance of an alarm at a look where nothing has changed.
        settle: calm looks in a row after which a stopped method learns again.
        patience: looks after which it learns again in any case: what lasts so long is the stream.
        slow_rate, slow_looks: it then learns at so much of its rate for so many looks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    look_samples: int = Field(default=64, ge=1)
    source_samples: int = Field(default=16, ge=0)
    snapshot_every: int = Field(default=20, ge=1)
    keep: int = Field(default=8, ge=1)
    warmup: int = Field(default=20, ge=0)
    past: int = Field(default=100, ge=20)
    lag: int = Field(default=10, ge=0)
    false_alarm: float = Field(default=1 / 20_000, gt=0.0, lt=1.0)
    settle: int = Field(default=10, ge=1)
    patience: int = Field(default=500, ge=1)
    slow_rate: float = Field(default=0.1, gt=0.0, le=1.0)
    slow_looks: int = Field(default=50, ge=0)


@dataclass(frozen=True)
class Event:
    """Something the guard did, and why.

    Attributes:
        kind: what happened.
        reason: a sentence for a person.
        steps, look: of the method and of the guard at that time.
        signal: what rang, for an alarm.
        snapshot: the one that was taken or gone back to.
        created: seconds since 1970 by the machine's clock.
    """

    kind: EventKind
    reason: str
    steps: int
    look: int
    signal: str | None = None
    snapshot: int | None = None
    created: float = 0.0


@dataclass(frozen=True)
class Health:
    """How the method is.

    Attributes:
        mode: whether it learns.
        steps, look: of the method and of the guard.
        alarms: so far.
        signals: by name.
    """

    mode: Mode
    steps: int
    look: int
    alarms: int
    signals: dict[str, SignalHealth]


class Guard:
    """A method under guard; used like the method itself, from any number of threads.

    Args:
        method: is adapted in place, and must be used through the guard alone from now on.
        folder: for the start and the ring of snapshots; taken over if it holds those of an equal method.
        settings: or keywords of ``GuardSettings``.
        on_event: called with every event, in the thread that caused it, while the guard is locked: be brief.
    """

    def __init__(
        self,
        method: Method,
        folder: str | Path,
        settings: GuardSettings | None = None,
        *,
        on_event: Callable[[Event], None] | None = None,
        **keywords: Any,
    ) -> None:
        self.method = method
        self.settings = settings or GuardSettings(**keywords)
        self.on_event = on_event
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._lock = threading.RLock()
        self._ring = SnapshotRing(method, folder, self.settings.keep)
        self._mode: Mode = "learning"
        self._look = 0
        self._alarms = 0

    def step(self, batch: Any, *, on_prediction: Callable[[Prediction], None] | None = None) -> Prediction:
        """Predict the batch and, while all is well, learn from it. Never raises for a network that diverged: it goes
        back instead. A batch that is refused changes nothing, as ever. ``on_prediction`` as for a method."""
        told: list[Prediction] = []

        def tell(prediction: Prediction) -> None:
            if not told and on_prediction is not None:
                on_prediction(prediction)
            told.append(prediction)

        with self._lock:
            if self._mode not in ("stopped", "frozen"):
                try:
                    return self.method.step(batch, on_prediction=tell)
                except DivergedError as error:
                    self._alarm("finite", str(error))
            prediction = told[0] if told else self.method.predict(batch)
            tell(prediction)
            return prediction

    def predict(self, batch: Any) -> Prediction:
        """The same answer without learning and without being watched: changes nothing."""
        with self._lock:
            return self.method.predict(batch)

    def freeze(self, reason: str = "asked for") -> None:
        """Stop learning until ``thaw``; predictions go on."""
        with self._lock:
            if self._mode != "frozen":
                self._mode = "frozen"
                self._tell("freeze", reason)

    def thaw(self, reason: str = "asked for") -> None:
        """Learn again at the full rate, whoever stopped it."""
        with self._lock:
            if self._mode != "learning":
                self._mode = "learning"
                self._tell("thaw", reason)

    def snapshot(self, reason: str = "asked for") -> Snapshot:
        """Write a snapshot now; the oldest leaves the ring if it is full."""
        with self._lock:
            taken = self._ring.take(self._look, reason, {})
            self._tell("snapshot", reason, snapshot=taken.id)
            return taken

    def snapshots(self) -> list[Snapshot]:
        """The start (id 0) and the snapshots in the ring, oldest first."""
        with self._lock:
            return list(self._ring.snapshots)

    def rollback(self, snapshot: int, reason: str = "asked for") -> Snapshot:
        """Put the method back to a snapshot, 0 for the start; whether it learns stays as it is."""
        with self._lock:
            self._ring.put_back(snapshot)
            self._tell("rollback", reason, snapshot=snapshot)
            return next(found for found in self._ring.snapshots if found.id == snapshot)

    def health(self) -> Health:
        """How the method is, as of the last look."""
        with self._lock:
            return Health(self._mode, self.method.steps, self._look, self._alarms, {})

    @property
    def events(self) -> list[Event]:
        """What happened so far, oldest first."""
        with self._lock:
            return list(self._events)

    @property
    def mode(self) -> Mode:
        """Whether the method learns."""
        return self._mode

    def _alarm(self, signal: str, reason: str) -> None:
        self._alarms += 1
        self._tell("alarm", reason, signal=signal)
        self._mode = "stopped"
        self.rollback(self._ring.snapshots[-1].id, f"after the alarm of {signal}")

    def _tell(self, kind: EventKind, reason: str, *, signal: str | None = None, snapshot: int | None = None) -> None:
        event = Event(kind, reason, self.method.steps, self._look, signal, snapshot, time.time())
        self._events.append(event)
        logger.log(logging.WARNING if kind == "alarm" else logging.INFO, "guard: %s: %s", kind, reason)
        if self.on_event is not None:
            self.on_event(event)
