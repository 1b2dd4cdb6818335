"""The app on Ray Serve: predictors answer, the learner's states reach them, and either may be killed.

Skipped where Ray Serve is not whole.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from servesupport import picture, small_method, small_model, start_command

import driftgate
from driftgate.serve.decode import Pixels, decode
from driftgate.serve.state_folder import STATE, StateFolder

pytest.importorskip("ray.serve", exc_type=ImportError)

PATIENCE = 200.0
"""Seconds for what takes few where the machine is not busy: a process that starts reads torch and Ray."""
MARK = "DRIFTGATE_TEST_OF_RAY"
"""In the environment of all that these tests start."""
PICTURES = 20


def until(found: Callable[[], Any]) -> Any:
    """What ``found`` gives, once it is something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.1)
    raise AssertionError("waited too long")


class Cluster:
    """``driftgate serve --ray`` and a client of it."""

    def __init__(self, folder: Path) -> None:
        self.state, self.log, self.mark = folder / "state", folder / "log", secrets.token_hex(8)
        small_model().save(folder / "model.safetensors")
        options = ("--ray", "--publish-every", "2", "--save-every", "1", "--max-delay", "50")
        surroundings = {"RAY_ADDRESS": "local", MARK: self.mark}
        self.command, self.client = start_command(
            folder / "model.safetensors", self.state, self.log, *options, **surroundings
        )
        self.asked = self.refused = 0

    def processes(self, deployment: str) -> set[int]:
        """Process ids of the replicas of a deployment that this command has started."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                name, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            except OSError:
                continue
            if f"ServeReplica:driftgate:{deployment}".encode() in name and self.mark.encode() in environment:
                found.add(int(folder.name))
        return found

    def ask(self) -> list[dict[str, Any]]:
        """Answers to a request of new pictures; none if it was not answered."""
        self.asked += 1
        files = [("images", (f"{n}.png", picture(1000 * self.asked + n))) for n in range(PICTURES)]
        response = self.client.post("/v1/classify", files=files)
        if response.status_code != 200:
            self.refused += 1
            return []
        answers: list[dict[str, Any]] = response.json()["answers"]
        assert len(answers) == PICTURES and all("label" in answer for answer in answers)
        return answers

    def version(self) -> tuple[int, int]:
        """Life and steps of the state that answers."""
        life, steps = until(self.ask)[0]["version"].split(".")
        return int(life), int(steps)

    def told(self) -> Any:
        """What the learner says of itself, if it is there."""
        response = self.client.get("/v1/state")
        assert response.status_code in (200, 503)
        return response.json() if response.status_code == 200 else None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("ray"))
    try:
        yield started
    finally:
        started.client.close()
        if started.command.poll() is None:
            started.command.terminate()
            try:
                started.command.wait(timeout=60)
            except subprocess.TimeoutExpired:
                started.command.kill()


def test_predictors_answer_and_take_the_states_of_the_learner(cluster: Cluster) -> None:
    assert len(cluster.processes("Predictor")) == 2 and len(cluster.processes("Learner")) == 1
    assert cluster.version() == (1, 0)
    until(lambda: cluster.version()[1] >= 4)
    assert cluster.refused == 0
    # All that was answered reaches the learner.
    until(lambda: cluster.told()["totals"]["samples"] == PICTURES * cluster.asked)
    steps = cluster.told()["steps"]
    assert 0 <= steps - cluster.version()[1] <= 2 + 1  # published every two steps; the last request made one more


def test_the_other_paths_are_those_of_the_learner(cluster: Cluster) -> None:
    client = cluster.client
    assert client.get("/").text.startswith("<!doctype html>")
    assert "driftgate_steps_total" in client.get("/metrics").text
    assert "/v1/rollback/{snapshot_id}" in client.get("/openapi.json").json()["paths"]
    assert client.get("/nowhere").status_code == 404
    with client.stream("GET", "/v1/events") as events:
        assert next(events.iter_lines()).startswith('data: {"name": "driftgate"')
    answer = until(cluster.ask)[0]
    given = until(lambda: client.post("/v1/feedback", json={"id": answer["id"], "label": answer["name"]}).json())
    assert given["right"]
    tensor = {"name": "input", "shape": [1, 3, 28, 28], "datatype": "FP32", "data": [0.5] * 2352}
    inferred = client.post("/v2/models/driftgate/infer", json={"inputs": [tensor]})
    assert inferred.json()["outputs"][0]["name"] == "label"
    assert client.post("/v1/classify", content=b"no", headers={"Content-Type": "image/png"}).status_code == 415


def test_predictors_answer_as_the_state_whose_version_they_name(cluster: Cluster) -> None:
    cluster.client.post("/v1/freeze").raise_for_status()

    def answers_of_the_newest() -> list[dict[str, Any]]:
        answers = cluster.ask()
        return answers if answers[0]["version"] == cluster.told()["version"] else []

    answers = until(answers_of_the_newest)
    assert all(answer["learned_from"] is None for answer in answers)
    # Saved after each step, and frozen since: the file is the state that has answered.
    saved = driftgate.load(cluster.state / STATE)
    assert saved.steps == int(answers[0]["version"].partition(".")[2])
    pictures = [decode(picture(1000 * cluster.asked + n), saved.model, Pixels(10**6)) for n in range(PICTURES)]
    expected = saved.predict(torch.stack(pictures))
    assert [answer["label"] for answer in answers] == expected.labels.tolist()
    assert [answer["novelty"] for answer in answers] == pytest.approx(expected.novelty.tolist(), abs=1e-6)
    cluster.client.post("/v1/thaw").raise_for_status()


def test_a_way_back_reaches_all_predictors(cluster: Cluster) -> None:
    life = cluster.version()[0]
    cluster.client.post("/v1/rollback/0").raise_for_status()
    # Ten in a row, so that both have been asked.
    until(lambda: all(cluster.version()[0] > life for _ in range(10)))


def test_a_predictor_may_die(cluster: Cluster) -> None:
    before, refused = cluster.processes("Predictor"), cluster.refused
    killed = before.pop()
    os.kill(killed, signal.SIGKILL)
    for _ in range(20):
        cluster.ask()
    assert cluster.refused - refused <= 1  # the one it had in its hands, if any
    until(lambda: len(cluster.processes("Predictor") - {killed}) == 2)
    assert cluster.ask()


def test_the_learner_may_die(cluster: Cluster) -> None:
    until(lambda: cluster.version()[1] >= 4)
    life, refused = cluster.version()[0], cluster.refused
    (learner,) = cluster.processes("Learner")
    os.kill(learner, signal.SIGKILL)
    for _ in range(20):
        assert cluster.ask()
    assert cluster.refused == refused
    until(lambda: cluster.version()[0] > life)  # the state of the next learner has come
    told = until(cluster.told)
    assert told["steps_lost_at_start"] <= 1 and told["problems"] == []
    steps = cluster.version()[1]
    assert steps >= 4
    until(lambda: cluster.version()[1] > steps)


def test_asked_to_stop_it_saves(cluster: Cluster) -> None:
    steps = cluster.version()[1]
    cluster.command.send_signal(signal.SIGTERM)
    assert cluster.command.wait(timeout=PATIENCE) == 0, cluster.log.read_text()
    folder = StateFolder(cluster.state)
    assert folder.start(small_method()).steps >= steps and folder.lost == 0
    folder.close()
    until(lambda: not cluster.processes("Predictor") | cluster.processes("Learner"))
    with pytest.raises(httpx.TransportError):
        cluster.client.get("/v2/health/live")
