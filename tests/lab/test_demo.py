"""The demo as a user runs it, cut short, and its picture; figures as a user draws them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from lab.cli.commands import answer, run
from matplotlib.figure import Figure
from PIL import Image
from synthetic_runs import decay_study, sweep, write_runs

from driftgate.lab import figures
from driftgate.lab.bench.results import read_results
from driftgate.lab.demo import summarise
from driftgate.lab.figures.style import spread
from driftgate.memory import StreamingGMM
from driftgate.rng import seeded
from driftgate.types import UNKNOWN

METHODS = ("source-only", "bn-stats", "gmm")


def test_the_demo(tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    command = ["demo", "--seeds", 1, "--limit", 3, "--out", tmp_path]
    summary = answer(*command)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary and set(summary) == {"PDA", "ODA", "OPDA"}
    both = {"best_threshold_score", "first_half", "second_half"}
    open_set = {"h_score", "known_accuracy", "unknown_accuracy", "auroc"}
    records = sorted((tmp_path / "records").glob("*.json"))
    assert len(records) == len(METHODS) * 3
    for path in records:
        record = json.loads(path.read_text())
        metrics = summary[record["shift"]][record["method"]]
        assert tuple(summary[record["shift"]]) == METHODS
        assert set(metrics) == both | ({"accuracy"} if record["shift"] == "PDA" else open_set)
        assert metrics[record["score"]] == pytest.approx(record["metrics"][record["score"]])
        assert record["protocol"]["seed"] == record["settings"]["seed"] == 0 and record["protocol"]["batches"] == 3
        assert (record["state_bytes"] > 0) == (record["method"] == "gmm")
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.width > 1200 and picture.height > 1200
        present = {color for _, color in picture.convert("RGB").getcolors(maxcolors=1 << 24) or []}
    assert {(0xC8, 0x28, 0x3C), (0x3B, 0x7D, 0xD8), (0x7D, 0x84, 0x8E)} <= present  # a line for every method
    again = run(*command)  # everything is there: only the table is printed
    for word in ("PDA accuracy", "ODA H-score", "OPDA H-score", "source-only", "bn-stats", "gmm", "threshold"):
        assert word in again.stdout


def test_means_are_taken_over_seeds_and_leave_out_what_is_missing() -> None:
    runs = pd.DataFrame({"shift": "ODA", "method": "gmm", "h_score": [20.0, 60.0], "auroc": [np.nan, 90.0]})
    for column in ("accuracy", "known_accuracy", "unknown_accuracy", "best_threshold", "first_half", "second_half"):
        runs[column] = 50.0 if column in {"accuracy", "first_half"} else np.nan
    assert summarise(runs) == {"ODA": {"gmm": pytest.approx({"h_score": 0.4, "auroc": 0.9, "first_half": 0.5})}}


def test_a_view_pins_the_means_and_projects_the_covariances() -> None:
    generator = seeded(0)
    classes, dim = 4, 6
    centers = 3.0 * torch.randn(classes, dim, generator=generator)
    labels = torch.arange(classes).repeat_interleave(400)
    features = centers[labels] + torch.randn(len(labels), dim, generator=generator)
    mixture = StreamingGMM(classes, dim, decay=1.0)
    mixture.update(features, torch.nn.functional.one_hot(labels).double())
    labels[labels == 3] = UNKNOWN
    view = figures.project_mixture(mixture, features, labels, ("a", "b", "c", "d"))
    shown = view.means[:3]
    assert np.linalg.norm(shown, axis=1) == pytest.approx(np.ones(3), abs=1e-6)
    sides = np.linalg.norm(shown - np.roll(shown, 1, axis=0), axis=1)
    assert sides == pytest.approx(np.full(3, np.sqrt(3.0)), abs=1e-6)
    for index in range(3):
        points = view.points[view.labels == index]
        assert points.mean(axis=0) == pytest.approx(view.means[index], abs=1e-4)
        assert np.cov(points.T, bias=True) == pytest.approx(view.covariances[index], abs=1e-4)


def test_every_figure_takes_a_frame_and_returns_a_figure(tmp_path: Path) -> None:
    (suite,) = read_results([write_runs(tmp_path / "runs", sweep(METHODS, ("ODA",)) + decay_study())])
    drawn = (figures.curves(suite.main), figures.samples_used(suite.main), figures.study(suite.studies["decay"], "d"))
    for figure in (*drawn, figures.memory([1000])):
        assert isinstance(figure, Figure)
        figures.save_figure(figure, tmp_path / "figure.png")
        with Image.open(tmp_path / "figure.png") as picture:
            assert picture.width > 700


def test_labels_keep_their_distance_and_order() -> None:
    placed = spread([50.0, 50.1, 99.0, 50.2], 5.0, 0.0, 100.0)
    assert all(above - below > 4.5 for below, above in pairwise(sorted(placed)))
    assert placed[0] < placed[1] < placed[3] < placed[2] <= 100.0 and spread([], 5.0, 0.0, 100.0) == []


def test_the_front_of_cost_and_score() -> None:
    costs = pd.DataFrame(
        {"bytes": [0, 9, 9, 20], "score": [50, 40, 60, 60], "half": 0.0, "source_free": True}, index=[*"abcd"]
    )
    figure = figures.cost(costs.astype({"bytes": float}), "bytes", "title", "bytes", lambda value: f"{value:g}")
    front = figure.axes[0].lines[0]
    assert list(front.get_ydata()) == [50, 60], "nobody scores higher at this cost or less"
