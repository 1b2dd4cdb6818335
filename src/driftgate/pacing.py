"""A stream that does not wait: predictions come first, and what there is no time for is not learned.

A thread takes the batches as they come and notes when. While the method learns from one, others may come; so a batch is
learned from only where none waits and the next, if it keeps the distance of those before it, will still have its
prediction within ``max_delay``. What waits is bounded by what can be predicted in that time; beyond, the stream waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

from driftgate.types import DriftgateError, Prediction

TRIALS = 3
"""Batches learned from whatever they take, before the rest of the stream is read: they tell what a step costs."""

RECENT = 16
"""Times that an estimate looks back on."""


class Learner(Protocol):
    """What is asked for an answer: a method, or what stands around it."""

    def step(
        self, batch: Any, *, on_prediction: Callable[[Prediction], None] | None = None, learn: bool = True
    ) -> Prediction:
        """Predict the batch, then perhaps learn from it."""
        ...


class PacedStep(NamedTuple):
    """A batch, what was said of it, the seconds of the step, and those from its coming until its prediction stood."""

    batch: Any
    prediction: Prediction
    seconds: float
    delay: float


class Pacing:
    """Who is learned from, and what came of it: counts and estimates, in memory that does not grow.

    Args:
        max_delay: seconds within which every prediction shall stand, from when its batch came.
    """

    def __init__(self, max_delay: float) -> None:
        if not (max_delay > 0 and math.isfinite(max_delay)):
            raise DriftgateError(
                f"Expected max_delay as a positive number of seconds but got {max_delay}; leave it out."
            )
        self.max_delay = max_delay
        self.learned = self.not_learned = self.late = 0
        self.largest_delay = 0.0
        self._learning, self._predicting, self._gaps = Recent(), Recent(), Recent()

    def steps(self, learner: Learner, batches: Iterator[Any]) -> Iterator[PacedStep]:
        """The steps over ``batches``, in their order; nothing of them is kept."""
        for batch in islice(batches, TRIALS):
            yield from self._step(learner, batch, time.monotonic(), learn=True)
        with Arrivals(batches, self._room) as arrivals:
            last = math.nan
            for came, batch in arrivals:
                if came > last:  # False for the first
                    self._gaps.add(came - last)
                last = came
                yield from self._step(learner, batch, came, learn=not arrivals.waiting and self._has_time(came))

    def _step(self, learner: Learner, batch: Any, came: float, *, learn: bool) -> Iterator[PacedStep]:
        told: list[float] = []
        started = time.monotonic()
        prediction = learner.step(batch, on_prediction=lambda _: told.append(time.monotonic()), learn=learn)
        ended = time.monotonic()
        stood = told[0] if told else ended
        self.learned, self.not_learned = self.learned + learn, self.not_learned + (not learn)
        self.largest_delay = max(self.largest_delay, stood - came)
        self.late += stood - came > self.max_delay
        yield PacedStep(batch, prediction, ended - started, stood - came)
        # What the caller does with a step takes time too, and the next batch waits for it.
        (self._learning if learn else self._predicting).add(time.monotonic() - started)
        if learn and not self._predicting.values:
            self._predicting.first = stood - started

    def _has_time(self, came: float) -> bool:
        """Whether the batch after the one that ``came`` can wait until this one was learned from."""
        until_next = max(0.0, came + self._gaps.least() - time.monotonic())
        wait = max(0.0, self._learning.most() - until_next)
        return wait + self._predicting.most() <= self.max_delay

    def _room(self) -> int:
        """Batches that may wait: as many as can be predicted in time."""
        return max(1, int(self.max_delay / max(self._predicting.most(), 1e-6)))

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return {
            "max_delay": self.max_delay,
            "learned": self.learned,
            "not_learned": self.not_learned,
            "late": self.late,
            "largest_delay": self.largest_delay,
        }


class Recent:
    """The last few times of something; one stray value among them counts for nothing."""

    def __init__(self) -> None:
        self.values: deque[float] = deque(maxlen=RECENT)
        self.first = 0.0

    def add(self, value: float) -> None:
        self.values.append(value)

    def most(self) -> float:
        """The second largest of them; ``first`` where there are none."""
        return sorted(self.values)[-2:][0] if self.values else self.first

    def least(self) -> float:
        """The smallest."""
        return min(self.values, default=0.0)


class Arrivals:
    """Batches with the time at which they came, read by a thread of its own; at most ``room()`` of them wait."""

    def __init__(self, batches: Iterator[Any], room: Callable[[], int]) -> None:
        self.batches, self.room = batches, room
        self._queue: deque[tuple[float, Any]] = deque()
        self._changed = threading.Condition()
        self._ended, self._closed = False, False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="driftgate-arrivals", daemon=True)

    def __enter__(self) -> Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The thread may be waiting for a batch that never comes; it ends with it.
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Batches that have come and were not taken yet."""
        return len(self._queue)

    def __iter__(self) -> Iterator[tuple[float, Any]]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._ended)
                if not self._queue:
                    break
                found = self._queue.popleft()
                self._changed.notify_all()
            yield found
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        try:
            for batch in self.batches:
                came = time.monotonic()
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._queue) < self.room())
                    if self._closed:
                        return
                    self._queue.append((came, batch))
                    self._changed.notify_all()
        except BaseException as error:  # raised where the batches are asked for
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
