"""The app: paths of the service. What they need is in ``Service``; what guards them is in ``safety``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
import torch
from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from torch import Tensor

from driftgate.serve.answers import Answer
from driftgate.serve.decode import BadPicture, Pixels, decode, from_base64
from driftgate.serve.engine import EngineStopped, QueueFull
from driftgate.serve.inference_protocol import HEADER_LENGTH, InferRequest, describe_model, read_request, write_response
from driftgate.serve.safety import FrontDoor
from driftgate.serve.schemas import PICTURES, REFUSALS, Answers, Images, Judgement, Naming, Reason
from driftgate.serve.service import Service
from driftgate.types import DriftgateError

VERSION = version("driftgate")
ASSETS = FilePath(__file__).parent / "assets"
PAGE = {"": ("page.html", "text/html"), "page.css": ("page.css", "text/css"), "page.js": ("page.js", "text/javascript")}

logger = logging.getLogger(__name__)
T = TypeVar("T")


def create_app(service: Service) -> FastAPI:
    """The app around a service, which it closes at its own end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(service.close)

    app = FastAPI(
        title="driftgate",
        version=VERSION,
        docs_url=None,  # these two load their scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        responses=REFUSALS,
    )
    _add_errors(app)
    _add_page(app, service)
    _add_classify(app, service)
    _add_control(app, service)
    _add_gallery(app, service)
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
    return app


def _add_errors(app: FastAPI) -> None:
    """Every refusal is ``{"error": "a sentence"}``."""

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def misshapen(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": _first(error.errors())}, 422)

    @app.exception_handler(DriftgateError)
    async def mistaken(_: Request, error: DriftgateError) -> Response:
        status = {QueueFull: 429, EngineStopped: 503}.get(type(error), 422)
        return JSONResponse({"error": str(error)}, status, {"Retry-After": "1"} if status != 422 else None)

    @app.exception_handler(OSError)
    async def full(_: Request, error: OSError) -> Response:
        logger.error("the disk: %s", error)
        return JSONResponse({"error": f"Expected room in the state folder: {error.strerror}."}, 507)


def _add_page(app: FastAPI, service: Service) -> None:
    def page(name: str) -> Callable[[], Response]:
        file, media_type = PAGE[name]
        content = (ASSETS / file).read_text(encoding="utf-8")
        return lambda: Response(content, media_type=media_type)

    for name in PAGE:
        app.get(f"/{name}", include_in_schema=False)(page(name))

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return Response(status_code=204)

    @app.get("/metrics", tags=["watch"])
    def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/state", tags=["watch"])
    def state() -> dict[str, Any]:
        """All that is known about the service now: version, health, snapshots, shares, times."""
        return _state(service)

    looking: set[int] = set()

    @app.get("/v1/events", tags=["watch"], include_in_schema=False)
    async def events(request: Request) -> Response:
        """The state once a second, as server-sent events."""
        if len(looking) >= service.settings.listeners:
            raise HTTPException(429, f"Expected at most {service.settings.listeners} pages that look at once.")

        async def stream() -> AsyncIterator[str]:
            looking.add(id(request))
            try:
                while not service.stopping.is_set():
                    document = await anyio.to_thread.run_sync(_state, service)
                    yield f"data: {json.dumps(document)}\n\n"
                    for _ in range(10):  # a second, in which a stop is noticed soon
                        if service.stopping.is_set():
                            break
                        await asyncio.sleep(0.1)
            finally:
                looking.discard(id(request))

        return StreamingResponse(stream(), media_type="text/event-stream")


def _state(service: Service) -> dict[str, Any]:
    method = service.engine.method
    spec = method.model.spec
    return {
        "name": service.settings.name,
        "method": method.name,
        "backbone": spec.backbone,
        "class_names": list(spec.class_names) if spec.num_classes <= 1000 else spec.num_classes,
        "input": list(spec.shape),
        "gallery": None if service.gallery is None else service.gallery.revision,
        "playing": service.playing,
        "feedback": service.feedback.score(),
        **service.board.describe(service.engine),
    }


def _add_classify(app: FastAPI, service: Service) -> None:
    limiter = anyio.CapacityLimiter(service.settings.decoders)

    @app.post("/v1/classify", tags=["classify"], openapi_extra=PICTURES, responses={200: {"model": Answers}})
    async def classify(request: Request) -> Response:
        """Class or unknown for each picture; a bad picture has its refusal in its place, the others their answers."""
        pictures = await _pictures(request, service)
        samples, refusals = await anyio.to_thread.run_sync(partial(_decode_all, pictures, service), limiter=limiter)
        if not samples:
            worst = refusals[min(refusals)]
            raise HTTPException(worst.status, str(worst))
        found = iter(await _answered(service, torch.stack(samples), request))
        entries = [
            {"status": refusals[place].status, "error": str(refusals[place])}
            if place in refusals
            else asdict(next(found))
            for place in range(len(pictures))
        ]
        return JSONResponse({"answers": entries, "version": service.engine.version})

    @app.post("/v1/feedback", tags=["classify"])
    def feedback(judgement: Judgement) -> dict[str, Any]:
        """Say what an answer should have been: counted in a running score, never learned from."""
        try:
            return service.feedback.give(judgement.id, judgement.label)
        except DriftgateError as error:
            raise HTTPException(404, str(error)) from error


async def _pictures(request: Request, service: Service) -> list[bytes | BadPicture]:
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


def _decode_all(pictures: Sequence[bytes | BadPicture], service: Service) -> tuple[list[Tensor], dict[int, BadPicture]]:
    """Samples of those that can be read, refusals of the others by their place."""
    pixels, model = Pixels(service.settings.max_pixels), service.engine.method.model
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


async def _answered(service: Service, samples: Tensor, request: Request) -> list[Answer]:
    return await _done(service, service.engine.submit(samples, request.scope["request_id"]))


async def _done(service: Service, future: Future[T]) -> T:
    """What the engine's thread makes of it, if it does so in time."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), service.settings.answer_seconds)
    except asyncio.TimeoutError as error:
        raise HTTPException(503, "The service is too busy to answer in time.", {"Retry-After": "5"}) from error


def _add_control(app: FastAPI, service: Service) -> None:
    engine = service.engine

    @app.post("/v1/freeze", tags=["control"])
    async def freeze(why: Reason | None = None) -> dict[str, Any]:
        """Stop learning; predictions go on."""
        await _done(service, engine.freeze((why or Reason()).reason))
        return _standing(service)

    @app.post("/v1/thaw", tags=["control"])
    async def thaw(why: Reason | None = None) -> dict[str, Any]:
        """Learn again, whoever stopped it."""
        await _done(service, engine.thaw((why or Reason()).reason))
        return _standing(service)

    @app.post("/v1/snapshots", tags=["control"])
    async def snapshot(why: Reason | None = None) -> dict[str, Any]:
        """Keep the state as it is now; the oldest leaves the ring if it is full."""
        taken = await _done(service, engine.snapshot((why or Reason()).reason))
        return asdict(taken)

    @app.get("/v1/snapshots", tags=["control"])
    def snapshots() -> list[dict[str, Any]]:
        """The start (id 0) and the snapshots in the ring, oldest first."""
        return [asdict(found) for found in engine.snapshots]

    @app.post("/v1/rollback/{snapshot_id}", tags=["control"])
    async def rollback(snapshot_id: Annotated[int, Path(ge=0, lt=2**63)], why: Reason | None = None) -> dict[str, Any]:
        """Go back to a snapshot, 0 for the start; whether it learns stays as it is."""
        if snapshot_id not in [found.id for found in engine.snapshots]:
            raise HTTPException(404, f"Expected the id of a snapshot, see GET /v1/snapshots, but got {snapshot_id}.")
        await _done(service, engine.rollback(snapshot_id, (why or Reason()).reason))
        return _standing(service)


def _standing(service: Service) -> dict[str, Any]:
    engine = service.engine
    return {"version": engine.version, "mode": engine.health.mode, "steps": engine.method.steps}


def _add_gallery(app: FastAPI, service: Service) -> None:
    gallery = service.gallery
    if gallery is None:
        return

    @app.get("/v1/unknowns", tags=["unknowns"])
    def unknowns(thumbnails: Annotated[int, Query(ge=0, le=100)] = 0) -> dict[str, Any]:
        """Recent unknowns, those that look alike together; so many of each group with a small picture."""
        return gallery.describe(thumbnails)

    @app.get("/v1/unknowns/{item_id}/picture", tags=["unknowns"])
    def picture(item_id: str) -> Response:
        """One of them as PNG, as the model saw it."""
        try:
            return Response(gallery.picture(item_id), media_type="image/png")
        except DriftgateError as error:
            raise HTTPException(404, str(error)) from error

    @app.post("/v1/unknowns/name", tags=["unknowns"])
    def name(naming: Naming) -> dict[str, int]:
        """Give some of them a name; others that look like them will be shown under it."""
        return {"named": gallery.name(naming.ids, naming.name)}

    @app.get("/v1/unknowns.zip", tags=["unknowns"])
    def download() -> Response:
        """All of them, a folder for each group."""
        headers = {"Content-Disposition": 'attachment; filename="unknowns.zip"'}
        return Response(gallery.as_zip(), media_type="application/zip", headers=headers)

    @app.delete("/v1/unknowns", tags=["unknowns"])
    def clear() -> dict[str, int]:
        """Forget all pictures."""
        gallery.clear()
        return {"left": 0}


def _add_inference_protocol(app: FastAPI, service: Service) -> None:
    engine, settings = service.engine, service.settings

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
        if not engine.alive:
            raise HTTPException(503, "The service is stopping.")
        return {"live": True, "ready": True}

    @app.get("/v2/models/{name}", tags=["inference protocol"])
    def model(name: str) -> dict[str, Any]:
        """Inputs and outputs of the model."""
        check(name)
        return describe_model(engine.method.model, name, engine.version)

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
        channels = engine.method.model.spec.shape[0]
        most = settings.max_pixels * channels
        wanted, tensor = await anyio.to_thread.run_sync(read_request, content, header, most)
        if tensor.ndim > 0 and len(tensor) > settings.max_pictures:
            raise HTTPException(413, f"Expected at most {settings.max_pictures} samples but got {len(tensor)}.")
        samples = await anyio.to_thread.run_sync(engine.method.model.prepare, tensor)
        answer, headers = write_response(wanted, await _answered(service, samples, request), name)
        return Response(answer, headers=headers)


def _first(errors: Sequence[Any]) -> str:
    """One sentence out of pydantic's report."""
    place = ".".join(str(part) for part in errors[0]["loc"])
    return f"Expected another body or path: {place}: {errors[0]['msg']}."
