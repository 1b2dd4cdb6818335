"""The learner of the app on Ray Serve: the service of one machine, fed by predictors, that publishes its state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import ray
import torch
from numpy.typing import NDArray
from starlette.types import Message, Scope

from driftgate.methods import Method
from driftgate.methods.gradient import OPTIMIZER
from driftgate.serve.answers import Answer
from driftgate.serve.app import create_app
from driftgate.serve.engine import QueueFull
from driftgate.serve.service import Service, ServiceSettings

LOOK_SECONDS, POLL_SECONDS = 0.05, 2.0
"""Between two looks at the version, and until a predictor that waits for a newer one has to ask again."""

Fresh = Callable[[], Method]
State = dict[str, NDArray[Any]]
Key = tuple[str, bool]


@dataclass(frozen=True)
class Published:
    """A state in the object store: its version, whether its learner learns, and where it is."""

    version: str
    life: int
    steps: int
    learning: bool
    state: ray.ObjectRef[State]

    @property
    def key(self) -> Key:
        """What tells it from another for a predictor."""
        return self.version, self.learning


class Learner:
    """The service of one machine, fed by predictors; one replica, whose state folder outlives it."""

    def __init__(self, fresh: Fresh, folder: str, settings: ServiceSettings, publish_every: int) -> None:
        self.service = Service(fresh(), folder, settings)
        self.app = create_app(self.service)
        self.publish_every = publish_every
        self._published: Published | None = None
        self._publishing = asyncio.Lock()

    async def newer(self, known: Key) -> Published | None:
        """The published state, as soon as it is another than ``known``; None if it was not for a while."""
        end = time.monotonic() + POLL_SECONDS
        while time.monotonic() < end:
            async with self._publishing:
                found = await self._publish_if_due()
            if found.key != known:
                return found
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def learn(self, inputs: NDArray[Any], answers: list[Answer], requests: list[str]) -> None:
        """Learn from a batch that a predictor has answered; dropped where more wait than may."""
        self.service.feedback.remember(answers)
        try:
            self.service.engine.learn(torch.tensor(inputs), answers, requests)
        except QueueFull:
            version = self.service.version
            self.service.audit.answers(answers, requests, before=version, after=version, learned=False)

    async def http(self, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """Let the app answer a request that a predictor passed on, message by message."""
        sent: asyncio.Queue[Message | None] = asyncio.Queue(maxsize=16)
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if not parts:
                await asyncio.Event().wait()  # who hangs up ends this whole call
            return parts.pop()

        async def answer() -> None:
            try:
                await self.app(scope, receive, sent.put)
            finally:
                await sent.put(None)

        task = asyncio.create_task(answer())
        try:
            while (message := await sent.get()) is not None:
                yield message
            await task
        finally:
            task.cancel()

    async def start(self) -> dict[str, Any]:
        """What whoever started it should know."""
        folder = self.service.engine.folder
        return {"version": self.service.version, "lost": folder.lost, "problems": folder.problems}

    def check_health(self) -> None:
        """Asked by Ray Serve, which replaces a learner that raises."""
        if not self.service.alive:
            raise RuntimeError("the learner's thread has ended")

    def __del__(self) -> None:
        """Called by Ray Serve at an end in good order: the state is saved."""
        if hasattr(self, "service"):
            self.service.close()

    async def _publish_if_due(self) -> Published:
        engine, last = self.service.engine, self._published
        learning = engine.health.mode in ("learning", "slow")
        if last is not None and (last.life, last.learning) == (engine.folder.life, learning):
            steps = engine.method.steps - last.steps
            if steps < self.publish_every:
                return last
        version, life, steps, state = await asyncio.wrap_future(engine.run(self._copy))
        reference = await anyio.to_thread.run_sync(ray.put, state)
        self._published = Published(version, life, steps, learning, reference)
        return self._published

    def _copy(self) -> tuple[str, int, int, State]:
        """The state between two batches, in the engine's thread; predictors do without the optimiser."""
        engine = self.service.engine
        state = {
            name: tensor.detach().cpu().numpy().copy()
            for name, tensor in engine.method.state_dict().items()
            if not name.startswith(f"{OPTIMIZER}.")
        }
        return engine.version, engine.folder.life, engine.method.steps, state
