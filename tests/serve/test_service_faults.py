"""What must not hurt: kills at the worst moment, a clock set back, a service started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from servesupport import free_port, picture, samples, small_method, small_model, start_command

from driftgate.serve.engine import Engine, EngineSettings
from driftgate.serve.keeper import open_door
from driftgate.serve.state_folder import StateFolder
from driftgate.types import DriftgateError

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("where", "lost"),
    [("step", 1), ("save", 2), ("rename", 2), ("rollback", 0), ("full", 3)],
)
def test_a_kill_loses_no_more_than_the_steps_since_the_last_save(tmp_path: Path, where: str, lost: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
    died = subprocess.run(
        [sys.executable, HERE / "dying.py", tmp_path, where], env=environment, timeout=280, check=False
    )
    assert died.returncode == -signal.SIGKILL
    folder = StateFolder(tmp_path)
    method = folder.start(small_method())
    with Engine(method, folder, EngineSettings(max_delay=0.0)) as engine:
        answers = engine.submit(samples(16, seed=9)).result(timeout=120)
    assert folder.lost == lost and folder.problems == []
    assert [snapshot.steps for snapshot in engine.snapshots] == [0, 4]
    # As if those steps had never been: the answers of a run that was not killed.
    whole = small_method()
    for seed in range(4):
        whole.step(samples(16, seed))
    assert [answer.novelty for answer in answers] == whole.step(samples(16, seed=9)).novelty.tolist()


def test_a_clock_set_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]

    def backwards() -> float:
        now[0] -= 3600.0
        return now[0]

    monkeypatch.setattr(time, "time", backwards)
    folder = StateFolder(tmp_path)
    with Engine(folder.start(small_method()), folder, EngineSettings(max_delay=0.05)) as engine:
        for seed in range(3):
            engine.submit(samples(20, seed)).result(timeout=120)
            engine.snapshot("an hour earlier each time").result(timeout=120)
        assert [snapshot.id for snapshot in engine.snapshots] == [0, 1, 2, 3]
        engine.rollback(2, "test").result(timeout=120)
        assert engine.method.steps == 2


def test_the_command_goes_on_after_a_kill_and_saves_when_it_is_asked_to_stop(tmp_path: Path) -> None:
    model, state, log = tmp_path / "model.safetensors", tmp_path / "state", tmp_path / "log"
    small_model().save(model)
    service, client = start_command(model, state, log, "--save-every", "2", "--no-revive")
    files = [("images", (f"{seed}.png", picture(seed))) for seed in range(20)]
    for _ in range(3):
        assert client.post("/v1/classify", files=files).status_code == 200
    while client.get("/v1/state").json()["totals"]["steps"] < 3:  # counted once they are noted
        time.sleep(0.05)
    service.kill()
    service.wait()
    service, client = start_command(model, state, log, "--save-every", "2")
    assert "1 steps were not saved" in log.read_text()
    told = client.get("/v1/state").json()
    assert told["steps"] == 2 and told["steps_lost_at_start"] == 1 and told["version"] == "2.2"
    second = subprocess.run(
        [sys.executable, "-m", "driftgate", "serve", "--model", model, "--state", state, "--port", str(free_port())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert second.returncode == 2 and "another service uses" in second.stderr
    client.post("/v1/classify", files=files)
    service.send_signal(signal.SIGTERM)
    assert service.wait(timeout=120) == 0
    folder = StateFolder(state)
    assert folder.start(small_method()).steps == 3 and folder.lost == 0
    folder.close()


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_a_killed_service_is_back_at_once_and_who_came_meanwhile_is_answered(tmp_path: Path) -> None:
    model, state, log = tmp_path / "model.safetensors", tmp_path / "state", tmp_path / "log"
    small_model().save(model)
    keeper, client = start_command(model, state, log, "--save-every", "2")
    port = client.base_url.port
    files = [("images", (f"{seed}.png", picture(seed))) for seed in range(40)]
    for _ in range(2):
        assert client.post("/v1/classify", files=files).status_code == 200
    while client.get("/v1/state").json()["totals"]["steps"] < 2:
        time.sleep(0.05)
    client.close()  # or a connection that the dead one held would be used again
    (service,) = children(keeper.pid)
    os.kill(service, signal.SIGKILL)
    assert client_of(port).post("/v1/classify", files=files).status_code == 200  # never refused
    told = client_of(port).get("/v1/state").json()
    assert told["version"].startswith("2.") and children(keeper.pid) != [service]
    assert "killed by SIGKILL" in log.read_text()
    # Whoever kills the keeper kills the service: door and state are free for the next.
    (service,) = children(keeper.pid)
    keeper.kill()
    keeper.wait()
    while Path(f"/proc/{service}").exists() and Path(f"/proc/{service}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    keeper, client = start_command(model, state, log)
    assert client.get("/v1/state").json()["version"].startswith("3.")
    keeper.send_signal(signal.SIGINT)
    assert keeper.wait(timeout=120) == 0


def client_of(port: int | None) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)


def test_a_service_that_dies_at_every_start_is_given_up(tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "from driftgate.serve.keeper import go_on_in_a_kept_process\n"
        "go_on_in_a_kept_process()\n"
        "print('started', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGABRT)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stdout.split() == ["started"] * 3
    assert "killed 3 times within 5 s, last by SIGABRT" in done.stderr


def test_who_asks_the_keeper_to_stop_while_the_service_dies_is_heard() -> None:
    script = (
        "import os, signal\n"
        "from driftgate.serve.keeper import go_on_in_a_kept_process\n"
        "go_on_in_a_kept_process()\n"
        "print('started', flush=True)\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["started"]  # not started again
    assert done.returncode in (128 + signal.SIGTERM, 128 + signal.SIGKILL)


@pytest.mark.parametrize(("end", "code"), [("raise SystemExit(7)", 7), ("pass", 0), ("1 / 0", 1)])
def test_a_service_that_ends_by_itself_is_not_started_again(end: str, code: int) -> None:
    script = f"from driftgate.serve.keeper import go_on_in_a_kept_process as go_on\ngo_on()\nprint('here')\n{end}\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-u", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code and done.stdout.split() == ["here"]


def test_a_door_that_is_taken_is_refused_in_a_line() -> None:
    with open_door("127.0.0.1", 0) as door, pytest.raises(DriftgateError, match="choose another --port"):
        open_door("127.0.0.1", door.getsockname()[1])
