"""The front door: what every request passes before any other code sees it, and what every answer carries.

Refused are foreign hosts and pages of other origins, requests without the key, bodies that are too large or too slow.
Nothing that goes wrong behind the door shows its insides to the client.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftgate.serve.metrics import Metrics
from driftgate.types import DriftgateError

OPEN_PATHS = frozenset({"/", "/page.css", "/page.js", "/favicon.ico", "/v2/health/live", "/v2/health/ready"})
"""Without a key: the empty page, which asks for one, and what a load balancer wants to know."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
SHORTEST_KEY = 16

logger = logging.getLogger(__name__)


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys in a file, one a line; refuses a file without, and keys that can be guessed."""
    keys = tuple(line.strip().encode() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    if not keys or min(map(len, keys)) < SHORTEST_KEY:
        raise DriftgateError(
            f"Expected keys of at least {SHORTEST_KEY} characters in {path}, one a line, but got {len(keys)} keys, the "
            f"shortest of {min(map(len, keys), default=0)}; `openssl rand -hex 24` makes one."
        )
    return keys


class FrontDoor:
    """ASGI middleware around the whole app.

    Args:
        app: what is behind the door.
        metrics: told of every request.
        keys: one of them must come with a request, as ``Authorization: Bearer`` or ``X-API-Key``; none for no key.
        hosts: names the service may be called by; None for any.
        max_body: bytes of a body.
        body_seconds: within which a body must have come.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        keys: Sequence[bytes],
        hosts: Sequence[str] | None,
        max_body: int,
        body_seconds: float,
    ) -> None:
        self.app, self.metrics = app, metrics
        self.keys, self.hosts = tuple(keys), None if hosts is None else frozenset(hosts)
        self.max_body, self.body_seconds = max_body, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope["request_id"] = request_id
        started, status = time.perf_counter(), [0]

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer.setdefault(name, value)
                answer["X-Request-ID"] = request_id
            await send(message)

        try:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await _answer(send_safely, *refusal)
            else:
                await self.app(scope, self._limited(receive), send_safely)
        except Exception:
            logger.exception("request %s failed", request_id)
            if status[0]:
                raise  # too late for an answer: the connection is closed
            await _answer(send_safely, 500, f"The service failed; its log has more under {request_id}.")
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(path, status[0] or 499).inc()
            if path != "/v1/events":  # which lasts as long as somebody looks
                self.metrics.request_seconds.labels(path).observe(time.perf_counter() - started)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            return 421, f"Expected a request to {', '.join(sorted(self.hosts))} but got another host; see --host."
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "Expected a request from the service's own page; other origins are refused."
        if self.keys and scope["path"] not in OPEN_PATHS and not self._has_key(headers):
            return 401, "Expected a key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.max_body:
            return 413, f"Expected a body of at most {self.max_body:,} bytes; send fewer or smaller pictures."
        return None

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return any(hmac.compare_digest(given.encode(), key) for key in self.keys)

    def _limited(self, receive: Receive) -> Receive:
        """``receive`` that counts bytes and seconds until the body is whole; after that it waits for the hang-up."""
        deadline, seen, whole = time.monotonic() + self.body_seconds, [0], [False]

        async def limited() -> Message:
            if whole[0]:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(deadline - time.monotonic(), 0.001))
            except asyncio.TimeoutError as error:
                raise HTTPException(
                    408, f"Expected the whole body within {self.body_seconds:g} seconds.", {"Connection": "close"}
                ) from error
            seen[0] += len(message.get("body", b""))
            if seen[0] > self.max_body:
                raise HTTPException(
                    413, f"Expected a body of at most {self.max_body:,} bytes.", {"Connection": "close"}
                )
            whole[0] = not message.get("more_body", False)
            return message

        return limited


def _name(host: str) -> str:
    """``localhost:8000`` -> ``localhost``, ``[::1]:8000`` -> ``[::1]``."""
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0].lower()


async def _answer(send: Send, status: int, sentence: str) -> None:
    body: Any = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 413:
        headers.append((b"connection", b"close"))  # or the rest of the body would have to be read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
