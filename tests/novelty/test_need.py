"""How much a stream has to teach."""

from __future__ import annotations

import pytest
import torch

from driftgate.novelty.need import AT_HOME, follow_doubt, need


def test_the_share_is_followed_and_the_largest_stays() -> None:
    doubt, running, largest = torch.zeros(2), None, 0.0
    for seed in range(12):
        entropies = torch.rand(40, generator=torch.Generator().manual_seed(seed)) * (seed + 1) / 12
        share = float((entropies > 0.5).float().mean())
        running = share if running is None or largest == 0 else 0.9 * running + 0.1 * share
        largest = max(largest, running)
        before = doubt.clone()
        after = follow_doubt(doubt, entropies, 0.5)
        assert torch.equal(doubt, before)  # a new tensor: a step that fails leaves the old one
        doubt = after
        assert doubt.tolist() == pytest.approx([running, largest], rel=1e-5)
        assert float(need(doubt)) == pytest.approx(min(1.0, max(0.2, largest / AT_HOME)), rel=1e-5)


@pytest.mark.parametrize(("doubted", "factor"), [(0, 0.2), (1, 0.2), (2, 0.4), (5, 1.0), (20, 1.0)])
def test_a_source_at_home_learns_in_proportion(doubted: int, factor: float) -> None:
    entropies = torch.cat([torch.full((doubted,), 0.9), torch.full((20 - doubted,), 0.1)])
    assert float(need(follow_doubt(torch.zeros(2), entropies, 0.5))) == pytest.approx(factor)


def test_a_stream_that_drifts_away_later_teaches_at_the_full_rate_from_then_on() -> None:
    doubt = follow_doubt(torch.zeros(2), torch.tensor([0.9, *[0.1] * 19]), 0.5)
    for _ in range(10):
        doubt = follow_doubt(doubt, torch.full((20,), 0.9), 0.5)
    assert float(need(doubt)) == 1.0
    for _ in range(50):
        doubt = follow_doubt(doubt, torch.zeros(20), 0.5)
    assert float(need(doubt)) == 1.0 and float(doubt[0]) < 0.01
