from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from driftgate.metrics import DEFINITIONS, HScore, OnlineAccuracy, best_threshold, harmonic_mean, novelty_auroc
from driftgate.types import UNKNOWN, DriftgateError

SHARED = (1, 3, 4)  # not the first ones: a slice [:shared] would count the wrong classes


def slow_h_score(predictions: np.ndarray, targets: np.ndarray, shared: Sequence[int]) -> tuple[float, float, float]:
    """Mean of the per-class accuracies, the accuracy on unknown, their harmonic mean; in plain numpy."""
    per_class = [np.mean(predictions[targets == c] == c) for c in shared if (targets == c).any()]
    known = float(np.mean(per_class))
    unknown = float(np.mean(predictions[targets == UNKNOWN] == UNKNOWN))
    h_score = 0.0 if known + unknown == 0 else 2.0 * known * unknown / (known + unknown)
    return h_score, known, unknown


def draw(seed: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    targets = rng.choice([*SHARED, UNKNOWN], p=[0.6, 0.1, 0.05, 0.25], size=count)
    guesses = rng.choice([0, 1, 2, 3, 4, UNKNOWN], size=count)
    return np.where(rng.uniform(size=count) < 0.6, targets, guesses), targets


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch_size", [1, 7, 200])
def test_h_score_agrees_with_plain_numpy_over_any_batches(seed: int, batch_size: int) -> None:
    predictions, targets = draw(seed)
    metric = HScore(SHARED)
    for start in range(0, len(targets), batch_size):
        part = slice(start, start + batch_size)
        metric.update(torch.from_numpy(predictions[part]), torch.from_numpy(targets[part]))
    found = metric.compute()
    expected = slow_h_score(predictions, targets, SHARED)
    assert float(found["h_score"]) == pytest.approx(expected[0], rel=1e-12)
    assert float(found["known_accuracy"]) == pytest.approx(expected[1], rel=1e-12)
    assert float(found["unknown_accuracy"]) == pytest.approx(expected[2], rel=1e-12)


def test_h_score_by_hand() -> None:
    """Class 1: 1 of 2, class 3: 1 of 1, class 4 not seen yet: known 0.75. Unknown: 1 of 4."""
    metric = HScore(SHARED)
    targets = torch.tensor([1, 1, 3, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN])
    metric.update(torch.tensor([1, UNKNOWN, 3, UNKNOWN, 1, 0, 3]), targets)
    found = metric.compute()
    assert float(found["known_accuracy"]) == 0.75
    assert float(found["unknown_accuracy"]) == 0.25
    assert float(found["h_score"]) == pytest.approx(2 * 0.75 * 0.25 / (0.75 + 0.25))
    metric.reset()
    metric.update(torch.tensor([4, UNKNOWN]), torch.tensor([4, UNKNOWN]))
    assert float(metric.compute()["h_score"]) == 1.0


def test_h_score_of_one_side_missing_is_nan_and_of_all_wrong_is_zero() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for labels in ([1, 3], [UNKNOWN, UNKNOWN]):
            metric = HScore(SHARED)
            metric.update(torch.tensor(labels), torch.tensor(labels))
            assert math.isnan(float(metric.compute()["h_score"]))
        metric = HScore(SHARED)
        metric.update(torch.tensor([UNKNOWN, 1]), torch.tensor([1, UNKNOWN]))
        assert float(metric.compute()["h_score"]) == 0.0


def test_the_authors_count_a_class_without_a_sample_as_zero() -> None:
    """Class 4 has no sample: known accuracy (0.5 + 1 + 0) / 3 there, (0.5 + 1) / 2 here."""
    metric = HScore(SHARED)
    metric.update(torch.tensor([1, 0, 3, UNKNOWN, 1]), torch.tensor([1, 1, 3, UNKNOWN, UNKNOWN]))
    found = metric.compute()
    assert float(found["h_score"]) == pytest.approx(2 * 0.75 * 0.5 / 1.25)
    assert float(found["h_score_released"]) == pytest.approx(2 * 0.5 * 0.5 / 1.0)
    metric.update(torch.tensor([0]), torch.tensor([4]))  # every class has one: now they agree
    found = metric.compute()
    assert float(found["h_score"]) == pytest.approx(float(found["h_score_released"]))
    for labels in ([1, 3], [UNKNOWN, UNKNOWN]):
        metric.reset()
        metric.update(torch.tensor(labels), torch.tensor(labels))
        assert float(metric.compute()["h_score_released"]) == 0.0


def test_harmonic_mean_has_no_zero_division() -> None:
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    assert float(harmonic_mean(zero, zero)) == 0.0
    assert float(harmonic_mean(zero, one)) == 0.0
    assert float(harmonic_mean(one, one)) == 1.0


@pytest.mark.parametrize("batch_size", [1, 13, 100])
def test_pda_accuracy_counts_a_rejected_sample_as_wrong(batch_size: int) -> None:
    rng = np.random.default_rng(0)
    targets = rng.integers(6, size=100)
    predictions = np.where(rng.uniform(size=100) < 0.5, targets, rng.choice([0, 1, UNKNOWN], size=100))
    metric = OnlineAccuracy()
    for start in range(0, 100, batch_size):
        part = slice(start, start + batch_size)
        metric.update(torch.from_numpy(predictions[part]), torch.from_numpy(targets[part]))
    expected = sum(int(p == t) for p, t in zip(predictions, targets, strict=True)) / 100
    assert (predictions == UNKNOWN).any()
    assert float(metric.compute()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("digits", [0, 1, 6])
def test_auroc_agrees_with_sklearn_ties_included(seed: int, digits: int) -> None:
    rng = np.random.default_rng(seed)
    targets = rng.choice([0, 1, UNKNOWN], size=150)
    novelty = np.round(rng.normal(size=150) + (targets == UNKNOWN), digits)
    expected = roc_auc_score(targets == UNKNOWN, novelty)
    assert novelty_auroc(torch.from_numpy(novelty), torch.from_numpy(targets)) == pytest.approx(expected, abs=1e-6)


def test_auroc_tells_scores_apart_that_float32_cannot() -> None:
    rng = np.random.default_rng(0)
    targets = rng.choice([0, UNKNOWN], size=150)
    raw = rng.normal(size=150) + (targets == UNKNOWN)
    expected = roc_auc_score(targets == UNKNOWN, raw)
    for novelty in (np.exp(40.0 * raw - 120.0), 1.0 + 1e-12 * raw, np.where(raw > 1.0, 1e300, raw)):
        reference = roc_auc_score(targets == UNKNOWN, novelty)
        assert novelty_auroc(torch.from_numpy(novelty), torch.from_numpy(targets)) == pytest.approx(reference, abs=1e-6)
        assert reference == pytest.approx(expected, abs=0.1)


def test_auroc_extremes() -> None:
    targets = torch.tensor([0, 1, UNKNOWN, UNKNOWN])
    assert novelty_auroc(torch.tensor([0.1, 0.2, 0.3, 0.4]), targets) == 1.0
    assert novelty_auroc(torch.tensor([0.4, 0.3, 0.2, 0.1]), targets) == 0.0
    assert novelty_auroc(torch.zeros(4), targets) == 0.5
    assert math.isnan(novelty_auroc(torch.rand(2), torch.tensor([0, 1])))
    assert math.isnan(novelty_auroc(torch.rand(2), torch.tensor([UNKNOWN, UNKNOWN])))


def score_at(threshold: float, novelty: np.ndarray, classes: np.ndarray, targets: np.ndarray) -> float:
    predictions = np.where(novelty > threshold, UNKNOWN, classes)
    if (targets == UNKNOWN).any():
        if not (targets != UNKNOWN).any():
            return 0.0
        return slow_h_score(predictions, targets, SHARED)[0]
    return float(np.mean(predictions == targets))


@given(
    st.integers(0, 2**31 - 1),
    st.integers(1, 40),
    st.sampled_from([0, 1, 8]),
    st.sampled_from([[*SHARED], [*SHARED, UNKNOWN], [UNKNOWN]]),
)
@settings(max_examples=150, deadline=None)
def test_best_threshold_agrees_with_trying_them_all(seed: int, count: int, digits: int, present: list[int]) -> None:
    rng = np.random.default_rng(seed)
    targets = rng.choice(present, size=count)
    novelty = np.round(rng.normal(size=count) + (targets == UNKNOWN), digits) + 0.0
    classes = np.where(rng.uniform(size=count) < 0.7, targets, rng.choice(SHARED, size=count))
    classes = np.where(classes == UNKNOWN, 0, classes)
    thresholds = [-math.inf, *np.unique(novelty)]
    expected = max(score_at(threshold, novelty, classes, targets) for threshold in thresholds)
    score, threshold = best_threshold(
        torch.from_numpy(novelty), torch.from_numpy(classes), torch.from_numpy(targets), SHARED
    )
    assert score == pytest.approx(expected, abs=1e-12)
    assert score_at(threshold, novelty, classes, targets) == pytest.approx(expected, abs=1e-12)


def test_best_threshold_does_not_cut_between_equal_novelties() -> None:
    """Known and unknown share one novelty: cutting between them would give 1.0, which no threshold can."""
    novelty = torch.tensor([0.0, 0.5, 0.5, 0.5])
    classes, targets = torch.tensor([1, 1, 1, 1]), torch.tensor([1, 1, UNKNOWN, UNKNOWN])
    score, threshold = best_threshold(novelty, classes, targets, SHARED)
    assert score == pytest.approx(2 * 0.5 * 1.0 / 1.5)
    assert threshold == 0.0


def test_every_number_of_the_metrics_has_its_definition() -> None:
    metric = HScore(SHARED)
    metric.update(torch.tensor([1]), torch.tensor([1]))
    assert set(metric.compute()) <= set(DEFINITIONS)
    assert {"accuracy", "auroc", "best_threshold_score"} <= set(DEFINITIONS)


@pytest.mark.parametrize("metric", [HScore(SHARED), OnlineAccuracy()])
@pytest.mark.parametrize("targets", [torch.tensor([1]), torch.tensor([1, 1]), torch.tensor([[1, 1, 1]])])
def test_predictions_of_other_samples_are_refused_and_nothing_is_counted(
    metric: HScore | OnlineAccuracy, targets: torch.Tensor
) -> None:
    with pytest.raises(DriftgateError, match=r"Expected a prediction for each target, .* got \(3,\) and"):
        metric.update(torch.tensor([1, 1, 1]), targets)
    assert int(metric.total.sum()) == 0
