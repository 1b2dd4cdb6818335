"""The front door: keys, hosts, origins, bodies that are too large or too slow, and what an answer may show."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from servesupport import picture, running, samples

from driftgate import DriftgateError
from driftgate.resources import resident_memory
from driftgate.serve.engine import EngineSettings
from driftgate.serve.safety import read_keys

KEY = "0123456789abcdef0123"


def raw(client: httpx.Client) -> socket.socket:
    address = client.base_url
    return socket.create_connection((address.host, address.port), timeout=120)


def test_without_the_key_only_the_empty_page_and_health_are_open(tmp_path: Path) -> None:
    with running(tmp_path, keys=(KEY.encode(), b"another key, as long")) as (_, client):
        for path in ("/v1/state", "/metrics", "/v1/unknowns", "/v1/events", "/openapi.json", "/v2/models/driftgate"):
            refused = client.get(path)
            assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer", path
        assert client.post("/v1/rollback/0").status_code == 401
        assert client.get("/v1/state", headers={"X-API-Key": "wrong"}).status_code == 401
        for path in ("/", "/page.js", "/page.css", "/v2/health/live", "/v2/health/ready"):
            assert client.get(path).status_code == 200
        assert client.get("/v1/state", headers={"X-API-Key": KEY}).status_code == 200
        assert client.get("/v1/state", headers={"Authorization": "Bearer another key, as long"}).status_code == 200


def test_keys_that_can_be_guessed_are_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("short\n")
    with pytest.raises(DriftgateError, match="at least 16 characters"):
        read_keys(tmp_path / "keys")
    (tmp_path / "keys").write_text(f"\n{KEY}\n")
    assert read_keys(tmp_path / "keys") == (KEY.encode(),)


def test_other_origins_and_hosts_are_refused(tmp_path: Path) -> None:
    with running(tmp_path, hosts=("127.0.0.1",)) as (_, client):
        own = {"Origin": str(client.base_url)}
        assert client.post("/v1/freeze", headers=own).status_code == 200
        assert client.post("/v1/freeze", headers={"Origin": "http://evil.example"}).status_code == 403
        assert client.get("/v1/state", headers={"Host": "evil.example"}).status_code == 421
        preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        answer = client.options("/v1/freeze", headers=preflight)
        assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers


def test_answers_carry_headers_that_keep_a_browser_safe(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        for path in ("/", "/v1/state", "/nowhere"):
            headers = client.get(path, headers={"X-Request-ID": "my-request"}).headers
            assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert headers["x-request-id"] == "my-request" and "server" not in headers
        assert client.get("/", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"] != "a b\tc"
        page = client.get("/").text
        assert "http://" not in page and "https://" not in page  # nothing comes from elsewhere
        assert "<script>" not in page and "style=" not in page


def test_a_failure_shows_nothing_of_the_inside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as (service, client):

        def broken(*_: object) -> None:
            raise RuntimeError("secret of the house")

        service.board.describe = broken  # type: ignore[method-assign, assignment]
        answer = client.get("/v1/state")
        assert answer.status_code == 500 and "secret" not in answer.text and "Traceback" not in answer.text
        assert answer.headers["x-request-id"] in answer.json()["error"]
    assert "secret of the house" in caplog.text


def test_a_body_that_is_too_large_is_refused_before_it_has_come(tmp_path: Path) -> None:
    with running(tmp_path, max_body=10_000) as (_, client):
        with raw(client) as line:
            line.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n")
            line.sendall(b"Content-Length: 500000000\r\n\r\n" + b"x" * 1000)
            assert line.recv(100).startswith(b"HTTP/1.1 413")
        with raw(client) as line:  # in pieces, whose number it does not tell
            line.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n")
            line.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(10):  # the last one is too much, and after the answer the line is closed
                line.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 413")
        assert client.post("/v1/classify", files={"images": picture(0)}).status_code == 200


def test_a_slow_sender_is_cut_off_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    with running(tmp_path, body_seconds=1.0) as (_, client), raw(client) as line:
        line.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n")
        line.sendall(b"Content-Length: 5000\r\n\r\n")
        started = time.monotonic()
        line.sendall(b"x")
        assert client.post("/v1/classify", files={"images": picture(0)}).status_code == 200
        assert line.recv(100).startswith(b"HTTP/1.1 408")
        assert 0.9 < time.monotonic() - started < 60


def test_a_client_that_hangs_up_harms_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as (service, client):
        for _ in range(5):
            with raw(client) as line:
                body = picture(0)
                line.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n")
                line.sendall(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        with raw(client) as line:
            line.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n")
            line.sendall(b"Content-Length: 5000\r\n\r\nhalf")
        assert client.post("/v1/classify", files={"images": picture(0)}).status_code == 200
        assert service.engine.alive and service.engine.failures == 0


def test_a_flood_of_tiny_requests_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More clients at once than there are places, while nothing is answered: some wait, the rest are told to go."""
    tiny = picture(0, size=(1, 1))
    head = f"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: {len(tiny)}"
    monkeypatch.setattr("driftgate.serve.server.CONNECTIONS", 100)
    clients = 150
    with (
        running(tmp_path, engine=EngineSettings(queue_size=64, max_delay=0.0)) as (service, client),
        ExitStack() as stack,
    ):
        go_on = threading.Event()
        service.engine.run(lambda: go_on.wait(timeout=200))
        before = resident_memory()
        lines = [stack.enter_context(raw(client)) for _ in range(clients)]
        for line in lines:
            line.sendall(head.encode() + b"\r\nConnection: close\r\n\r\n" + tiny)
        deadline = time.monotonic() + 120
        refused = 0
        while refused < clients - 64 and time.monotonic() < deadline:  # all but those in the queue have their answer
            ready, _, _ = select.select(lines, [], [], 1.0)
            refused = len(ready)
        assert service.engine.queue_length <= 64
        after = resident_memory()
        assert before is None or after is None or after - before < 100e6
        go_on.set()
        statuses = [int(line.recv(12).split()[1]) for line in lines]
        assert set(statuses) <= {200, 429, 503} and 0 < statuses.count(200) <= 64
        assert client.post("/v1/classify", files={"images": picture(0)}).status_code == 200


def test_whoever_is_not_answered_in_time_is_told_to_come_back(tmp_path: Path) -> None:
    with running(tmp_path, answer_seconds=0.2) as (service, client):
        go_on = threading.Event()
        service.engine.run(lambda: go_on.wait(timeout=120))
        for path in ("/v1/classify", "/v1/freeze"):
            late = client.post(path, files={"images": picture(0)}) if path == "/v1/classify" else client.post(path)
            assert late.status_code == 503 and late.headers["retry-after"] == "1"
        go_on.set()


def test_more_than_the_queue_holds_is_refused_with_a_time_to_come_back(tmp_path: Path) -> None:
    with running(tmp_path, engine=EngineSettings(queue_size=16, max_delay=0.0)) as (service, client):
        go_on = threading.Event()
        service.engine.run(lambda: go_on.wait(timeout=120))
        held = service.engine.submit(samples(16, seed=0))
        refused = client.post("/v1/classify", files={"images": picture(0)})
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        go_on.set()
        assert len(held.result(timeout=120)) == 16
        assert client.post("/v1/classify", files={"images": picture(0)}).status_code == 200
