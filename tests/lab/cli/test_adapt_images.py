"""``driftgate adapt --images``: rows, logs, an own network, pictures that come while it runs."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.bench.sweeps import wait_for
from lab.cli import commands
from PIL import Image

import driftgate
from driftgate import UNKNOWN, SourceModel
from driftgate.lab.data.pictures import PictureFolder
from driftgate.methods import load_method

NETWORK = """
from torch import nn
import torch

import driftgate

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

def wrapped():
    return driftgate.wrap(build(), ["ape", "bee", "cat"], input_size=(16, 16), mean=0.5, std=0.25)

def number():
    return 3
"""


run, refused = partial(commands.run, "adapt"), partial(commands.refused, "adapt")


def draw(path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    Image.fromarray(random.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
    os.utime(path, (1e9 + seed, 1e9 + seed))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty pictures whose names and ages go opposite ways, and a broken one."""
    path = tmp_path / "pictures"
    path.mkdir()
    for seed in range(20):
        draw(path / f"{30 - seed}.png", seed)
    (path / "broken.png").write_bytes(b"no picture")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    SourceModel.build("cnn", ["ape", "bee", "cat"], input_size=(16, 16)).save(path)
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_a_picture_says_what_the_library_says(folder: Path, model: Path, tmp_path: Path) -> None:
    out, saved = tmp_path / "out.csv", tmp_path / "saved.safetensors"
    more = ("--predictions", out, "--batch-size", 8, "--set", "min_batch=1", "--save", saved, "--out", tmp_path / "run")
    result = run("--images", folder, "--model", model, *more, "--log", f"csv:{tmp_path / 'steps.csv'}", "--json")
    assert result.exit_code == 0, result.output
    record, rows = json.loads(result.stdout), read(out)
    assert list(rows[0]) == ["file", "label", "name", "probability", "novelty", "threshold", "learned"]
    assert [row["file"] for row in rows] == [f"{30 - seed}.png" for seed in range(20)], "newest last"

    names = ("ape", "bee", "cat")
    method = driftgate.create("gmm", SourceModel.load(model), min_batch=1)
    batches = list(PictureFolder(folder, method.model.spec, batch_size=8))
    said = [method.step(batch["images"]) for batch in batches]
    labels = torch.cat([prediction.labels for prediction in said]).tolist()
    learned = torch.cat([prediction.pseudo_labels for prediction in said]).tolist()
    assert [int(row["label"]) for row in rows] == labels
    assert [row["name"] for row in rows] == ["unknown" if label == UNKNOWN else names[label] for label in labels]
    assert [row["learned"] for row in rows] == [
        {-1: "unknown", -2: ""}[label] if label < 0 else names[label] for label in learned
    ]
    assert any(row["learned"] for row in rows), "or the column says nothing"
    for column, values in (
        ("novelty", torch.cat([prediction.novelty for prediction in said])),
        ("probability", torch.cat([prediction.scores.amax(dim=1) for prediction in said])),
        ("threshold", torch.cat([torch.full((len(one),), one.thresholds.prediction) for one in said])),
    ):
        assert [float(row[column]) for row in rows] == pytest.approx(values.tolist(), rel=1e-5)

    assert (record["samples"], record["batches"], len(record["skipped"])) == (20, 3, 1)
    share = sum(label == UNKNOWN for label in labels) / 20
    assert record["without_labels"]["rejected_share"] == pytest.approx(share)
    assert "1 pictures could not be read" in result.stderr and "broken.png" in result.stderr
    assert json.loads((tmp_path / "run" / "record.json").read_text()) == record
    assert load_method(saved).steps == 3
    assert [row["step"] for row in read(tmp_path / "steps.csv")] == ["1", "2", "3"]


def test_it_prints_a_table(folder: Path, model: Path) -> None:
    result = run("--images", folder, "--model", model, "--method", "source-only")
    assert result.exit_code == 0 and "20 pictures in 1 batches, 1 skipped" in result.stdout


def test_it_goes_on_with_rows_and_method_and_repeats_no_picture(folder: Path, model: Path, tmp_path: Path) -> None:
    out, saved = tmp_path / "out.csv", tmp_path / "saved.safetensors"
    command = ("--images", folder, "--model", model, "--predictions", out, "--save", saved, "--batch-size", 8)
    assert run(*command).exit_code == 0
    assert "--resume" in refused(*command)
    draw(folder / "later.png", 99)
    assert run(*command, "--resume").exit_code == 0
    assert [row["file"] for row in read(out)][-2:] == ["11.png", "later.png"] and len(read(out)) == 21
    assert load_method(saved).steps == 4
    assert "give the same options" in refused(*command, "--resume", "--set", "lr=0.5")


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_networks.py").write_text(NETWORK)
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)
    return f"{tmp_path}/my_networks.py"


def test_a_network_of_ones_own(folder: Path, network: str, tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out.csv"
    command = ("--images", folder, "--method", "source-only", "--network", f"{network}:build")
    named = ("--class-names", "ape, bee,cat", "--input-size", 16)
    assert run(*command, *named, "--predictions", out).exit_code == 0
    assert {row["name"] for row in read(out)} <= {"ape", "bee", "cat", "unknown"}
    (tmp_path / "names.txt").write_text("dog\nelk\nfox\n")
    other = tmp_path / "other.csv"
    assert run(*command, "--class-names", tmp_path / "names.txt", *named[2:], "--predictions", other).exit_code == 0
    assert {row["name"] for row in read(other)} <= {"dog", "elk", "fox", "unknown"}
    ready = ("--images", folder, "--method", "source-only", "--network", f"{network}:wrapped")
    assert run(*ready).exit_code == 0
    assert "has its own" in refused(*ready, "--class-names", "a,b,c")
    assert "input_size" in refused(*command)
    assert "return a network" in refused("--images", folder, "--network", f"{network}:number")
    assert "only with --network" in refused("--images", folder, "--model", model, "--class-names", "a,b,c")
    assert "--network my_module:build" in refused("--images", folder)


def test_the_weights_of_a_network_of_ones_own_from_a_file(folder: Path, network: str, tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    try:
        from my_networks import wrapped  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    trained = wrapped()
    with torch.no_grad():
        trained.network[-1].bias += torch.tensor([50.0, 0.0, 0.0])  # sure of the first class, whatever it sees
    trained.save(tmp_path / "weights.safetensors")
    command = ("--images", folder, "--method", "source-only", "--network", f"{network}:wrapped")
    assert (
        run(*command, "--model", tmp_path / "weights.safetensors", "--predictions", tmp_path / "o.csv").exit_code == 0
    )
    assert {row["name"] for row in read(tmp_path / "o.csv")} == {"ape"}


def test_mistakes_are_refused(folder: Path, model: Path, tmp_path: Path) -> None:
    command = ("--images", folder, "--model", model)
    assert "no --data, --split with --images" in refused(*command, "--data", "pacs", "--split", "2/1/1")
    assert "no --follow without --images" in refused("--model", model, "--follow")
    assert "Expected --data and --target but one is missing; give both, or --images" in refused("--model", model)
    assert "is none" in refused("--images", folder / "nowhere", "--model", model)
    assert "Expected a log out of" in refused(*command, "--log", "wandb:x")
    (tmp_path / "notes.csv").write_text("what,else\n")
    assert "Expected the columns file" in refused(*command, "--predictions", tmp_path / "notes.csv", "--resume")


def test_a_followed_folder_ends_by_ctrl_c_with_everything_saved(folder: Path, model: Path, tmp_path: Path) -> None:
    out, saved = tmp_path / "out.csv", tmp_path / "saved.safetensors"
    command = [sys.executable, "-m", "driftgate", "adapt", "--images", folder, "--follow", "--model", model]
    command += ["--predictions", out, "--save", saved, "--method", "bn-stats"]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: process.poll() is not None or (out.exists() and len(read(out)) == 20), 600)
        draw(folder / "later.png", 99)
        wait_for(lambda: process.poll() is not None or len(read(out)) == 21, 600)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "21 pictures" in printed and "1 pictures could not be read" in said
    assert read(out)[-1]["file"] == "later.png" and load_method(saved).steps == 2


def test_it_ends_by_itself_when_nothing_comes(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftgate.lab.data.pictures.LOOK_SECONDS", 0.0)
    result = run("--images", folder, "--model", model, "--method", "source-only", "--follow", "--idle", 0.1)
    assert result.exit_code == 0 and "20 pictures" in result.stdout
