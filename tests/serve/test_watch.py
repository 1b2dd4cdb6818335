"""``driftgate watch``: pictures that arrive in a folder are answered once, with the state kept between two watches."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from servesupport import picture, small_model
from typer.testing import CliRunner

from driftgate.lab.cli import app


@pytest.fixture
def camera(tmp_path: Path) -> Path:
    folder = tmp_path / "camera"
    folder.mkdir()
    return folder


def arrive(folder: Path, names: range) -> None:
    """Pictures that were written a minute ago: whoever follows the folder need not wait for their end."""
    for number in names:
        path = folder / f"{number:03d}.png"
        path.write_bytes(picture(number))
        os.utime(path, (time.time() - 60, time.time() - 60))


def test_every_picture_is_answered_once(tmp_path: Path, camera: Path) -> None:
    small_model().save(tmp_path / "model.safetensors")
    command = ["watch", camera, "--model", tmp_path / "model.safetensors", "--state", tmp_path / "state"]
    command += ["--out", tmp_path / "labels.jsonl", "--idle", "0"]
    arrive(camera, range(20))
    (camera / "broken.png").write_bytes(b"no picture")
    os.utime(camera / "broken.png", (1, 1))
    first = CliRunner().invoke(app, [str(part) for part in command])
    assert first.exit_code == 0, first.output
    # As a kill would leave it: the last line cut off.
    lines = (tmp_path / "labels.jsonl").read_text().splitlines()
    assert len(lines) == 20
    (tmp_path / "labels.jsonl").write_text("\n".join(lines)[:-5])
    arrive(camera, range(20, 40))
    second = CliRunner().invoke(app, [str(part) for part in command])
    assert second.exit_code == 0, second.output
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert sorted(row["file"] for row in rows) == [f"{number:03d}.png" for number in range(40)]
    assert rows[0]["version"] == "1.0" and rows[-1]["version"] == "2.1"
    assert {row["name"] for row in rows} <= {"cat", "dog", "owl", "unknown"}


def test_without_a_model_it_says_so(camera: Path) -> None:
    result = CliRunner().invoke(app, ["watch", str(camera)])
    assert result.exit_code == 2
