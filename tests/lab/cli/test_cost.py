"""``driftgate cost``: the efforts on one's own model, and which one fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.cli.commands import answer, refused, run

from driftgate import SourceModel


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "source.safetensors"
    SourceModel.build("cnn", ["a", "b", "c"], input_size=(16, 16), weights="none").save(path)
    return path


def test_it_measures_and_chooses(model: Path) -> None:
    told = answer("cost", "--model", model, "--batch-size", 32, "--rounds", 2, "--budget-mib", 0.001)
    assert [row["effort"] for row in told["costs"]] == ["inference", "full", "full in low memory", "light", "frozen"]
    assert told["method"] == "gmm" and told["batch_size"] == 32
    assert told["choice"] is None and not any(row["fits"] for row in told["costs"])


def test_a_person_reads_which_fits(model: Path) -> None:
    network = ["--method", "tent", "--batch-size", 32, "--rounds", 1, "--budget-seconds", 1000]
    result = run("cost", "--model", model, *network)
    assert result.exit_code == 0, result.output
    assert "effort='full' fits: about" in result.output and "frames a second" in result.output


def test_what_cannot_be_measured_is_refused(model: Path) -> None:
    command = ("cost", "--model", model)
    assert "no efforts" in refused(*command, "--method", "source-only")
    assert "no setting 'no'" in refused(*command, "--set", "no=1")
    assert "no such file" in refused(*command, "--model", model.parent / "none")
