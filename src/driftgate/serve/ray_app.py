"""The same app on Ray Serve: one learner and several predictors, on one machine or many.

Predictors take the requests, gather samples into batches (``serve.batch``) and answer from a copy of the method; what
they answered goes to the learner, which is the service of one machine with its engine, guard and state folder. Every
``publish_every`` steps, and at once after a way back, the learner puts its state into Ray's object store, where the
predictors take it from. Page, control and metrics are the learner's own app, to which predictors pass requests on.

A predictor that dies is replaced while the others answer. While the learner is away predictors answer by what they
have; it comes back from its state folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import numpy as np
import ray
import torch
from fastapi import FastAPI
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send
from torch import Tensor

from driftgate.models import SourceModel
from driftgate.serve.answering import add_answering
from driftgate.serve.answers import Answer, answers_of
from driftgate.serve.engine import QueueFull, TooBusy
from driftgate.serve.metrics import Metrics
from driftgate.serve.ray_learner import LOOK_SECONDS, Fresh, Learner, Published, State
from driftgate.serve.service import ServiceSettings
from driftgate.types import Prediction

NAME = "driftgate"
"""Of the application on the cluster."""
AWAY_SECONDS = 5.0
"""Within which the learner must begin to answer what is passed on to it."""
UNTAUGHT = 64
"""Batches of a predictor that may wait for the learner; more are answered, and taught to nobody."""
SCOPE = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client")
"""What of a request is passed on."""

logger = logging.getLogger(__name__)


class RaySettings(BaseModel):
    """Settings of the cluster.

    Attributes:
        predictors: replicas that answer.
        publish_every: steps of the learner between two states that predictors take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    predictors: int = Field(default=2, ge=1)
    publish_every: int = Field(default=10, ge=1)


@dataclass(frozen=True)
class _Sample:
    inputs: Tensor
    id: str
    request: str


class Predictor:
    """Answers requests by the learner's last published state; see ``answering.Answering``."""

    async def __init__(  # type: ignore[misc]  # Ray Serve waits for it before it sends requests
        self, learner: DeploymentHandle[Any], fresh: Fresh, settings: ServiceSettings
    ) -> None:
        self.settings, self.alive, self.version = settings, True, ""
        self._learner, self._method = learner, fresh()
        self._learning = False
        self.metrics = Metrics(self.model.spec.class_names)
        self._state_lock = asyncio.Lock()
        self._waiting = 0
        self._teaching: set[asyncio.Task[None]] = set()
        limits = settings.engine

        @serve.batch(max_batch_size=limits.batch_size, batch_wait_timeout_s=limits.max_delay)
        async def answered(samples: list[_Sample]) -> list[Answer]:
            return await self._answer_batch(samples)

        self._answered = answered
        self.paths = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        add_answering(self.paths, self)
        self.paths.mount("/", self._pass_on)
        while not self.version:
            await self._take_newer()
        self._following = asyncio.create_task(self._follow())

    @property
    def model(self) -> SourceModel:
        """Says what a sample must look like."""
        return self._method.model

    async def answer(self, samples: Tensor, request: str) -> list[Answer]:
        """Samples as ``model.prepare`` gives them -> their answers; ``request`` is what the log calls them."""
        limits, request_id = self.settings.engine, secrets.token_hex(8)
        if self._waiting + len(samples) > limits.queue_size:
            raise QueueFull(
                f"Expected room for {len(samples)} samples but {self._waiting} of {limits.queue_size} wait already; "
                "ask again in a moment."
            )
        asked = [_Sample(row, f"{request_id}-{place}", request) for place, row in enumerate(samples)]
        self._waiting += len(asked)
        try:
            together = asyncio.gather(*map(self._answered, asked))
            return list(await asyncio.wait_for(together, self.settings.answer_seconds))
        except asyncio.TimeoutError as error:
            raise TooBusy("Expected an answer in time but the service is too busy; ask again.") from error
        finally:
            self._waiting -= len(asked)

    async def _answer_batch(self, batch: Sequence[_Sample]) -> list[Answer]:
        inputs = torch.stack([sample.inputs for sample in batch])
        async with self._state_lock:
            prediction: Prediction = await anyio.to_thread.run_sync(self._method.predict, inputs)
            version, learning = self.version, self._learning
        names = self.model.spec.class_names
        answers = answers_of(prediction, [sample.id for sample in batch], names, version, learning)
        if len(self._teaching) < UNTAUGHT:
            task = asyncio.create_task(self._teach(inputs.numpy(), answers, [sample.request for sample in batch]))
            self._teaching.add(task)
            task.add_done_callback(self._teaching.discard)
        else:
            logger.warning("%d answers were taught to nobody: the learner is away, or too slow", len(answers))
        return answers

    async def _teach(self, inputs: NDArray[Any], answers: list[Answer], requests: list[str]) -> None:
        try:
            await self._learner.learn.remote(inputs, answers, requests)
        except Exception as error:  # it died with the batch: what was answered stands
            logger.warning("%d answers were taught to nobody: %s", len(answers), type(error).__name__)

    async def _follow(self) -> None:
        while True:
            try:
                await self._take_newer()
            except Exception as error:  # the learner is away; the next one has another version
                logger.warning("no newer state: %s", type(error).__name__)
                await asyncio.sleep(LOOK_SECONDS)

    async def _take_newer(self) -> None:
        found: Published | None = await self._learner.newer.remote((self.version, self._learning))
        if found is None:
            return
        arrays: State = await found.state
        state = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        async with self._state_lock:
            await anyio.to_thread.run_sync(self._method.load_state_dict, state)
            self.version, self._learning = found.version, found.learning

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Any other path: the learner's app answers."""
        body = bytearray()
        while (part := await receive())["type"] == "http.request":
            body += part.get("body", b"")
            if not part.get("more_body", False):
                break
        request = {name: scope[name] for name in SCOPE if name in scope}
        messages: Any = self._learner.options(stream=True).http.remote(request, bytes(body))
        try:
            await send(await asyncio.wait_for(anext(messages), AWAY_SECONDS))
        except Exception as error:
            messages.cancel()
            logger.warning("%s was not answered: %s", scope["path"], type(error).__name__)
            raise HTTPException(
                503, "Expected the learner but it is away; answers go on, ask again.", {"Retry-After": "5"}
            ) from error
        try:
            async for message in messages:
                await send(message)
        finally:
            messages.cancel()  # the page was closed: the learner need not go on


class _Door:
    """The app as Ray Serve wants it, before there is a replica: leads to that of the replica it finds itself in."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                asked = (await receive())["type"]
                await send({"type": f"{asked}.complete"})
                if asked == "lifespan.shutdown":
                    return
        predictor: Any = serve.get_replica_context().servable_object
        await predictor.paths(scope, receive, send)


def connect(predictors: int) -> None:
    """To the cluster of RAY_ADDRESS, or one that runs here; else start one on this machine that holds all of it."""
    address = os.environ.get("RAY_ADDRESS", "auto")
    if address != "local":
        try:
            ray.init(address=address, log_to_driver=False)
            return
        except ConnectionError:
            if address != "auto":
                raise
    cores = max(os.cpu_count() or 1, predictors + 1)
    ray.init(address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False)


def deploy(
    fresh: Fresh, folder: Path, settings: ServiceSettings, cluster: RaySettings, *, host: str, port: int
) -> dict[str, Any]:
    """Start it all and wait until it answers; says from which version it goes on, what was lost and what is wrong.

    ``fresh`` makes the method on every machine, ``folder`` is where the learner runs.
    """
    serve.start(http_options={"host": host, "port": port})
    limits: dict[str, Any] = {
        "max_ongoing_requests": 1000,
        "health_check_period_s": 1.0,
        "logging_config": {"enable_access_log": False},
    }
    learner = serve.deployment(name="Learner", num_replicas=1, **limits)(Learner)
    predictor = serve.deployment(name="Predictor", num_replicas=cluster.predictors, **limits)(
        serve.ingress(_Door())(Predictor)
    )
    learning = learner.bind(fresh, str(folder.resolve()), settings, cluster.publish_every)
    serve.run(predictor.bind(learning, fresh, settings), name=NAME, route_prefix="/")
    started: dict[str, Any] = serve.get_deployment_handle("Learner", NAME).start.remote().result()
    return started


def withdraw() -> None:
    """End it in good order, with the state saved; a cluster of others goes on."""
    serve.delete(NAME)
    ray.shutdown()
