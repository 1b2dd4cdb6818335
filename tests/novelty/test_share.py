"""The gate at a share of unknown samples that is known: levels, nobody at zero, bounds, one window for all."""

from __future__ import annotations

import math

import pytest
import torch

from driftgate.methods.registry import resolve_settings
from driftgate.novelty.gate import predict_label, pseudo_label
from driftgate.novelty.share import ShareGate, share_bounds, share_levels
from driftgate.types import UNKNOWN, UNLABELED, DriftgateError


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("p_reject", [0.0, 0.25, 0.5])
def test_up_to_the_middle_the_three_decisions_follow_the_share(share: float, p_reject: float) -> None:
    known, unknown, prediction = share_levels(share, p_reject)
    assert prediction == pytest.approx(1 - share)
    assert known == pytest.approx(min((1 - share) * (1 - p_reject), 0.5))  # of the known side, p_reject is left out
    assert 1 - unknown == pytest.approx(share * (1 - p_reject))
    assert known <= prediction <= unknown + 1e-12


@pytest.mark.parametrize("share", [0.5, 0.6, 0.83, 1.0])
def test_beyond_the_middle_prediction_stays_near_it(share: float) -> None:
    known, unknown, prediction = share_levels(share, 0.25)
    assert 0.35 - 1e-12 <= prediction <= 0.5
    assert prediction >= 1 - share - 1e-12
    assert known == pytest.approx((1 - share) * 0.75) and 1 - unknown == pytest.approx(share * 0.75)


def test_a_share_of_zero_rejects_nobody_and_teaches_nobody_to_be_unknown() -> None:
    gate = ShareGate((0.0, 0.0), 0.25)
    for seed in range(3):
        novelty = torch.rand(64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        thresholds = gate.update(novelty)
        classes = torch.zeros(64, dtype=torch.int64)
        assert thresholds.unknown == thresholds.prediction == math.inf
        assert (predict_label(classes, novelty, thresholds) == 0).all()
        labels = pseudo_label(classes, novelty, thresholds)
        assert not (labels == UNKNOWN).any() and 0.4 < float((labels == UNLABELED).double().mean()) < 0.6


@pytest.mark.parametrize(
    ("bounds", "rejected"), [((0.3, 0.3), 0.3), ((0.0, 0.2), 0.2), ((0.6, 0.9), 0.53), ((0, 1), 0.5)]
)
def test_the_share_of_the_recent_scores_is_rejected(bounds: tuple[float, float], rejected: float) -> None:
    gate = ShareGate(bounds, 0.25, window=512)
    scores = torch.rand(20, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for batch in scores:
        thresholds = gate.update(batch)
    recent = scores.flatten()[-512:]
    assert float((recent > thresholds.prediction).double().mean()) == pytest.approx(rejected, abs=0.005)
    assert thresholds == gate.thresholds


def test_only_the_window_counts() -> None:
    gate = ShareGate((0.5, 0.5), window=64)
    gate.update(torch.full((64,), 100.0))
    low = gate.update(torch.linspace(0, 1, 64, dtype=torch.float64))
    assert low.unknown <= 1


def test_state_survives_and_clones_are_apart() -> None:
    gate, other = ShareGate((0.2, 0.2), window=128), ShareGate((0.2, 0.2), window=128)
    gate.update(torch.linspace(0, 1, 50, dtype=torch.float64))
    before = gate.thresholds
    gate.clone().update(torch.full((50,), 9.0))
    assert gate.thresholds == before
    other.load_state_dict(gate.state_dict())
    assert other.thresholds == before and gate.num_bytes == 128 * 4 + 8


def test_settings_take_a_word_a_number_or_bounds() -> None:
    for value, bounds in (("auto", (0, 1)), (0, (0, 0)), (0.3, (0.3, 0.3)), ([0.1, 0.4], (0.1, 0.4))):
        settings = resolve_settings("gmm", None, {"unknown_share": value})
        assert share_bounds(settings.unknown_share) == bounds  # type: ignore[attr-defined]
    for wrong in ("half", 1.5, (0.4, 0.1), (0.1,), True, None, math.nan):
        with pytest.raises(DriftgateError, match="a share from 0 to 1"):
            resolve_settings("gmm", None, {"unknown_share": wrong})
    with pytest.raises(DriftgateError, match="lower first"):
        ShareGate((0.5, 0.1))
