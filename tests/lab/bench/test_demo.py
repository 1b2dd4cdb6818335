from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from driftgate.lab.bench.chart_layout import spread
from driftgate.lab.bench.demo import METHODS, DemoRun, costs, run_demo, summarise
from driftgate.lab.bench.figures import memory_figure, project_mixture
from driftgate.lab.cli import app
from driftgate.memory import StreamingGMM
from driftgate.rng import seeded
from driftgate.shifts import Shift
from driftgate.stream import RunResult, StreamLog
from driftgate.types import UNKNOWN, DriftgateError

pytest.importorskip("mlxtend")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The command as a user runs it, cut short: folder, stdout, stderr."""
    out = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(app, ["demo", "--seeds", "1", "--limit", "3", "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    return out, result.stdout, result.stderr


def test_summary_has_every_shift_and_method(demo: tuple[Path, str, str]) -> None:
    out, stdout, _ = demo
    summary = json.loads((out / "summary.json").read_text())
    assert json.loads(stdout) == summary
    assert set(summary) == {"PDA", "ODA", "OPDA"}
    both = {"best_threshold_score", "first_half", "second_half"}
    open_set = {"h_score", "h_score_released", "known_accuracy", "unknown_accuracy", "auroc"}
    for shift, methods in summary.items():
        assert tuple(methods) == METHODS
        for metrics in methods.values():
            assert set(metrics) == both | ({"accuracy"} if shift == "PDA" else open_set)
            assert all(0.0 <= value <= 1.0 for value in metrics.values())


def test_summary_agrees_with_the_records(demo: tuple[Path, str, str]) -> None:
    out, stdout, _ = demo
    summary = json.loads(stdout)
    records = sorted((out / "records").glob("*.json"))
    assert len(records) == len(METHODS) * len(Shift)
    for path in records:
        record = json.loads(path.read_text())
        row = summary[record["protocol"]["shift"]][record["method"]]
        assert row[record["score"]] == record["metrics"][record["score"]]
        assert record["protocol"]["seed"] == record["settings"]["seed"] == 0
        assert record["protocol"]["batches"] == 3
        assert set(record["definitions"]) == set(record["metrics"])
        assert record["seconds"]["total"] > 0 and record["peak_memory_bytes"] >= 0
        assert {"torch", "driftgate", "python"} <= set(record["versions"])
        assert (record["state_bytes"] > 0) == (record["method"] == "gmm")


def test_picture_is_whole_and_nothing_else_is_left(demo: tuple[Path, str, str]) -> None:
    out, _, stderr = demo
    with Image.open(out / "demo.png") as picture:
        picture.load()
        assert picture.width > 1200 and picture.height > 1200
        colors = picture.convert("RGB").getcolors(maxcolors=1 << 24) or []
    present = {color for _, color in colors}
    for expected in ((0xC8, 0x28, 0x3C), (0x3B, 0x7D, 0xD8), (0x8D, 0x93, 0x9C)):  # a line for every method
        assert expected in present
    assert {path.name for path in out.iterdir()} == {"demo.png", "records", "summary.json"}
    assert "OPDA  seed 0  gmm" in stderr


def test_a_table_is_printed_without_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_demo(seeds=1, limit=1)
    monkeypatch.setattr("driftgate.lab.bench.demo.run_demo", lambda **_: result)
    printed = CliRunner().invoke(app, ["demo", "--seeds", "1", "--out", str(tmp_path)])
    assert printed.exit_code == 0
    for word in ("PDA accuracy", "ODA H-score", "OPDA H-score", "source-only", "bn-stats", "gmm", "threshold"):
        assert word in printed.stdout


def test_means_are_taken_over_seeds_and_leave_out_what_is_missing() -> None:
    def run(seed: int, score: float, auroc: float | None, seconds: float) -> DemoRun:
        record = {
            "score": "h_score",
            "metrics": {"accuracy": 0.0, "h_score": score, "auroc": auroc},
            "halves": [score, 0.5],
            "seconds": {"median_per_batch": seconds},
            "state_bytes": 7,
        }
        return DemoRun(Shift.ODA, "gmm", seed, RunResult(record, StreamLog()))

    runs = [run(0, 0.2, None, 0.1), run(1, 0.6, 0.9, 0.3)]
    row = summarise(runs)["ODA"]["gmm"]
    assert row == pytest.approx({"h_score": 0.4, "auroc": 0.9, "first_half": 0.4, "second_half": 0.5})
    assert costs(runs) == {("ODA", "gmm"): (pytest.approx(200.0), 7)}


def test_no_seed_is_refused() -> None:
    with pytest.raises(DriftgateError, match="at least one seed"):
        run_demo(seeds=0)


def test_a_view_pins_the_means_and_projects_the_covariances() -> None:
    generator = seeded(0)
    classes, dim = 4, 6
    centers = 3.0 * torch.randn(classes, dim, generator=generator)
    labels = torch.arange(classes).repeat_interleave(400)
    features = centers[labels] + torch.randn(len(labels), dim, generator=generator)
    mixture = StreamingGMM(classes, dim, decay=1.0)
    mixture.update(features, torch.nn.functional.one_hot(labels).double())
    labels[labels == 3] = UNKNOWN
    view = project_mixture(mixture, features, labels, ("a", "b", "c", "d"))
    shown = view.means[:3]
    assert np.linalg.norm(shown, axis=1) == pytest.approx(np.ones(3), abs=1e-6)
    sides = np.linalg.norm(shown - np.roll(shown, 1, axis=0), axis=1)
    assert sides == pytest.approx(np.full(3, np.sqrt(3.0)), abs=1e-6)
    for index in range(3):
        points = view.points[view.labels == index]
        assert points.mean(axis=0) == pytest.approx(view.means[index], abs=1e-4)
        assert np.cov(points.T, bias=True) == pytest.approx(view.covariances[index], abs=1e-4)


def test_labels_are_moved_apart_in_order() -> None:
    placed = spread([50.0, 50.5, 49.0, 90.0], 10.0)
    assert sorted(range(4), key=placed.__getitem__) == [2, 0, 1, 3]
    assert min(np.diff(sorted(placed))) >= 10.0 - 1e-6
    assert placed[3] == 90.0


def test_memory_figure_takes_any_number_of_classes(tmp_path: Path) -> None:
    memory_figure(tmp_path / "memory.png", marked=[1000])
    with Image.open(tmp_path / "memory.png") as picture:
        assert picture.width > 800
    assert [path.name for path in tmp_path.iterdir()] == ["memory.png"]
