"""The app: paths of the service. What they need is in ``Service``; what guards them is in ``safety``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path as FilePath
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from driftgate.serve.answering import VERSION, add_answering
from driftgate.serve.schemas import REFUSALS, Judgement, Naming, Reason
from driftgate.serve.service import Service, in_time
from driftgate.types import DriftgateError

ASSETS = FilePath(__file__).parent / "assets"
PAGE = {"": ("page.html", "text/html"), "page.css": ("page.css", "text/css"), "page.js": ("page.js", "text/javascript")}


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
    add_answering(app, service)
    _add_page(app, service)
    _add_control(app, service)
    _add_gallery(app, service)
    return app


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


def _add_control(app: FastAPI, service: Service) -> None:
    engine, seconds = service.engine, service.settings.answer_seconds

    @app.post("/v1/feedback", tags=["classify"])
    def feedback(judgement: Judgement) -> dict[str, Any]:
        """Say what an answer should have been: counted in a running score, never learned from."""
        try:
            return service.feedback.give(judgement.id, judgement.label)
        except DriftgateError as error:
            raise HTTPException(404, str(error)) from error

    @app.post("/v1/freeze", tags=["control"])
    async def freeze(why: Reason | None = None) -> dict[str, Any]:
        """Stop learning; predictions go on."""
        await in_time(engine.freeze((why or Reason()).reason), seconds)
        return _standing(service)

    @app.post("/v1/thaw", tags=["control"])
    async def thaw(why: Reason | None = None) -> dict[str, Any]:
        """Learn again, whoever stopped it."""
        await in_time(engine.thaw((why or Reason()).reason), seconds)
        return _standing(service)

    @app.post("/v1/snapshots", tags=["control"])
    async def snapshot(why: Reason | None = None) -> dict[str, Any]:
        """Keep the state as it is now; the oldest leaves the ring if it is full."""
        taken = await in_time(engine.snapshot((why or Reason()).reason), seconds)
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
        await in_time(engine.rollback(snapshot_id, (why or Reason()).reason), seconds)
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
