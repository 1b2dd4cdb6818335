"""Scores against the H-score of the authors' code and that of GLC; both add 1e-5 to their denominators."""

from __future__ import annotations

import math

import pytest
from golden_data import Case, case, case_names
from torch import Tensor

from driftgate import UNKNOWN
from driftgate.metrics import HScore, OnlineAccuracy
from driftgate.novelty.rejection import entropy_prediction

METHOD = "metrics"


def scores(golden: Case, predictions: Tensor) -> dict[str, float]:
    metric = HScore(range(golden.settings["shared"]))
    metric.update(predictions, golden.inputs["targets"])
    return {name: float(value) for name, value in metric.compute().items()}


@pytest.mark.parametrize("name", case_names(METHOD, "hscore"))
def test_h_score_as_the_authors_count_it(name: str) -> None:
    golden = case(METHOD, name)
    predictions, targets = golden.inputs["predictions"], golden.inputs["targets"]
    found, (h_score, known, unknown) = scores(golden, predictions), golden.outputs["scores"].tolist()
    assert found["h_score_released"] == pytest.approx(h_score, abs=1e-4)
    accuracy = OnlineAccuracy()
    accuracy.update(predictions, targets)
    assert float(accuracy.compute()) == pytest.approx(float(golden.outputs["accuracy"]), abs=1e-6)

    shared = range(golden.settings["shared"])
    present = [label for label in shared if bool((targets == label).any())]
    if len(present) == len(shared) and bool((targets == UNKNOWN).any()):
        ours = (found["h_score"], found["known_accuracy"], found["unknown_accuracy"])
        assert ours == pytest.approx((h_score, known, unknown), abs=1e-4)
    elif present and bool((targets == UNKNOWN).any()):  # a class without a sample is 0 there and left out here
        assert found["known_accuracy"] == pytest.approx(known * len(shared) / len(present), abs=1e-4)
        assert found["unknown_accuracy"] == pytest.approx(unknown, abs=1e-4)
        assert found["h_score"] > h_score + 0.01
    else:  # a side without samples is 0 there and tells nothing here
        assert h_score == 0.0 and math.isnan(found["h_score"])


@pytest.mark.parametrize("name", case_names(METHOD, "glc"))
def test_h_score_of_glc(name: str) -> None:
    golden = case(METHOD, name)
    found = scores(golden, entropy_prediction(golden.inputs["logits"], golden.settings["threshold"]).labels)
    ours = [found["h_score"], found["known_accuracy"], found["unknown_accuracy"]]
    assert ours == pytest.approx(golden.outputs["scores"].tolist(), abs=1e-4)
