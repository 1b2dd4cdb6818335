"""The share sweep and the tenths of long streams in a report: numbers, pictures, tables, and what is kept apart."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import record, write_runs

from driftgate.lab.bench.results import read_results
from driftgate.lab.data.orders import StreamShare
from driftgate.lab.report.details import long_streams, share_points
from driftgate.lab.report.page import write_report

SHARES = ("0", "0.3", "0.6", "0.9")
METHODS = ("source-only", "gmm")


def swept(
    method: str = "gmm",
    share: str = "0.3",
    seed: int = 0,
    *,
    score: float = 50.0,
    rejected: float = 0.4,
    estimated: float | None = None,
    shift: str = "OPDA",
    batches: int = 40,
    **protocol: Any,
) -> dict[str, Any]:
    """A record of a stream with a share of unknown samples that was asked for; ``score`` in per cent."""
    wanted = StreamShare.parse(share)
    document = record(
        method,
        shift,
        seed,
        score=score,
        batches=batches,
        tag=f"unknown{share}",
        protocol={"unknown_share": share, **protocol},
    )
    truth = np.linspace(wanted.start, wanted.end, batches)
    document["series"] |= {"true_share": truth.tolist(), "rejected_share": [rejected] * batches}
    document["shares"] = {"true": wanted.mean, "rejected": rejected}
    document["tenths"] = [score / 100.0] * 10
    if estimated is not None:
        document["series"]["estimated_share"] = [estimated] * batches
        document["shares"]["estimated"] = estimated
    if wanted.mean == 0:
        document |= {"score": "accuracy", "metrics": {"accuracy": score / 100.0}}
        document["protocol"] |= {"shift": "PDA", "split": "4/3/0"}
    return document


def sweep(shares: Sequence[str] = (*SHARES, "0->0.8"), seeds: int = 2) -> list[dict[str, Any]]:
    return [
        swept(
            method,
            share,
            seed,
            score=40 + 10 * place + seed,
            estimated=0.25 if method == "gmm" else None,
            batches=30 + number,
        )
        for number, share in enumerate(shares)
        for place, method in enumerate(METHODS)
        for seed in range(seeds)
    ]


def test_a_sweep_keeps_out_of_the_ordinary_tables(tmp_path: Path) -> None:
    ordinary = [record(method, "OPDA", seed) for method in METHODS for seed in range(2)]
    twice = swept("gmm", "0.3", 0, score=10.0, repeat=2)
    twice["id"] += "-twice"
    (suite,) = read_results([write_runs(tmp_path, [*ordinary, *sweep(), twice])])
    assert set(suite.main.id) == {document["id"] for document in ordinary}
    # Shares differ in split and length, which is meant.
    assert len(suite.swept) == len(sweep()) and set(suite.frame.id[~suite.frame.kept]) == {twice["id"]}
    assert suite.warnings == [
        "1 run with an unknown share (gmm) left out of tables and statistics: passes 2 instead of 1"
    ]


def test_streams_played_otherwise_share_no_table(tmp_path: Path) -> None:
    usual = [record("gmm", "OPDA", seed) for seed in range(3)]
    played = {"order": "dirichlet", "concentration": 0.1}
    other = [record("bn-stats", "OPDA", seed, protocol=played) for seed in range(2)]
    new = record("tent", "OPDA", 0, protocol={"order": "shuffled", "arrangement": "mixed", "repeat": 1})
    (suite,) = read_results([write_runs(tmp_path, [*usual, *other, new])])
    assert set(suite.main.method) == {"gmm", "tent"}, "older records tell of no order: they had the usual one"
    assert "order dirichlet instead of shuffled" in suite.warnings[0]


def test_points_are_means_over_seeds(tmp_path: Path) -> None:
    (suite,) = read_results([write_runs(tmp_path, sweep())])
    points = share_points(suite.swept)
    assert list(dict.fromkeys(points.unknown_share)) == [*SHARES, "0->0.8"] and len(points) == 10
    point = points[(points.method == "gmm") & (points.unknown_share == "0.6")].iloc[0]
    assert (point.score, point.rejected, point.estimated) == pytest.approx((50.5, 40.0, 25.0))
    assert (point.runs, point["rank"], point.batches) == (2, 1, 32)
    assert points[points.method == "source-only"].estimated.isna().all()


def test_the_report_shows_the_sweep(tmp_path: Path) -> None:
    page = write_report([write_runs(tmp_path / "runs", sweep())], tmp_path / "out").page.read_text()
    for words in (
        "Share of unknown samples",
        "OPDA, score by share of unknown samples",
        "OPDA, rejected share by share of unknown samples",
        "OPDA, share from 0 to 80 %: rejected",
        "0 → 0.8",
        "Estimated",
    ):
        assert words in page, words
    with (tmp_path / "out" / "tables" / "digits-shares-OPDA.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10 and {row["unknown_share"] for row in rows} == {*SHARES, "0->0.8"}
    assert float(rows[-1]["estimated"]) == pytest.approx(25.0)
    alone = write_report([write_runs(tmp_path / "one", sweep(shares=["0.5"]))], tmp_path / "alone").page.read_text()
    assert 'class="chart"' not in alone and "40.5" in alone, "one share alone is a table without a chart"


def long(method: str, seed: int, tenths: Sequence[float | None]) -> dict[str, Any]:
    return {**record(method, "ODA", seed, batches=2000), "tenths": tenths}


def test_tenths_tell_who_tires(tmp_path: Path) -> None:
    rising, falling = [0.5 + 0.01 * part for part in range(10)], [0.7] * 8 + [0.65, 0.5]
    records = [long("gmm", 0, rising), long("gmm", 1, falling), long("source-only", 0, [0.4] * 10)]
    page = write_report([write_runs(tmp_path / "runs", records)], tmp_path / "out").page.read_text()
    assert "ODA: score of each tenth" in page
    with (tmp_path / "out" / "tables" / "digits-tenths-ODA.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert float(rows["gmm"]["largest_fall"]) == pytest.approx(20.0)
    assert float(rows["gmm"]["tenth_10"]) == pytest.approx((59.0 + 50.0) / 2)
    assert float(rows["source-only"]["largest_fall"]) == 0.0
    short = [{**record("gmm", "ODA", 0, batches=199), "tenths": [0.5] * 10}, record("gmm", "OPDA", 0, batches=300)]
    (suite,) = read_results([write_runs(tmp_path / "short", short)])
    assert long_streams(suite.main).empty, "one is short, the other of a version that kept no tenths"
