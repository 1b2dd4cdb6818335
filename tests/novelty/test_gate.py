"""Gates: thresholds as the paper defines them, and the two that go beyond it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from driftgate.novelty.gate import (
    LEVEL,
    FrozenGate,
    LevelGate,
    MixtureGate,
    TieRule,
    TrackingGate,
    batch_quantiles,
    crossing_share,
    make_gate,
    predict_label,
    pseudo_label,
    spare_certain,
)
from driftgate.types import UNKNOWN, UNLABELED, DriftgateError, Thresholds

KINDS = ("frozen", "tracking", "level", "mixture")


def scores(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_pseudo_labels_follow_the_three_cases() -> None:
    novelty = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    classes = torch.tensor([3, 1, 4, 1, 5])
    found = pseudo_label(classes, novelty, Thresholds(0.2, 0.4, 0.3))
    assert found.tolist() == [3, 1, UNLABELED, UNKNOWN, UNKNOWN]


def test_equal_thresholds_leave_nobody_out_and_known_comes_first() -> None:
    found = pseudo_label(torch.tensor([1, 2, 3]), torch.tensor([0.0, 0.5, 1.0]), Thresholds(0.5, 0.5, 0.5))
    assert found.tolist() == [1, 2, UNKNOWN]


def test_prediction_rejects_only_above_the_threshold() -> None:
    found = predict_label(torch.tensor([1, 2, 3]), torch.tensor([0.2, 0.3, 0.31]), Thresholds(0.0, 1.0, 0.3))
    assert found.tolist() == [1, 2, UNKNOWN]


@pytest.mark.parametrize(
    ("rule", "labels", "predictions"),
    [
        ("paper", [3, 1, UNLABELED, UNKNOWN, UNKNOWN], [3, 1, 4, UNKNOWN, UNKNOWN]),
        ("released", [3, UNLABELED, UNLABELED, UNLABELED, UNKNOWN], [3, 1, UNKNOWN, UNKNOWN, UNKNOWN]),
        ("gmm-comet", [3, 1, UNLABELED, UNLABELED, UNKNOWN], [3, 1, UNKNOWN, UNKNOWN, UNKNOWN]),
    ],
)
def test_who_lies_on_a_threshold_is_the_rule_s_to_say(rule: TieRule, labels: list[int], predictions: list[int]) -> None:
    novelty, classes = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), torch.tensor([3, 1, 4, 1, 5])
    assert pseudo_label(classes, novelty, Thresholds(0.25, 0.75, 0.5), rule).tolist() == labels
    assert predict_label(classes, novelty, Thresholds(0.25, 0.75, 0.5), rule).tolist() == predictions


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.4), (0.6, 1.0), (0.2, 0.9)])
def test_level_gate_predicts_at_its_level_and_teaches_by_quantiles_on_the_right_side_of_it(
    low: float, high: float
) -> None:
    level, tracking = LevelGate(0.25, 4), TrackingGate(0.25, 4)
    for seed in range(6):
        novelty = low + (high - low) * scores(50, seed)
        one, two = level.update(novelty), tracking.update(novelty)
        assert one == Thresholds(min(two.known, LEVEL), max(two.unknown, LEVEL), LEVEL)


def test_certain_samples_are_spared() -> None:
    assert spare_certain(Thresholds(1e-9, 1e-5, 1e-6), 0.01) == Thresholds(1e-9, 0.01, 0.01)
    assert spare_certain(Thresholds(0.1, 0.5, 0.3), 0.01) == Thresholds(0.1, 0.5, 0.3)


def test_first_batch_uses_the_share_the_paper_says() -> None:
    novelty = scores(64, 0)
    thresholds = FrozenGate(p_reject=0.5).update(novelty)
    labels = pseudo_label(torch.zeros(64, dtype=torch.int64), novelty, thresholds)
    assert (labels == 0).sum() == 16 and (labels == UNKNOWN).sum() == 16
    assert thresholds.prediction == (thresholds.known + thresholds.unknown) / 2


@pytest.mark.parametrize(
    ("count", "p_reject", "low", "high"),
    [(64, 0.5, 16, 48), (32, 0.25, 12, 20), (64, 0.65, 12, 52), (50, 0.5, 13, 37), (5, 0.0, 3, 2), (1, 0.0, 0, 0)],
)
def test_released_rule_rounds_the_lower_index_up_and_the_upper_one_down(
    count: int, p_reject: float, low: int, high: int
) -> None:
    novelty = scores(count, 1)
    ordered = novelty.sort().values
    assert batch_quantiles(novelty, p_reject, "released").tolist() == [ordered[low], ordered[high]]


def test_frozen_gate_averages_the_first_batches_then_never_moves() -> None:
    gate = FrozenGate(p_reject=0.4, init_batches=3)
    lows, highs = [], []
    for seed in range(3):
        novelty = scores(50, seed)
        lows.append(np.quantile(novelty.numpy(), 0.3))
        highs.append(np.quantile(novelty.numpy(), 0.7))
        thresholds = gate.update(novelty)
        assert thresholds.known == pytest.approx(np.mean(lows), abs=1e-12)
        assert thresholds.unknown == pytest.approx(np.mean(highs), abs=1e-12)
    for seed in range(3, 20):
        assert gate.update(100 * scores(50, seed)) == thresholds


def test_tracking_gate_follows_a_shift_and_starts_as_the_frozen_one() -> None:
    frozen, tracking = FrozenGate(init_batches=5), TrackingGate(init_batches=5)
    for seed in range(5):
        one, two = frozen.update(scores(40, seed)), tracking.update(scores(40, seed))
        assert one == pytest.approx(two, abs=1e-12)
    for seed in range(60):
        thresholds = tracking.update(2 + scores(40, seed))
    assert 2.2 < thresholds.known < thresholds.unknown < 2.8


@pytest.mark.parametrize("unknown_share", [0.2, 0.5, 0.7])
def test_mixture_gate_finds_the_valley_whatever_the_share(unknown_share: float) -> None:
    random = np.random.default_rng(0)
    gate = MixtureGate(log_scale=False)
    for _ in range(20):
        is_unknown = random.random(64) < unknown_share
        novelty = torch.from_numpy(np.where(is_unknown, random.normal(4, 0.5, 64), random.normal(0, 0.5, 64)))
        thresholds = gate.update(novelty)
    assert 1.0 < thresholds.prediction < 3.0
    assert thresholds.known < thresholds.prediction < thresholds.unknown
    # Half of each side stays without a label.
    used = (novelty <= thresholds.known) | (novelty >= thresholds.unknown)
    assert 0.3 < used.double().mean() < 0.7


def test_crossing_is_where_the_components_are_equally_likely() -> None:
    random = np.random.default_rng(1)
    values = np.concatenate([random.normal(0, 1, 60_000), random.normal(6, 0.5, 40_000)])
    axis = np.linspace(0, 6, 100_001)
    difference = 0.6 * norm.pdf(axis, 0, 1) - 0.4 * norm.pdf(axis, 6, 0.5)
    crossing = axis[np.argmax(difference < 0)]
    assert crossing_share(values) == pytest.approx((values < crossing).mean(), abs=0.003)


def test_mixture_gate_on_a_logarithmic_axis_separates_entropies() -> None:
    random = np.random.default_rng(2)
    gate = MixtureGate(log_scale=True)
    known, unknown = 10 ** random.uniform(-28, -3, 600), random.uniform(0.3, 0.9, 400)
    thresholds = gate.update(torch.from_numpy(random.permutation(np.concatenate([known, unknown]))))
    assert 1e-3 < thresholds.prediction < 0.3


def test_equal_halves_give_the_paper_s_quantiles() -> None:
    random = np.random.default_rng(3)
    novelty = torch.from_numpy(np.concatenate([random.normal(0, 0.1, 500), random.normal(9, 0.1, 500)]))
    thresholds = MixtureGate(p_reject=0.5, log_scale=False).update(novelty)
    low, high = batch_quantiles(novelty, 0.5).tolist()
    assert thresholds.known == pytest.approx(low, abs=0.02)
    assert thresholds.unknown == pytest.approx(high, abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
@given(
    batches=st.lists(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=40), min_size=1, max_size=12),
    p_reject=st.floats(min_value=0, max_value=0.99),
)
@settings(max_examples=100, deadline=None)
def test_thresholds_are_finite_and_ordered(kind: str, batches: list[list[float]], p_reject: float) -> None:
    gate = make_gate(kind, p_reject, 5)  # type: ignore[arg-type]
    for batch in batches:
        thresholds = gate.update(torch.tensor(batch, dtype=torch.float64))
        assert all(np.isfinite(thresholds))
        assert thresholds.known <= thresholds.prediction <= thresholds.unknown


def test_rounding_cannot_turn_the_thresholds_round() -> None:
    """Found by chance: with p_reject 0 all three are the same quantile, at levels that differ in the last bit."""
    batches = [[0.0], [0.0], [286344.0], [0.0, 173822.0], [152177.0, 108892.0], [5665.0, 1.0]]
    batches += [[1.0, 90202.0, 592034.0, 912019.0], [0.0, 83784.0, 48.0, 68.0, 315.0, 978480.0]]
    batches += [[0.0, 0.0, 8642.0, 4757.0, 1.0, 815223.0, 839143.0, 892645.0, 2042.0]]
    batches += [[1.0, 1.0, 1.0, 46042.0, 29178.0, 1.0, 1.0, 1.0, 46876.0, 1.0]]
    gate = MixtureGate(p_reject=0.0)
    for batch in batches:
        thresholds = gate.update(torch.tensor(batch, dtype=torch.float64))
        assert thresholds.known <= thresholds.prediction <= thresholds.unknown


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_round_and_copies_are_independent(kind: str) -> None:
    gate = make_gate(kind, 0.5, 4)  # type: ignore[arg-type]
    for seed in range(7):
        gate.update(scores(30, seed))
    other = make_gate(kind, 0.5, 4)  # type: ignore[arg-type]
    other.load_state_dict(gate.state_dict())
    copy, before = gate.clone(), {name: value.clone() for name, value in gate.state_dict().items()}
    for seed in range(7, 20):
        copy.update(5 * scores(30, seed))
    assert all(torch.equal(before[name], value) for name, value in gate.state_dict().items())
    for seed in range(7, 20):
        assert gate.update(scores(30, seed)) == other.update(scores(30, seed))


def test_bytes_are_counted() -> None:
    assert FrozenGate().num_bytes == 2 * 8 + 8
    assert TrackingGate().num_bytes == 2 * 8 + 8
    assert MixtureGate(window=1024).num_bytes == 4 * 1024 + 2 * 8 + 3 * 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"p_reject": 1.0}, "p_reject"), ({"p_reject": -0.1}, "p_reject"), ({"init_batches": 0}, "initialisation batch")],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(DriftgateError, match=message):
        FrozenGate(**settings)  # type: ignore[arg-type]
    with pytest.raises(DriftgateError, match="window"):
        MixtureGate(window=8)


def test_the_mixture_gate_estimates_the_share_of_unknown() -> None:
    generator = torch.Generator().manual_seed(0)
    gate = MixtureGate(0.5, refit_every=1)
    assert math.isnan(gate.unknown_share) and math.isnan(FrozenGate().unknown_share)
    for _ in range(10):
        known, unknown = torch.rand(70, generator=generator) * 1e-3, 0.5 + 0.5 * torch.rand(30, generator=generator)
        gate.update(torch.cat([known, unknown]))
    assert gate.unknown_share == pytest.approx(0.3, abs=0.02)
