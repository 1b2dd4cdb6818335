"""Streams that are not played as usual: what a plan, its runs and their records make of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.cli.commands import answer, refused
from synthetic_runs import tiny_suite

from driftgate.lab.bench.plan import Plan, make_plan
from driftgate.lab.bench.sweep import run_sweep, summarise
from driftgate.lab.data.orders import parse_shares
from driftgate.shifts import Shift
from driftgate.types import DriftgateError


def plan(**changes: Any) -> Plan:
    return make_plan(tiny_suite(**changes), limit=changes.get("limit", 4), quick_training=True)


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("0.3", ["0.3"]),
        ("0,0.1,...,0.5", ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        ("0.2, 0.4, ..., 0.8, 0->0.8", ["0.2", "0.4", "0.6", "0.8", "0->0.8"]),
        ("0.9,0.8,...,0.6", ["0.9", "0.8", "0.7", "0.6"]),
        ("0.5,0.50,0.5->0.5", ["0.5"]),
        ("0,0.1,...,0.9", ["0", *(f"0.{tenth}" for tenth in range(1, 10))]),
    ],
)
def test_shares_of_the_command_line(text: str, shares: list[str]) -> None:
    assert list(parse_shares(text)) == shares


@pytest.mark.parametrize("text", ["", ",", "some", "0,...,0.9", "0,0.1,...", "0,0.2,...,0.9", "0.1,0.1,...,0.9", "2"])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(DriftgateError, match="Expected"):
        parse_shares(text)


def test_usual_streams_are_the_runs_they_always_were() -> None:
    usual = plan().runs[0]
    assert plan(order="shuffled", repeat=1, arrangement="mixed", concentration=7.0).runs[0].id == usual.id
    assert usual.suite.playing.unusual() == {}
    others = [plan(order="dirichlet"), plan(order="dirichlet", concentration=7.0), plan(arrangement="continual")]
    others += [plan(repeat=2), plan(unknown_shares=[0.5]), plan(unknown_shares="0->1")]
    assert len({usual.digest, *(other.runs[0].digest for other in others)}) == 7
    assert {other.models[0].id for other in others} == {usual.model.id}, "the source model is the same"


def test_what_is_unusual_is_told() -> None:
    played = plan(order="dirichlet", arrangement="continual", repeat=3, unknown_shares=[0.25]).runs[0]
    assert "(dirichlet 0.1, continual, 3 passes, 0.25 unknown)" in played.label
    assert "unknown0.25" in played.id


def test_the_stream_is_what_the_suite_says() -> None:
    stream = plan(repeat=3, unknown_shares=[0.25]).runs[0].open_stream((28, 28))
    assert len(stream) == 12 and stream.num_samples == 3 * 64
    unknown = [int((batch.labels < 0).sum()) for batch in stream.batches()]
    assert sum(unknown) == 3 * 16
    one_pass = plan(repeat=3).runs[0]
    assert len(replace(one_pass, limit=None).open_stream((28, 28))) == 3 * 79


def test_every_share_is_a_stream_of_its_own() -> None:
    swept = plan(shifts=["PDA", "ODA", "OPDA"], unknown_shares="0,0.5,0->0.8", methods=["source-only", "bn-stats"])
    shares = [run.unknown_share for run in swept.runs if run.shift is Shift.ODA]
    assert shares == ["0", "0", "0.5", "0.5", "0->0.8", "0->0.8"]
    assert not any(run.shift is Shift.PDA for run in swept.runs), "nothing is unknown under PDA"
    splits = {run.unknown_share: str(run.class_split) for run in swept.runs if run.shift is Shift.OPDA}
    assert splits == {"0": "4/3/0", "0.5": "4/3/3", "0->0.8": "4/3/3"}
    with pytest.raises(DriftgateError, match="unknown shares need ODA or OPDA"):
        plan(shifts=["PDA"], unknown_shares=[0.5])


def test_the_number_of_batches_that_the_data_allows_is_told() -> None:
    told = {run.unknown_share: run.num_batches for run in plan(limit=None, unknown_shares="0,0.5,0.9").runs}
    # UCI has 720 samples of the four shared digits and 533 of the three new ones.
    assert told == {"0": 45, "0.5": 67, "0.9": 37}


def test_records_tell_the_share_and_are_scored_by_what_is_there(tmp_path: Path) -> None:
    swept = plan(unknown_shares=["0", "0.5"])
    result = run_sweep(swept, tmp_path, backend="serial")
    assert not result.failures
    none, half = result.records
    assert (none["protocol"]["unknown_share"], half["protocol"]["unknown_share"]) == ("0", "0.5")
    assert (none["shares"]["true"], half["shares"]["true"]) == (0.0, 0.5)
    assert (none["score"], half["score"]) == ("accuracy", "h_score"), "where nothing is unknown accuracy scores"
    assert none["shift"] == half["shift"] == "OPDA"
    assert half["protocol"]["repeat"] == 1 and half["protocol"]["order"] == "shuffled"
    assert set(summarise(result.records)) == {"OPDA 0", "OPDA 0.5"}


def test_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(plan().suite.model_dump(mode="json")))
    command = ["bench", str(file), "--limit", "2", "--quick-training", "--out", str(tmp_path / "out"), "--dry-run"]
    options = ["--unknown-share", "0,0.5", "--repeat", "2", "--order", "dirichlet", "--concentration", "0.5"]
    jobs = answer(*command, *options, "--arrangement", "continual")["jobs"]
    assert [job["batches"] for job in jobs] == [None, 4, 4]
    assert all("dirichlet 0.5, continual, 2 passes" in job["label"] for job in jobs[1:])
    assert "unknown share from 0 to 1" in refused(*command, "--unknown-share", "lots")
