"""The service over HTTP, on the loopback, as a client sees it."""

from __future__ import annotations

import base64
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families
from servesupport import picture, running, samples

from driftgate.files import failed_write
from driftgate.serve.service import Service

Running = tuple[Service, httpx.Client]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("state")) as found:
        yield found


def classify(client: httpx.Client, *pictures: bytes) -> httpx.Response:
    return client.post("/v1/classify", files=[("images", (f"{n}.png", data)) for n, data in enumerate(pictures)])


def test_pictures_are_answered_however_they_are_sent(served: Running) -> None:
    service, client = served
    data = picture(0)
    service.engine.freeze("so that all answers are alike").result(timeout=120)
    as_files = classify(client, data)
    as_json = client.post("/v1/classify", json={"images": [base64.b64encode(data).decode()]})
    alone = client.post("/v1/classify", content=data, headers={"Content-Type": "image/png"})
    found = [response.json()["answers"][0] for response in (as_files, as_json, alone)]
    assert len({answer["id"] for answer in found}) == 3
    for answer in found:
        assert answer["name"] in ("cat", "dog", "owl", "unknown") and 0 < answer["probability"] <= 1
        assert answer["thresholds"].keys() == {"known", "unknown", "prediction"}
        assert answer["learned_from"] is None and answer["version"] == service.engine.version
        assert answer["novelty"] == found[0]["novelty"]
    service.engine.thaw("done").result(timeout=120)


def test_a_bad_picture_is_refused_alone(served: Running) -> None:
    _, client = served
    response = classify(client, picture(1), b"no picture", picture(2, kind="JPEG"), b"", picture(3)[:200])
    answers = response.json()["answers"]
    assert response.status_code == 200
    assert [answer.get("status", 200) for answer in answers] == [200, 415, 200, 400, 400]
    assert "JPEG, PNG" in answers[1]["error"]
    alone = classify(client, b"no picture")
    assert alone.status_code == 415 and alone.json().keys() == {"error"}


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO"])
def test_decoders_that_are_not_on_the_list_are_not_reached(served: Running, kind: str) -> None:
    assert classify(served[1], picture(0, kind=kind)).status_code == 415


def test_a_picture_that_claims_to_be_enormous_is_refused_before_it_is_decoded(served: Running) -> None:
    small = bytearray(picture(0))
    width_and_height = (60_000).to_bytes(4, "big") * 2
    small[16:24] = width_and_height
    small[29:33] = zlib.crc32(bytes(small[12:29])).to_bytes(4, "big")
    response = classify(served[1], bytes(small), picture(1))
    assert [answer.get("status", 200) for answer in response.json()["answers"]] == [413, 200]


def test_a_zip_bomb_in_the_text_of_a_picture_is_refused(served: Running) -> None:
    """A hundred megabytes of text in a hundred kilobytes: no more than a megabyte of it is ever unpacked."""
    packed = zlib.compress(b"x" * 100_000_000, 9)
    body = b"zTXt" + b"comment\0\0" + packed
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    small = picture(0)
    bomb = small[:33] + chunk + small[33:]  # behind the header
    answers = classify(served[1], bomb, picture(1)).json()["answers"]
    assert [answer.get("status", 200) for answer in answers] == [400, 200]


def test_the_pixels_of_a_request_are_limited_together(tmp_path: Path) -> None:
    with running(tmp_path, max_pixels=1000) as (_, client):
        answers = classify(client, picture(0), picture(1), picture(2, size=(10, 10))).json()["answers"]
    assert [answer.get("status", 200) for answer in answers] == [200, 413, 200]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b'{"images": []}', "application/json", 422),
        (b'{"images": ["%%%"]}', "application/json", 400),
        (b'{"images": ["aGVsbG8="], "path": "/etc/passwd"}', "application/json", 422),
        (b'{"images": ["aGVsbG8="]}', "application/json", 415),
        (b"hello", "text/plain", 415),
        (b"hello", "multipart/form-data; boundary=x", 400),
        (b"", "multipart/form-data", 400),
    ],
)
def test_bodies_that_make_no_sense_get_a_sentence(served: Running, content: bytes, kind: str, status: int) -> None:
    response = served[1].post("/v1/classify", content=content, headers={"Content-Type": kind})
    assert response.status_code == status and len(response.json()["error"]) > 10


def test_many_pictures_fill_several_batches(served: Running) -> None:
    response = classify(served[1], *(picture(seed) for seed in range(150)))
    assert len(response.json()["answers"]) == 150
    too_many = classify(served[1], *(picture(0) for _ in range(257)))
    assert too_many.status_code == 413


def test_control_and_state(served: Running) -> None:
    _, client = served
    classify(client, *(picture(seed) for seed in range(20)))
    assert client.post("/v1/freeze").json()["mode"] == "frozen"
    assert client.post("/v1/thaw", json={"reason": "a test"}).json()["mode"] == "learning"
    kept = client.post("/v1/snapshots", json={"reason": "a test"}).json()
    assert kept["reason"] == "a test" and kept in client.get("/v1/snapshots").json()
    before = client.get("/v1/state").json()
    went = client.post(f"/v1/rollback/{kept['id']}").json()
    assert went["steps"] == kept["steps"] and went["version"] != before["version"]
    assert client.post("/v1/rollback/12345").status_code == 404
    assert client.post("/v1/rollback/-1").status_code == 422
    state = client.get("/v1/state").json()
    assert {event["kind"] for event in state["events"]} >= {"freeze", "thaw", "snapshot", "rollback"}
    assert abs(sum(row["share"] for row in state["classes"]) - 1) < 1e-6
    assert sum(state["novelty"]["known"]) + sum(state["novelty"]["unknown"]) > 0
    assert len(state["series"]["rejected"]) == state["totals"]["batches"] > 0


def test_feedback_is_counted_once_and_teaches_nothing(served: Running) -> None:
    _, client = served
    answer = classify(client, picture(5)).json()["answers"][0]
    right = client.post("/v1/feedback", json={"id": answer["id"], "label": answer["name"]})
    assert right.json()["right"] is True
    again = client.post("/v1/feedback", json={"id": answer["id"], "label": answer["name"]})
    assert again.status_code == 404
    before = client.get("/v1/state").json()
    other = classify(client, picture(6)).json()["answers"][0]
    # A class the model has never heard of is unknown to it.
    new = client.post("/v1/feedback", json={"id": other["id"], "label": "walrus"}).json()
    assert new["right"] == (other["name"] == "unknown") and new["unknown"] == before["feedback"]["unknown"] + 1


def test_unknowns_are_grouped_named_and_downloaded(served: Running) -> None:
    service, client = served
    assert service.gallery is not None
    service.gallery.clear()
    for start in range(0, 120, 40):
        classify(client, *(picture(seed) for seed in range(start, start + 40)))
    service.engine.run(lambda: None).result(timeout=120)
    found = client.get("/v1/unknowns", params={"thumbnails": 1}).json()
    items = [item for group in found["groups"] for item in group["items"]] + found["alone"]
    assert 0 < len(items) <= found["size"]
    name = "a/../new class"
    assert client.post("/v1/unknowns/name", json={"ids": [items[0]["id"], "nobody"], "name": name}).json() == {
        "named": 1
    }
    groups = client.get("/v1/unknowns").json()["groups"]
    assert groups[0]["name"] == name and items[0]["id"] in [item["id"] for item in groups[0]["items"]]
    shown = client.get(f"/v1/unknowns/{items[0]['id']}/picture")
    assert shown.headers["content-type"] == "image/png" and shown.content.startswith(b"\x89PNG")
    assert client.get("/v1/unknowns/nobody/picture").status_code == 404
    with zipfile.ZipFile(io.BytesIO(client.get("/v1/unknowns.zip").content)) as archive:
        assert len(archive.namelist()) == len(items)
        assert all(".." not in entry.split("/") and entry.startswith("unknowns/") for entry in archive.namelist())
    assert client.delete("/v1/unknowns").json() == {"left": 0}


def test_without_images_no_picture_is_ever_kept(tmp_path: Path) -> None:
    with running(tmp_path, keep_images=False) as (service, client):
        classify(client, *(picture(seed) for seed in range(40)))
        assert service.gallery is None and client.get("/v1/unknowns").status_code == 404
        assert client.get("/v1/state").json()["gallery"] is None


def test_metrics_follow_prometheus_rules(served: Running) -> None:
    service, client = served
    classify(client, *(picture(seed) for seed in range(20)))
    service.engine.run(lambda: None).result(timeout=120)  # counted once they were learned from
    client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    ours = {name: family for name, family in families.items() if name.startswith("driftgate_")}
    for name, family in ours.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name) and family.documentation
        if family.type == "counter":
            assert all(sample.name.endswith(("_total", "_created")) for sample in family.samples)
        assert not name.endswith(("_ms", "_milliseconds", "_percent", "_kb"))
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6
    values = {sample.name: sample.value for family in ours.values() for sample in family.samples if not sample.labels}
    assert values["driftgate_steps_total"] > 0 and values["driftgate_learning"] in (0, 1)
    assert 0 <= values["driftgate_rejected_ratio"] <= 1 and values["driftgate_state_bytes"] > 0
    answers = sum(sample.value for sample in ours["driftgate_answers"].samples if sample.name.endswith("_total"))
    assert answers == client.get("/v1/state").json()["totals"]["samples"]
    assert {sample.labels["path"] for sample in ours["driftgate_requests"].samples} >= {"/v1/classify", "/metrics"}


def test_dashboard_and_alert_rules_ask_for_metrics_that_there_are(served: Running) -> None:
    service, client = served
    classify(client, *(picture(seed) for seed in range(20)))
    service.engine.run(lambda: None).result(timeout=120)
    found = {line.split()[2] for line in client.get("/metrics").text.splitlines() if line.startswith("# TYPE")}
    suffixed = {f"{name}{suffix}" for name in found for suffix in ("", "_bucket", "_sum", "_count")}
    for file in ("grafana.json", "alerts.yaml"):
        text = (Path(__file__).parents[2] / "docs" / "serve" / file).read_text(encoding="utf-8")
        asked = set(re.findall(r"\b(?:driftgate|process)_[a-z_]+", text))
        assert len(asked) > 5 and asked <= suffixed, (file, asked - suffixed)


def test_a_snapshot_that_finds_no_room_is_told(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object) -> None:
        with failed_write(path):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("driftgate.guard.snapshots.write_checkpoint", full)
    told = served[1].post("/v1/snapshots")
    assert told.status_code == 507 and "No space left" in told.json()["error"]


def test_two_ways_back_at_once_are_both_answered(tmp_path: Path) -> None:
    with running(tmp_path) as (service, client):
        classify(client, *(picture(seed) for seed in range(20)))
        assert client.post("/v1/snapshots").json()["id"] == 1
        classify(client, *(picture(seed) for seed in range(20)))
        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(lambda place: client.post(f"/v1/rollback/{place}"), [0, 1, 0, 1]))
        assert [answer.status_code for answer in told] == [200] * 4
        assert service.engine.method.steps in (0, 1) and service.version.startswith("5.")  # a life for each
        assert client.post("/v1/rollback/99").status_code == 404


def test_the_audit_log_has_every_answer_and_the_versions_around_it(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        files = [("images", (f"{seed}.png", picture(seed))) for seed in range(20)]
        answers = client.post("/v1/classify", files=files, headers={"X-Request-ID": "mine"}).json()["answers"]
        client.post("/v1/snapshots")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines] == ["start", "batch", "event"]
    batch = lines[1]
    assert batch["before"] == "1.0" and batch["after"] == "1.1" and batch["learned"]
    assert [row["id"] for row in batch["answers"]] == [answer["id"] for answer in answers]
    assert [row["name"] for row in batch["answers"]] == [answer["name"] for answer in answers]
    assert {row["request"] for row in batch["answers"]} == {"mine"}


def test_tritonclient_works(served: Running) -> None:
    service, client = served
    service.engine.freeze("so that all answers are alike").result(timeout=120)
    with tritonclient.http.InferenceServerClient(url=client.base_url.netloc.decode()) as triton:
        assert triton.is_server_live() and triton.is_server_ready() and triton.is_model_ready("driftgate")
        told = triton.get_model_metadata("driftgate")
        assert told["inputs"][0]["shape"] == [-1, 3, 28, 28]
        pictures = samples(20, seed=3).numpy()
        answers = []
        for binary in (True, False):
            given = tritonclient.http.InferInput("input", list(pictures.shape), "FP32")
            given.set_data_from_numpy(pictures, binary_data=binary)
            wanted = [
                tritonclient.http.InferRequestedOutput(name, binary_data=binary)
                for name in ("label", "novelty", "name")
            ]
            answers.append(triton.infer("driftgate", [given], outputs=wanted, request_id="seven"))
        answers.append(triton.infer("driftgate", [given]))
    expected = service.engine.run(lambda: service.engine.method.predict(samples(20, seed=3))).result(timeout=120)
    for answer in answers:
        assert answer.as_numpy("label").tolist() == expected.labels.tolist()
        assert np.allclose(answer.as_numpy("novelty"), expected.novelty.numpy())
        assert [name.decode() if isinstance(name, bytes) else name for name in answer.as_numpy("name")] == [
            "unknown" if label < 0 else ("cat", "dog", "owl")[label] for label in expected.labels.tolist()
        ]
    assert answers[0].get_response()["id"] == "seven"
    service.engine.thaw("done").result(timeout=120)


def infer(client: httpx.Client, **changes: object) -> httpx.Response:
    tensor = {"name": "input", "shape": [1, 3, 28, 28], "datatype": "FP32", "data": [0.5] * 2352, **changes}
    return client.post("/v2/models/driftgate/infer", content=json.dumps({"inputs": [tensor]}))


def test_tensors_that_make_no_sense_are_refused(served: Running) -> None:
    _, client = served
    version = client.get("/v1/state").json()["version"]
    assert infer(client).status_code == 200
    service, _ = served
    service.engine.run(lambda: None).result(timeout=120)
    version = client.get("/v1/state").json()["version"]
    for changes in (
        {"data": [float("nan")] * 2352},
        {"data": [float("inf")] * 2352},
        {"data": [7.0] * 2352},
        {"data": [0.5] * 5},
        {"data": ["word"] * 2352},
        {"data": [[1], [2, 3]]},
        {"data": None},
        {"shape": [1, 3, -28, -28]},
        {"shape": [10**6, 3, 10**6, 10**6]},
        {"shape": [0, 3, 28, 28], "data": []},
        {"shape": []},
        {"shape": [1, 4, 28, 21]},
        {"datatype": "BYTES"},
        {"parameters": {"binary_data_size": 10**9}},
        {"parameters": {"binary_data_size": "many"}},
    ):
        response = infer(client, **changes)
        assert response.status_code == 422 and "Expected" in response.json()["error"], changes
    assert client.get("/v1/state").json()["version"] == version
    headers = {"Inference-Header-Content-Length": "999999"}
    assert client.post("/v2/models/driftgate/infer", content=b"{}", headers=headers).status_code == 422
    assert client.post("/v2/models/other/infer", content=b"{}").status_code == 404
