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
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from driftgate.guard.evidence import SequentialTest, SignalHealth
from driftgate.guard.signals import DEEP, DIRECTED, MEANINGS, Looks, StartNetwork, changes
from driftgate.guard.snapshots import Snapshot, SnapshotRing
from driftgate.methods.base import Method
from driftgate.methods.gradient import GradientMethod
from driftgate.types import DivergedError, DriftgateError, Prediction

logger = logging.getLogger(__name__)

Mode = Literal["learning", "slow", "stopped", "frozen"]
"""``slow`` for a while after an alarm, ``stopped`` by an alarm, ``frozen`` by the user."""

EventKind = Literal["alarm", "rollback", "slow", "learning", "freeze", "thaw", "snapshot", "failure"]

ASKED = "asked for"
FINITE = "finite"
"""The alarm of a network that left the numbers; it needs no evidence."""

QUIET, LOUD = 4.0, 6.0
"""Logarithms of evidence: up to which a look is calm, and the most that is kept while nothing is learned, so that it
can fall again soon."""

MOST_EVENTS = 10_000
"""Older ones are forgotten: a guard lives for weeks."""


class GuardSettings(BaseModel):
    """Settings of the guard. A look is what it judges at once: a batch, or as many small ones as are enough.

    Attributes:
        look_samples: samples that make a look.
        source_samples: so many of them are also answered by the network as it came; 0 for none.
        snapshot_every: looks between two snapshots.
        keep: snapshots in the ring, beside the start.
        warmup: looks that nothing is remembered of, while the method finds its feet; what the network as it came says
            is, for it has none to find.
        past: looks the calm past is made of.
        lag: the newest looks, which are no past yet: an episode must not be taken for normal while it begins.
        false_alarm: chance of an alarm at a look where nothing has changed.
        settle: calm looks in a row after which a stopped method learns again.
        patience: looks after which it learns again in any case: what lasts so long is the stream.
        slow_rate, slow_looks: it then learns at so much of its rate for so many looks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    look_samples: int = Field(default=64, ge=1)
    source_samples: int = Field(default=32, ge=0)
    snapshot_every: int = Field(default=20, ge=1)
    keep: int = Field(default=8, ge=1)
    warmup: int = Field(default=20, ge=0)
    past: int = Field(default=100, ge=20)
    lag: int = Field(default=10, ge=0)
    false_alarm: float = Field(default=1 / 20_000, gt=0.0, lt=1.0)
    settle: int = Field(default=5, ge=1)
    patience: int = Field(default=500, ge=1)
    slow_rate: float = Field(default=0.1, gt=0.0, le=1.0)
    slow_looks: int = Field(default=30, ge=0)


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
        chosen = settings or GuardSettings(**keywords)
        self.method, self.settings, self.on_event = method, chosen, on_event
        self._lock = threading.RLock()
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._ring = SnapshotRing(method, folder, chosen.keep)
        start = StartNetwork(method.model, self._ring.start_model())
        self._looks = Looks(
            method,
            start,
            look_samples=chosen.look_samples,
            source_samples=chosen.source_samples,
            reference_looks=chosen.warmup,
        )
        self._rates = [group["lr"] for group in _groups(method)]
        self._tests: dict[str, SequentialTest] = {}
        self._mode: Mode = "learning"
        self._look = self._last_snapshot = self._ring.snapshots[-1].look
        self._first = self._look + chosen.warmup
        self._mode_since = self._look
        self._calm_looks = 0
        self._alarms = 0

    def step(
        self, batch: Any, *, on_prediction: Callable[[Prediction], None] | None = None, learn: bool = True
    ) -> Prediction:
        """Predict the batch and, while all is well, learn from it; ``on_prediction`` and ``learn`` as for a method.

        A batch that the method refuses raises and changes nothing, as ever. A network that diverged does not raise: the
        guard goes back and answers from there.
        """
        told: list[Prediction] = []

        def tell(prediction: Prediction) -> None:
            if not told and on_prediction is not None:
                on_prediction(prediction)
            told.append(prediction)

        with self._lock:
            taught = None
            if self._mode in ("stopped", "frozen"):
                prediction = self.method.predict(batch)
            else:
                before = changes(self.method)
                try:
                    prediction = self.method.step(batch, on_prediction=tell, learn=learn)
                except DivergedError as error:
                    self._alarm(FINITE, str(error), self._look)
                    prediction = told[0] if told else self.method.predict(batch)
                    tell(prediction)
                    return prediction
                taught = changes(self.method) > before
            tell(prediction)
            if prediction.losses and not bool(torch.stack(list(prediction.losses.values())).isfinite().all()):
                self._alarm(FINITE, f"a loss out of {', '.join(prediction.losses)} is no longer a number", self._look)
                return prediction
            signals = self._looks.add(batch, prediction, taught)
            if signals is not None:
                self._judge(signals)
            return prediction

    def predict(self, batch: Any) -> Prediction:
        """The same answer without learning and without being looked at: changes nothing."""
        with self._lock:
            return self.method.predict(batch)

    def freeze(self, reason: str = ASKED) -> None:
        """Stop learning until ``thaw``; predictions go on, and the guard goes on looking."""
        with self._lock:
            if self._mode != "frozen":
                self._enter("frozen")
                self._tell("freeze", reason)

    def thaw(self, reason: str = ASKED) -> None:
        """Learn again at the full rate, whoever stopped it."""
        with self._lock:
            if self._mode != "learning":
                self._enter("learning")
                self._tell("thaw", reason)

    def snapshot(self, reason: str = ASKED) -> Snapshot:
        """Write a snapshot now; the oldest leaves the ring if it is full."""
        with self._lock:
            tests = {name: test.state_dict() for name, test in self._tests.items()}
            taken = self._ring.take(self._look, reason, self._looks.state_dict(), {"tests": tests})
            self._last_snapshot = self._look
            self._tell("snapshot", reason, snapshot=taken.id)
            return taken

    def snapshots(self) -> list[Snapshot]:
        """The start (id 0) and the snapshots in the ring, oldest first."""
        with self._lock:
            return list(self._ring.snapshots)

    def rollback(self, snapshot: int, reason: str = ASKED) -> Snapshot:
        """Put the method back to a snapshot, 0 for the start, with what was its calm past; ``mode`` stays as it is."""
        with self._lock:
            tensors, extra = self._put_back(snapshot, reason)
            if snapshot > 0:
                self._looks.load_state_dict(tensors)
            self._tests = {name: self._new_test(name) for name in extra.get("tests", {})}
            for name, test in self._tests.items():
                test.load_state_dict(extra["tests"][name])
            self._first = self._look + (0 if self._tests.keys() - DIRECTED else self.settings.warmup)
            return next(found for found in self._ring.snapshots if found.id == snapshot)

    def health(self) -> Health:
        """How the method is, as of the last look."""
        with self._lock:
            limit = self._limit()
            signals = {
                name: SignalHealth(test.value, test.level, test.spread, _share(test.strongest.log_evidence, limit))
                for name, test in self._tests.items()
            }
            return Health(self._mode, self.method.steps, self._look, self._alarms, signals)

    @property
    def events(self) -> list[Event]:
        """What happened so far, oldest first."""
        with self._lock:
            return list(self._events)

    @property
    def mode(self) -> Mode:
        """Whether the method learns."""
        return self._mode

    def record(self) -> dict[str, Any]:
        """Settings and decisions for the record of a run, as JSON knows them."""
        with self._lock:
            return {
                "settings": self.settings.model_dump(mode="json"),
                "looks": self._look,
                "alarms": self._alarms,
                "mode": self._mode,
                "events": [asdict(event) for event in self._events],
            }

    def _judge(self, signals: dict[str, float]) -> None:
        """One look: bet on every signal, then ring, wait, or go on."""
        self._look += 1
        broken = next((name for name, value in signals.items() if not math.isfinite(value)), None)
        learns = self._mode in ("learning", "slow")
        if broken is not None:
            if learns:
                self._alarm(FINITE, f"{broken} is no longer a number", self._look - 1)
            return
        limit = self._limit()
        for name, value in signals.items():
            if self._look <= self._first and name not in DIRECTED:
                continue
            test = self._tests.setdefault(name, self._new_test(name))
            test.look(self._look, value, most=limit if learns else LOUD, follow=learns)
        if not self._tests:
            return
        name, test = max(self._tests.items(), key=lambda item: item[1].strongest.log_evidence)
        worst = test.strongest
        if self._mode == "stopped":
            self._wait()
        elif learns and worst.log_evidence >= limit:
            reason = f"{MEANINGS[name]}: {test.value:.4g} where {test.level:.4g} +- {test.spread:.2g} was usual"
            self._alarm(name, reason, worst.begun)
        elif learns:
            self._go_on(worst.log_evidence)

    def _go_on(self, evidence: float) -> None:
        if self._mode == "slow" and self._look - self._mode_since >= self.settings.slow_looks:
            self._enter("learning")
            self._tell("learning", "it was calm at the low rate")
        if self._look - self._last_snapshot >= self.settings.snapshot_every and evidence <= self._limit() / 2.0:
            try:
                self.snapshot("all is well")
            except OSError as error:  # a full disk must not stop the answers
                self._last_snapshot = self._look
                self._tell("failure", f"no snapshot could be written: {error}")

    def _wait(self) -> None:
        """Stopped: learn again once the stream looks as before, or has looked otherwise for so long that it is it.

        The network as it came is asked: the method stands where it stood at the snapshot, and its own signals beside
        what was usual since.
        """
        asked = [test for name, test in self._tests.items() if name in DIRECTED] or list(self._tests.values())
        calm = all(test.strongest.log_evidence <= QUIET for test in asked)
        self._calm_looks = self._calm_looks + 1 if calm else 0
        if self._calm_looks >= self.settings.settle:
            self._enter("slow")
            self._tell("slow", f"the last {self.settings.settle} looks were like those before the alarm")
        elif self._look - self._mode_since >= self.settings.patience:
            self._tests, self._first = {}, self._look + self.settings.warmup
            self._enter("slow")
            self._tell("slow", f"after {self.settings.patience} unusual looks they are taken for the stream")

    def _alarm(self, signal: str, reason: str, begun: int) -> None:
        """Stop learning and go back to the last snapshot from before look ``begun``, where the evidence begins."""
        self._alarms += 1
        self._enter("stopped")
        self._tell("alarm", reason, signal=signal)
        for test in self._tests.values():
            test.rewind(begun)
        healthy = [snapshot.id for snapshot in self._ring.snapshots if snapshot.look < begun or snapshot.id == 0]
        for snapshot in reversed(healthy):
            try:
                self._put_back(snapshot, f"the last before look {begun}, where {signal} began to leave its past")
                return
            except (DriftgateError, OSError) as error:
                self._tell("failure", f"snapshot {snapshot} cannot be read: {error}")

    def _put_back(self, snapshot: int, reason: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        kept = self._ring.put_back(snapshot)
        self._looks.forget()
        self._tell("rollback", reason, snapshot=snapshot)
        return kept

    def _new_test(self, name: str) -> SequentialTest:
        lag = 1 if name in DEEP else self.settings.lag
        return SequentialTest(self.settings.past, lag, directed=name in DIRECTED)

    def _limit(self) -> float:
        """Logarithm of the evidence that rings: each stake has its part of the false alarms."""
        return math.log((len(MEANINGS) + len(DIRECTED)) / self.settings.false_alarm)

    def _enter(self, mode: Mode) -> None:
        self._mode, self._mode_since, self._calm_looks = mode, self._look, 0
        for group, rate in zip(_groups(self.method), self._rates, strict=True):
            group["lr"] = rate * (self.settings.slow_rate if mode == "slow" else 1.0)

    def _tell(self, kind: EventKind, reason: str, *, signal: str | None = None, snapshot: int | None = None) -> None:
        event = Event(kind, reason, self.method.steps, self._look, signal, snapshot, time.time())
        self._events.append(event)
        level = logging.WARNING if kind in ("alarm", "failure") else logging.INFO
        logger.log(level, "%s at step %d: %s", kind, event.steps, reason)
        if self.on_event is not None:
            self.on_event(event)


def _share(evidence: float, limit: float) -> float:
    return min(max(evidence / limit, 0.0), 1.0)


def _groups(method: Method) -> list[dict[str, Any]]:
    """The groups of the method's optimiser, whose rates can be changed; none where it has no optimiser."""
    return method.optimizer.param_groups if isinstance(method, GradientMethod) else []
