"""The demo as a user runs it, cut short; figures as a user draws them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from lab.cli.commands import answer, run
from matplotlib.figure import Figure
from PIL import Image
from synthetic_runs import decay_study, sweep, write_runs

from driftgate.lab import figures
from driftgate.lab.bench.results import read_results
from driftgate.lab.figures.style import spread

METHODS = ("source-only", "bn-stats", "gmm")


def test_the_demo(tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    command = ["demo", "--seeds", 1, "--limit", 3, "--out", tmp_path]
    scores = answer(*command)["scores"]["suite"]
    assert set(scores) == {"PDA", "ODA", "OPDA"} and all(tuple(row) == METHODS for row in scores.values())
    assert len(list((tmp_path / "records").glob("*.json"))) == 9
    assert "Demo: rendered digits" in (tmp_path / "report.html").read_text()
    again = run(*command)  # everything is there: only the table is printed
    assert all(word in again.stdout for word in ("PDA", "ODA", "OPDA", *METHODS))
    assert "report.html" in again.stderr


def test_every_figure_takes_a_frame_and_returns_a_figure(tmp_path: Path) -> None:
    (suite,) = read_results([write_runs(tmp_path / "runs", sweep(METHODS, ("ODA",)) + decay_study())])
    drawn = (figures.curves(suite.main), figures.samples_used(suite.main), figures.study(suite.studies["decay"], "d"))
    for figure in drawn:
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


def test_where_nobody_costs_anything_there_is_a_picture_all_the_same() -> None:
    """As of source-only and bn-stats, which carry no state."""
    costs = pd.DataFrame({"bytes": [0.0, 0.0], "score": [50, 40], "half": 0.0, "source_free": True}, index=[*"ab"])
    figure = figures.cost(costs, "bytes", "title", "bytes", lambda value: f"{value:g}")
    assert figure.axes[0].get_xlim()[1] > 0.0
