"""The picture of the dial: what is read from records and costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import load_benchmark

efforts = load_benchmark("efforts")


def record(method: str, score: float, *, shift: str = "PDA", seed: int = 0, **settings: Any) -> dict[str, Any]:
    protocol = {"source": ["a"], "target": ["b"], "shift": shift, "seed": seed}
    return {
        "method": method,
        "settings": settings,
        "protocol": protocol,
        "score": "accuracy",
        "metrics": {"accuracy": score},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        record("source-only", 0.2),
        record("source-only", 0.4, shift="ODA"),
        record("gmm", 0.6, effort="full"),
        record("gmm", 0.6, shift="ODA"),  # of a version without efforts
        record("gmm", 0.5, effort="light"),
        record("gmm", 0.6, shift="ODA", effort="light"),
        record("tent", 0.1),
        record("tent", 0.9, seed=7),  # a stream that the others have not seen
    ]
    (tmp_path / "records").mkdir()
    for number, row in enumerate(rows):
        (tmp_path / "records" / f"{number}.json").write_text(json.dumps(row))
    return tmp_path


def test_the_share_is_that_of_the_same_streams(folder: Path) -> None:
    found = efforts.shares(efforts.read_scores([folder]))
    assert found["inference"][:2] == pytest.approx((30.0, 0.0)) and found["full"][:2] == pytest.approx((60.0, 1.0))
    assert found["light"] == pytest.approx((55.0, 25 / 30, 2))
    assert found["tent"] == pytest.approx((10.0, -0.25, 1))


def test_the_picture_is_drawn(folder: Path) -> None:
    costs = {
        name: {"to_inference": 1.0 + place, "peak_bytes": 2**28} for place, name in enumerate(("inference", "full"))
    }
    setting = {"backbone": "lite0", "size": 112, "batch_size": 64}
    (folder / "costs.json").write_text(json.dumps({"setting": setting, "costs": costs}))
    picture = folder / "efforts.png"
    arguments = efforts.argparse.Namespace(picture=picture, costs=[folder / "costs.json"], scores=[folder])
    efforts.figure(arguments)
    assert picture.read_bytes().startswith(b"\x89PNG")
