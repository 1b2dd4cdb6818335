"""The parts of a service, put together: engine, listeners, limits."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from driftgate.guard import Event, GuardSettings
from driftgate.methods import Method
from driftgate.models import SourceModel
from driftgate.serve.answers import Answer
from driftgate.serve.audit import AuditLog
from driftgate.serve.board import Board
from driftgate.serve.engine import Engine, EngineSettings, Listener, TooBusy
from driftgate.serve.feedback import Feedback
from driftgate.serve.gallery import Gallery
from driftgate.serve.metrics import Metrics
from driftgate.serve.state_folder import StateFolder

T = TypeVar("T")


class ServiceSettings(BaseModel):
    """Settings of a service.

    Attributes:
        name: of the model, in paths.
        engine, guard: see there.
        keep_images: whether recent unknowns are kept in memory for the gallery.
        keys: any of them opens the door; none for no key.
        hosts: names it may be called by; None for any.
        max_body: bytes of a request. max_pictures: in a request. max_pixels: in a request, before decoding.
        body_seconds: within which a request must have come. answer_seconds: within which it is answered, or given up.
        decoders: pictures decoded at the same time.
        listeners: pages that may look at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="driftgate", pattern=r"^[\w.-]+$")
    engine: EngineSettings = EngineSettings()
    guard: GuardSettings = GuardSettings()
    keep_images: bool = True
    keys: tuple[bytes, ...] = ()
    hosts: tuple[str, ...] | None = None
    max_body: int = Field(default=32_000_000, ge=1)
    max_pictures: int = Field(default=256, ge=1)
    max_pixels: int = Field(default=50_000_000, ge=1)
    body_seconds: float = Field(default=30.0, gt=0)
    answer_seconds: float = Field(default=60.0, gt=0)
    decoders: int = Field(default=2, ge=1)
    listeners: int = Field(default=32, ge=1)


class Service:
    """A method that is served: from here on it belongs to the engine's thread alone."""

    def __init__(self, fresh: Method, state: str | Path, settings: ServiceSettings | None = None) -> None:
        self.settings = settings or ServiceSettings()
        folder = StateFolder(state)
        try:
            method = folder.start(fresh)
            spec = method.model.spec
            self.board, self.metrics, self.audit = Board(), Metrics(spec.class_names), AuditLog(folder.path)
            self.feedback = Feedback(spec.class_names, folder.counts)
            with_gallery = self.settings.keep_images and spec.kind == "images"
            self.gallery = Gallery() if with_gallery else None
            listeners: list[Listener] = [self.board, self.metrics, self.audit]
            self.engine = Engine(
                method,
                folder,
                self.settings.engine,
                self.settings.guard,
                listeners if self.gallery is None else [*listeners, self.gallery],
                on_answers=self.feedback.remember,
                on_event=self._take_event,
                keep_features=with_gallery,
            )
        except BaseException:
            folder.close()
            raise
        self.metrics.watch(self.engine)
        self.stopping = threading.Event()
        self.playing: str | None = None  # what the demo shows
        self.audit.write("start", version=self.engine.version, lost=folder.lost, problems=folder.problems)

    @property
    def model(self) -> SourceModel:
        """Says what a sample must look like."""
        return self.engine.method.model

    @property
    def version(self) -> str:
        """Of the state that would answer now."""
        return self.engine.version

    @property
    def alive(self) -> bool:
        """Whether it takes work."""
        return self.engine.alive

    async def answer(self, samples: Tensor, request: str) -> list[Answer]:
        """Samples as ``model.prepare`` gives them -> their answers; ``request`` is what the log calls them."""
        return await in_time(self.engine.submit(samples, request), self.settings.answer_seconds)

    def _take_event(self, event: Event) -> None:
        self.metrics.event(event)
        self.audit.event(event)

    def close(self) -> None:
        """Answer what waits, save, end."""
        self.stopping.set()
        self.engine.close()
        self.audit.close()


async def in_time(future: Future[T], seconds: float) -> T:
    """What another thread makes of it, if it does so in time."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
    except asyncio.TimeoutError as error:
        raise TooBusy(f"Expected an answer within {seconds:g} seconds but too many wait; ask again.") from error
