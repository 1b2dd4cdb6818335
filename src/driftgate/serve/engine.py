"""The engine: one thread that gathers samples into batches, predicts, answers, and only then learns.

All that changes the method happens in this thread, one thing after another: batches, freezing, snapshots, ways back.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from driftgate.guard import Event, Guard, GuardSettings, Snapshot
from driftgate.methods import Method
from driftgate.serve.answers import Answer, BatchReport, answers_of, on_cpu
from driftgate.serve.state_folder import NOT_WRITTEN, StateFolder, reason_of
from driftgate.types import DriftgateError, Prediction

logger = logging.getLogger(__name__)
T = TypeVar("T")


class EngineSettings(BaseModel):
    """How requests become batches, and how often the state is saved.

    Attributes:
        batch_size: samples of a batch at most.
        max_delay: seconds the first sample of a batch waits for company.
        queue_size: samples that may wait; more are refused.
        save_every: steps between two saves of the state.
        frozen: whether to start without learning.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_size: int = Field(default=64, ge=1)
    max_delay: float = Field(default=0.02, ge=0.0)
    queue_size: int = Field(default=1024, ge=1)
    save_every: int = Field(default=100, ge=1)
    frozen: bool = False


class QueueFull(DriftgateError):
    """More samples wait than may; try again later."""


class TooBusy(DriftgateError):
    """An answer did not come in time."""


class EngineStopped(DriftgateError):
    """The engine takes no more work."""


@dataclass
class _Request:
    id: str
    name: str
    answers: list[Answer | None]
    future: Future[list[Answer]] = field(default_factory=Future)
    left: int = 0


@dataclass(frozen=True)
class _Sample:
    inputs: Tensor
    request: _Request
    place: int
    arrived: float
    given: Answer | None = None  # by somebody else: it is only learned from


Listener = Callable[[BatchReport], None]


class Engine:
    """A method under guard behind a bounded queue; ``close`` it, or use it as a context.

    Args:
        method: adapted in place, by this engine alone.
        folder: where its state and its snapshots are kept; closed with the engine.
        settings: see ``EngineSettings``.
        guard: see ``GuardSettings``.
        listeners: called in the engine's thread after each batch; one that fails is logged and does no harm.
        on_answers: called in the engine's thread just before answers are handed out.
        on_event: called in the engine's thread with every event of the guard.
        keep_features: whether reports have the features, for those who group samples by likeness.
    """

    def __init__(
        self,
        method: Method,
        folder: StateFolder,
        settings: EngineSettings | None = None,
        guard: GuardSettings | None = None,
        listeners: Sequence[Listener] = (),
        *,
        on_answers: Callable[[Sequence[Answer]], None] = lambda _: None,
        on_event: Callable[[Event], None] | None = None,
        keep_features: bool = False,
    ) -> None:
        self.method, self.folder = method, folder
        self.settings = settings or EngineSettings()
        self.listeners = list(listeners)
        self.failures = 0
        self.save_problem: str | None = None
        self.events: deque[Event] = deque(maxlen=100)
        self._on_answers, self._on_event = on_answers, on_event
        self._went_back = False
        self._guard = self._open_guard(guard)
        if self.settings.frozen:
            self._guard.freeze("started frozen")
        self._refresh()
        self._unsaved = 0
        self._waiting: deque[_Sample] = deque()
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._news = threading.Condition()
        self._closing = False
        self._features: list[Tensor] = []
        if keep_features:
            method.model.head.register_forward_pre_hook(lambda _, inputs: self._features.append(inputs[0].detach()))
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._thread.start()

    def _open_guard(self, settings: GuardSettings | None) -> Guard:
        try:
            return Guard(self.method, self.folder.snapshots, settings, on_event=self._take_event)
        except DriftgateError as error:  # the ring cannot be read: a new one, and the state as it is
            self.folder.put_aside(self.folder.snapshots, error)
            return Guard(self.method, self.folder.snapshots, settings, on_event=self._take_event)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        """``life.steps``: no two states of a folder share it."""
        return f"{self.folder.life}.{self.method.steps}"

    @property
    def queue_length(self) -> int:
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closing

    def submit(self, inputs: Tensor, name: str = "") -> Future[list[Answer]]:
        """Samples (N, ...) as ``model.prepare`` gives them -> their answers, later; all are taken or none.

        ``name`` is what whoever asks calls the request; it goes into the reports.
        """
        request = _Request(secrets.token_hex(8), name, [None] * len(inputs), left=len(inputs))
        if len(inputs) > self.settings.queue_size:
            raise DriftgateError(
                f"Expected at most {self.settings.queue_size} samples at once but got {len(inputs)}; send fewer."
            )
        now = time.monotonic()
        self._enqueue([_Sample(row, request, place, now) for place, row in enumerate(inputs)])
        return request.future

    def learn(self, inputs: Tensor, answers: Sequence[Answer], requests: Sequence[str]) -> None:
        """Samples (N, ...) that were answered elsewhere: learned from like all others, reported with these answers."""
        now = time.monotonic()
        asked = [_Request(answer.id, name, [None], left=1) for answer, name in zip(answers, requests, strict=True)]
        rows = zip(inputs, asked, answers, strict=True)
        self._enqueue([_Sample(row, request, 0, now, answer) for row, request, answer in rows])

    def _enqueue(self, samples: Sequence[_Sample]) -> None:
        with self._news:
            if self._closing:
                raise EngineStopped("Expected a running service but it is stopping; ask again when it is back.")
            if len(self._waiting) + len(samples) > self.settings.queue_size:
                raise QueueFull(
                    f"Expected room for {len(samples)} samples but {len(self._waiting)} of {self.settings.queue_size} "
                    "wait already; ask again in a moment."
                )
            self._waiting.extend(samples)
            self._news.notify()

    def run(self, command: Callable[[], T]) -> Future[T]:
        """Let the engine's thread do something to the method between two batches."""
        future: Future[T] = Future()
        with self._news:
            if self._closing:
                raise EngineStopped("Expected a running service but it is stopping; ask again when it is back.")
            self._commands.append((command, future))
            self._news.notify()
        return future

    def freeze(self, reason: str) -> Future[None]:
        """Go on predicting, stop learning."""
        return self.run(lambda: self._guard.freeze(reason))

    def thaw(self, reason: str) -> Future[None]:
        """Learn again."""
        return self.run(lambda: self._guard.thaw(reason))

    def snapshot(self, reason: str) -> Future[Snapshot]:
        """Keep the state as it is now in the ring."""
        return self.run(lambda: self._guard.snapshot(reason))

    def rollback(self, snapshot: int, reason: str) -> Future[Snapshot]:
        """Put the method back to a snapshot; the state is saved at once, or a kill would bring back what was left."""
        return self.run(lambda: self._guard.rollback(snapshot, reason))

    def close(self) -> None:
        """Answer what waits, save, and end; safe to call twice."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join()

    # What follows runs in the engine's thread.

    def _run(self) -> None:
        while (work := self._next()) is not None:
            if not isinstance(work, list):
                self._carry_out(*work)
                continue
            try:
                self._serve(work)
            except Exception as error:  # nobody may wait for ever, whatever has happened
                self.failures += 1
                logger.exception("a batch of %d could not be answered", len(work))
                _fail(work, error)
        if self._unsaved:
            self._save()
        self.folder.close()

    def _next(self) -> list[_Sample] | tuple[Callable[[], Any], Future[Any]] | None:
        """The next command or batch; None at the end. A batch is due when it is full or its first sample has waited."""
        with self._news:
            while True:
                if self._commands:
                    return self._commands.popleft()
                if not self._waiting:
                    if self._closing:
                        return None
                    self._news.wait()
                    continue
                patience = self._waiting[0].arrived + self.settings.max_delay - time.monotonic()
                if len(self._waiting) >= self.settings.batch_size or patience <= 0 or self._closing:
                    count = min(self.settings.batch_size, len(self._waiting))
                    return [self._waiting.popleft() for _ in range(count)]
                self._news.wait(patience)

    def _serve(self, batch: list[_Sample]) -> None:
        inputs = torch.stack([sample.inputs for sample in batch])
        started, before, steps = time.perf_counter(), self.version, self.method.steps
        answers: list[Answer] = []
        answered_after = [0.0]
        self._features.clear()

        def answer(prediction: Prediction) -> None:
            ids = [f"{sample.request.id}-{sample.place}" for sample in batch]
            learning = self._guard.mode in ("learning", "slow")
            mine = answers_of(prediction, ids, self.method.model.spec.class_names, before, learning)
            self._on_answers([answer for sample, answer in zip(batch, mine, strict=True) if sample.given is None])
            answers.extend(sample.given or answer for sample, answer in zip(batch, mine, strict=True))
            _deliver(batch, answers)
            answered_after[0] = time.perf_counter() - started

        prediction = on_cpu(self._predict_and_learn(inputs, answer))
        if self._went_back:
            self._new_life()
        report = BatchReport(
            inputs=inputs,
            prediction=prediction,
            answers=answers,
            requests=[sample.request.name for sample in batch],
            features=next((found for found in self._features if len(found) == len(batch)), None),
            learned=self.method.steps > steps,
            health=self._guard.health(),
            seconds_to_answer=answered_after[0],
            seconds=time.perf_counter() - started,
            before=before,
            after=self.version,
        )
        self._after(report)
        self._refresh()

    def _carry_out(self, command: Callable[[], Any], future: Future[Any]) -> None:
        if not _wanted(future):
            return
        try:
            result = command()
            if self._went_back:
                self._new_life()
            self._refresh()  # before the answer, so that whoever got it sees what it changed
            future.set_result(result)
        except Exception as error:
            future.set_exception(error)

    def _predict_and_learn(self, inputs: Tensor, answer: Callable[[Prediction], None]) -> Prediction:
        """Answer, then learn; whatever goes wrong in learning, the answer stands and the service goes on predicting."""
        told: list[Prediction] = []

        def tell(prediction: Prediction) -> None:
            told.append(prediction)
            answer(prediction)

        try:
            return self._guard.step(inputs, on_prediction=tell)
        except Exception as error:
            self.failures += 1
            logger.exception("learning failed and is switched off")
            self._guard.freeze(f"learning failed: {type(error).__name__}")
            if not told:
                tell(self.method.predict(inputs))
            return told[0]

    def _after(self, report: BatchReport) -> None:
        """What is done once a batch is over: the note of the step first, then listeners, then the save."""
        if report.learned:
            self._unsaved += 1
            try:
                self.folder.note(self.method.steps)
            except NOT_WRITTEN as error:
                self._complain(error)
        for listener in self.listeners:
            try:
                listener(report)
            except Exception:
                self.failures += 1
                logger.exception("a listener failed")
        if self._unsaved >= self.settings.save_every:
            self._save()

    def _save(self) -> None:
        """Save the state; a full disk is told, tried again after the next interval, and keeps nobody from answering."""
        self._unsaved = 0
        try:
            self.folder.save(self.method)
            self.save_problem = None
        except NOT_WRITTEN as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        self.save_problem = f"the state could not be saved: {reason_of(error)}"
        logger.error("%s", self.save_problem)

    def _take_event(self, event: Event) -> None:
        self.events.append(event)
        self._went_back = self._went_back or event.kind == "rollback"
        try:
            if self._on_event is not None:
                self._on_event(event)
        except Exception:
            self.failures += 1
            logger.exception("a listener failed")

    def _new_life(self) -> None:
        """After a way back: steps are counted from an earlier number, so versions need another line."""
        self._went_back = False
        try:
            self.folder.new_life()
            self.folder.note(self.method.steps)
        except NOT_WRITTEN as error:
            self._complain(error)
        self._save()

    def _refresh(self) -> None:
        """What others may read while the engine's thread is busy."""
        self.health, self.snapshots = self._guard.health(), self._guard.snapshots()


def _deliver(batch: list[_Sample], answers: Sequence[Answer]) -> None:
    for sample, answer in zip(batch, answers, strict=True):
        request = sample.request
        request.answers[sample.place] = answer
        request.left -= 1
        if request.left == 0 and _wanted(request.future):
            request.future.set_result([found for found in request.answers if found is not None])


def _fail(batch: list[_Sample], error: Exception) -> None:
    for request in {id(sample.request): sample.request for sample in batch}.values():
        if _wanted(request.future):
            request.future.set_exception(error)


def _wanted(future: Future[Any]) -> bool:
    """Whether somebody still waits: not if they hung up, or another part of the request has failed."""
    return not future.done() and future.set_running_or_notify_cancel()
