"""The paths that answer pictures and tensors, and how they refuse; whoever can answer, may have them.

On one machine that is the service itself, on several each of the predictors (``ray_app``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol

import anyio
import anyio.to_thread
import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from torch import Tensor

from driftgate.models import SourceModel
from driftgate.serve.answers import Answer
from driftgate.serve.decode import BadPicture, Pixels, decode, from_base64
from driftgate.serve.engine import EngineStopped, QueueFull, TooBusy
from driftgate.serve.inference_protocol import HEADER_LENGTH, InferRequest, describe_model, read_request, write_response
from driftgate.serve.metrics import Metrics
from driftgate.serve.safety import FrontDoor
from driftgate.serve.schemas import PICTURES, Answers, Images
from driftgate.serve.service import ServiceSettings
from driftgate.serve.state_folder import reason_of
from driftgate.types import DriftgateError

VERSION = version("driftgate")

logger = logging.getLogger(__name__)


class Answering(Protocol):
    """What can answer samples."""

    settings: ServiceSettings
    metrics: Metrics

    @property
    def model(self) -> SourceModel:
        """Says what a sample must look like."""

    @property
    def version(self) -> str:
        """Of the state that would answer now."""

    @property
    def alive(self) -> bool:
        """Whether it takes work."""

    async def answer(self, samples: Tensor, request: str) -> list[Answer]:
        """Samples (N, ...) as ``model.prepare`` gives them -> N answers; ``request`` is the name of the request."""


def add_answering(app: FastAPI, service: Answering) -> None:
    """All of it: classify, the Open Inference Protocol, refusals in sentences, the front door."""
    _add_errors(app)
    _add_classify(app, service)
    _add_inference_protocol(app, service)
    settings = service.settings
    app.add_middleware(
        FrontDoor,
        metrics=service.metrics,
        keys=settings.keys,
        hosts=settings.hosts,
        max_body=settings.max_body,
        body_seconds=settings.body_seconds,
    )


def _add_errors(app: FastAPI) -> None:
    """Every refusal is ``{"error": "a sentence"}``."""

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def misshapen(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": _first(error.errors())}, 422)

    @app.exception_handler(DriftgateError)
    async def mistaken(request: Request, error: DriftgateError) -> Response:
        status = {QueueFull: 429, EngineStopped: 503, TooBusy: 503}.get(type(error), 422)
        if status == 422 and isinstance(error.__cause__, OSError):
            return await full(request, error)
        return JSONResponse({"error": str(error)}, status, {"Retry-After": "1"} if status != 422 else None)

    @app.exception_handler(OSError)
    async def full(_: Request, error: Exception) -> Response:
        logger.error("the disk: %s", error)
        return JSONResponse({"error": f"Expected room in the state folder: {reason_of(error)}."}, 507)


def _add_classify(app: FastAPI, service: Answering) -> None:
    limiter = anyio.CapacityLimiter(service.settings.decoders)

    @app.post("/v1/classify", tags=["classify"], openapi_extra=PICTURES, responses={200: {"model": Answers}})
    async def classify(request: Request) -> Response:
        """Class or unknown for each picture; a bad picture has its refusal in its place, the others their answers."""
        pictures = await _pictures(request, service)
        samples, refusals = await anyio.to_thread.run_sync(partial(_decode_all, pictures, service), limiter=limiter)
        if not samples:
            worst = refusals[min(refusals)]
            raise HTTPException(worst.status, str(worst))
        found = iter(await service.answer(torch.stack(samples), request.scope["request_id"]))
        entries = [
            {"status": refusals[place].status, "error": str(refusals[place])}
            if place in refusals
            else asdict(next(found))
            for place in range(len(pictures))
        ]
        return JSONResponse({"answers": entries, "version": service.version})


async def _pictures(request: Request, service: Answering) -> list[bytes | BadPicture]:
    """The encoded pictures of a request, however they were sent."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    most = service.settings.max_pictures
    pictures: list[bytes | BadPicture]
    if kind == "multipart/form-data":
        async with request.form(
            max_files=most + 1, max_fields=most + 1, max_part_size=service.settings.max_body
        ) as form:
            # Files have a name; a field without one holds its text.
            pictures = [part.encode() if isinstance(part, str) else await part.read() for _, part in form.multi_items()]
    elif kind == "application/json":
        try:
            pictures = list(map(_or_refusal, Images.model_validate_json(await request.body()).images))
        except ValidationError as error:
            raise HTTPException(422, _first(error.errors())) from error
    elif kind.startswith("image/"):
        pictures = [await request.body()]
    else:
        raise HTTPException(
            415, f"Expected multipart/form-data, application/json or one picture as image/*, got {kind or 'nothing'!r}."
        )
    if not 1 <= len(pictures) <= most:
        raise HTTPException(413 if pictures else 422, f"Expected 1 to {most} pictures but got {len(pictures)}.")
    return pictures


def _or_refusal(text: str) -> bytes | BadPicture:
    try:
        return from_base64(text)
    except BadPicture as error:
        return error


def _decode_all(
    pictures: Sequence[bytes | BadPicture], service: Answering
) -> tuple[list[Tensor], dict[int, BadPicture]]:
    """Samples of those that can be read, refusals of the others by their place."""
    pixels, model = Pixels(service.settings.max_pixels), service.model
    samples, refusals = [], {}
    for place, picture in enumerate(pictures):
        try:
            if isinstance(picture, BadPicture):
                raise picture
            samples.append(decode(picture, model, pixels))
        except BadPicture as error:
            refusals[place] = error
            service.metrics.refused.labels(error.status).inc()
    return samples, refusals


def _add_inference_protocol(app: FastAPI, service: Answering) -> None:
    settings = service.settings

    def check(name: str) -> None:
        if name != settings.name:
            raise HTTPException(404, f"Expected the model {settings.name!r} but got {name!r}.")

    @app.get("/v2", tags=["inference protocol"])
    def server() -> dict[str, Any]:
        """What this server is."""
        return {"name": "driftgate", "version": VERSION, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live", tags=["inference protocol"])
    @app.get("/v2/health/ready", tags=["inference protocol"])
    def health() -> dict[str, bool]:
        """Whether the learner runs and takes work."""
        if not service.alive:
            raise HTTPException(503, "The service is stopping.")
        return {"live": True, "ready": True}

    @app.get("/v2/models/{name}", tags=["inference protocol"])
    def model(name: str) -> dict[str, Any]:
        """Inputs and outputs of the model."""
        check(name)
        return describe_model(service.model, name, service.version)

    @app.get("/v2/models/{name}/ready", tags=["inference protocol"])
    def ready(name: str) -> dict[str, Any]:
        """Whether the model can be asked."""
        check(name)
        return {"name": name, **health()}

    body = {"requestBody": {"content": {"application/json": {"schema": InferRequest.model_json_schema()}}}}

    @app.post("/v2/models/{name}/infer", tags=["inference protocol"], openapi_extra=body)
    async def infer(name: str, request: Request) -> Response:
        """Tensors in, label, name, probability and novelty out."""
        check(name)
        header = request.headers.get(HEADER_LENGTH)
        content = await request.body()
        channels = service.model.spec.shape[0]
        most = settings.max_pixels * channels
        wanted, tensor = await anyio.to_thread.run_sync(read_request, content, header, most)
        if tensor.ndim > 0 and len(tensor) > settings.max_pictures:
            raise HTTPException(413, f"Expected at most {settings.max_pictures} samples but got {len(tensor)}.")
        samples = await anyio.to_thread.run_sync(service.model.prepare, tensor)
        answer, headers = write_response(wanted, await service.answer(samples, request.scope["request_id"]), name)
        return Response(answer, headers=headers)


def _first(errors: Sequence[Any]) -> str:
    """One sentence out of pydantic's report."""
    place = ".".join(str(part) for part in errors[0]["loc"])
    return f"Expected another body or path: {place}: {errors[0]['msg']}."
