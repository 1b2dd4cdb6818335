"""``driftgate cost``: the efforts on one's own model, and which one fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from driftgate import SourceModel
from driftgate.lab.cli import app


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "source.safetensors"
    SourceModel.build("cnn", ["a", "b", "c"], input_size=(16, 16), weights="none").save(path)
    return path


def test_it_measures_and_chooses(model: Path) -> None:
    arguments = ["cost", "--model", str(model), "--batch-size", "32", "--rounds", "2", "--budget-mib", "0.001"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [row["effort"] for row in told["costs"]] == ["inference", "full", "full in low memory", "light", "frozen"]
    assert told["method"] == "gmm" and told["batch_size"] == 32
    assert told["choice"] is None and not any(row["fits"] for row in told["costs"])


def test_a_person_reads_which_fits(model: Path) -> None:
    network = ["--method", "tent", "--batch-size", "32", "--rounds", "1", "--budget-seconds", "1000"]
    result = CliRunner().invoke(app, ["cost", "--model", str(model), *network])
    assert result.exit_code == 0, result.output
    assert "effort='full' fits: about" in result.output and "frames a second" in result.output


def test_what_cannot_be_measured_is_refused(model: Path) -> None:
    for arguments, words in (
        (["--method", "source-only"], "no efforts"),
        (["--set", "no=1"], "no setting 'no'"),
        (["--model", str(model.parent / "none")], "none"),
    ):
        result = CliRunner().invoke(app, ["cost", "--model", str(model), *arguments])
        assert result.exit_code == 2, result.output
        assert words in result.output.replace("\n", " ")
