"""``adapt --guard`` and ``export`` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from lab.cli.commands import adapt_command, answer, refused, run

from driftgate import create
from driftgate.export import run_exported
from driftgate.methods import load_method
from driftgate.models import SourceModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "source.safetensors"
    SourceModel.build("cnn", ("ape", "bee", "cat")).save(path)
    return path


def test_the_record_holds_what_the_guard_did(tree: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run(*adapt_command(tree, model, "--method", "tent", "--guard", "--out", out))
    assert result.exit_code == 0, result.output
    assert "all was well" in " ".join(result.stdout.split())
    guard = json.loads((out / "record.json").read_text())["guard"]
    assert guard["alarms"] == 0 and guard["mode"] == "learning" and guard["settings"]["keep"] == 8
    assert (out / "guard" / "start.safetensors").exists()
    assert "Expected no snapshots" in refused(*adapt_command(tree, model, "--method", "tent", "--guard", "--out", out))


def test_guarded_runs_without_alarm_are_the_runs_without_guard(tree: Path, model: Path) -> None:
    plain, guarded = (answer(*adapt_command(tree, model, "--method", "tent", *more)) for more in ([], ["--guard"]))
    assert "guard" not in plain and plain["metrics"] == guarded["metrics"] and plain["series"] == guarded["series"]


def test_a_guarded_run_cannot_be_resumed(tree: Path, model: Path, tmp_path: Path) -> None:
    assert "--guard without --resume" in refused(
        *adapt_command(tree, model, "--method", "tent", "--guard", "--out", tmp_path, "--resume")
    )


def test_export_writes_a_network_and_tells_how_well_it_agrees(tree: Path, model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "adapted.safetensors"
    method = create("bn-stats", SourceModel.load(model))
    method.step(torch.rand(8, 3, 28, 28, generator=torch.Generator().manual_seed(0)))
    method.save(saved)
    report = answer("export", saved, "--sample", tree)
    assert report["path"] == str(saved.with_suffix(".onnx")) and report["samples"] == 96
    assert "running statistics" in report["approximation"] and 0.0 <= report["agreement"] <= 1.0
    images = torch.rand(5, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = load_method(saved).model(images).logits.softmax(dim=1)
    assert torch.allclose(run_exported(saved.with_suffix(".onnx"), "onnx", images)[1], expected, atol=1e-4)
    text = run("export", saved, "--to", "torchscript", "--out", tmp_path / "network.pt")
    assert text.exit_code == 0 and "running statistics" in " ".join(text.stdout.split())
    assert "--sample" in text.stderr and (tmp_path / "network.pt").exists()


def test_export_refuses_mistakes_and_writes_nothing(model: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "network")
    assert "there is no such file" in refused("export", tmp_path / "none.safetensors", *out)
    assert "kind 'method'" in refused("export", model, *out)
    assert "onnx, torchscript, torch" in refused("export", model, "--to", "tflite", *out)
    assert not list(tmp_path.iterdir())
