"""The calm past: what passes for usual, what does not, and that the past can be left behind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from driftgate import DriftgateError
from driftgate.memory import StreamingGMM
from driftgate.novelty.calm import (
    DEVIATIONS,
    LARGEST_RISE,
    PAST,
    PATIENCE,
    SMALLEST_CHANGE,
    TEMPERATURE,
    CalmPast,
    describe_batch,
    different_share,
    mixture_shift,
)

CLASSES, DIM, SAMPLES = 5, 8, 64


def likelihoods(doubt: Tensor) -> Tensor:
    """(N,) -> (N, C): logs whose tempered entropy is ``doubt``: one class apart, by a gap found by halving."""
    low, high = torch.zeros_like(doubt), torch.full_like(doubt, 400.0)
    for _ in range(60):
        gap = (low + high) / 2
        logs = torch.zeros(len(doubt), CLASSES, dtype=torch.float64)
        logs[:, 0] = gap
        shares = (logs / TEMPERATURE).softmax(dim=1)
        found = -(shares * shares.clamp_min(1e-300).log()).sum(dim=1) / math.log(CLASSES)
        low, high = torch.where(found > doubt, gap, low), torch.where(found > doubt, high, gap)
    return logs


def batch(
    seed: int, *, novelty: float = 0.4, classes: int = CLASSES, spread: float = 1.0, shift: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(SAMPLES, CLASSES, generator=generator)
    scores[:, classes:] = 0
    values = likelihoods((novelty + 0.1 * torch.randn(SAMPLES, generator=generator)).clamp(0.001, 0.999).double())
    features = spread * torch.randn(SAMPLES, DIM, generator=generator) + 1.0
    away = shift * torch.empty(20).exponential_(generator=generator).mean() / SAMPLES
    return values, scores / scores.sum(dim=1, keepdim=True), features, away


def calm_past(batches: int = PAST) -> CalmPast:
    past = CalmPast()
    for seed in range(batches):
        assert past.accept(*batch(seed))
    return past


def test_the_facts_of_a_batch_by_hand() -> None:
    logs, scores, features, shift = batch(0)
    facts = describe_batch(logs, scores, features, shift)
    doubts = []
    for row in logs.tolist():
        total = sum(math.exp(value / TEMPERATURE) for value in row)
        shares = [math.exp(value / TEMPERATURE) / total for value in row]
        doubts.append(-sum(share * math.log(share) for share in shares if share > 0) / math.log(CLASSES))
    mean = [float(sum(row[c] for row in scores)) / SAMPLES for c in range(CLASSES)]
    entropy = -sum(p * math.log(p) for p in mean) / math.log(CLASSES)
    columns = features.double().T.tolist()
    variance = sum(sum((v - sum(col) / SAMPLES) ** 2 for v in col) / SAMPLES for col in columns) / DIM
    square = sum(v * v for col in columns for v in col) / (DIM * SAMPLES)
    expected = torch.tensor(
        [math.log(SAMPLES * float(shift)), sum(doubts) / SAMPLES, entropy, math.log(variance / square)],
        dtype=torch.float64,
    )
    torch.testing.assert_close(facts, expected, rtol=1e-6, atol=1e-7)


def test_a_stream_like_its_past_teaches() -> None:
    past = calm_past(200)
    assert int(past.taught) == 200 and int(past.refused) == 0


def test_what_is_far_from_the_past_does_not_teach_and_leaves_no_trace() -> None:
    past = calm_past()
    mean, variance = past.mean.clone(), past.variance.clone()
    unusual = [batch(1, novelty=0.9), batch(1, novelty=0.02), batch(1, classes=1), batch(1, spread=0.01)]
    unusual.append(batch(1, shift=20))
    for count, facts in enumerate(unusual, start=1):
        assert not past.accept(*facts)
        assert int(past.refused) == count
    assert torch.equal(past.mean, mean) and torch.equal(past.variance, variance)
    assert past.accept(*batch(500)) and int(past.refused) == 0
    assert past.accept(*batch(1, shift=1e-3))  # nearer than usual


def test_a_trend_is_not_spread() -> None:
    past = CalmPast()
    for step in range(60):
        assert past.accept(*batch(step, novelty=0.9 - 0.01 * step))
    assert not past.accept(*batch(99, novelty=0.8))  # where it stood when the stream began


def test_level_and_deviation_by_hand() -> None:
    past, level, spread = CalmPast(), 0.0, 0.0
    for step in range(40):
        facts = batch(step)
        value = float(describe_batch(*facts)[1])
        if step > 0:
            spread += ((value - level) ** 2 - spread) / min(step, 15)
        level += (value - level) / min(step + 1, 4)
        past.accept(*facts)
    torch.testing.assert_close(past.mean[1], torch.tensor(level, dtype=torch.float64))
    torch.testing.assert_close(past.variance[1], torch.tensor(spread, dtype=torch.float64))


def test_doubt_that_rises_a_little_and_stays_is_unusual_until_it_is_gone() -> None:
    past = calm_past(60)
    past.usual_doubt.copy_(past.mean[1])
    level, deviation = float(past.mean[1]), max(float(past.variance[1]) ** 0.5, SMALLEST_CHANGE[1] / DEVIATIONS)
    _, scores, features, shift = batch(0)

    def doubting(rise: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A batch whose doubt lies so many deviations above the level."""
        doubt = torch.full((SAMPLES,), level + rise * deviation, dtype=torch.float64)
        return likelihoods(doubt), scores, features, shift

    past.rise.zero_()
    assert past.clone().accept(*doubting(3.5))  # once is chance
    assert past.accept(*doubting(3.5)) and float(past.rise) == pytest.approx(2.5, abs=0.01)
    assert not past.accept(*doubting(3.5))
    taught, mean = int(past.taught), past.mean.clone()
    for _ in range(40):  # the level does not get used to it
        assert not past.accept(*doubting(3.5))
    assert float(past.rise) == LARGEST_RISE + 1.0 and int(past.taught) == taught and torch.equal(past.mean, mean)
    assert past.accept(*doubting(0.0)) and 0.0 < float(past.rise) <= LARGEST_RISE
    for _ in range(6):
        assert past.accept(*doubting(0.0))
    assert float(past.rise) == 0.0 and int(past.refused) == 0


def test_the_sum_of_rises_by_hand() -> None:
    past, level, slow, spread, summed = CalmPast(), 0.0, 0.0, 0.0, 0.0
    for step in range(40):
        facts = batch(step, novelty=0.4 + 0.1 * math.sin(step))
        value = float(describe_batch(*facts)[1])
        deviation = max(math.sqrt(spread), 0.025)
        summed = min(max(summed + (value - min(level, slow)) / deviation - 1.0, 0.0), 5.0) if step >= 10 else 0.0
        assert past.accept(*facts)
        assert float(past.rise) == pytest.approx(summed, abs=1e-9)
        if step > 0:
            spread += ((value - level) ** 2 - spread) / min(step, 15)
        level += (value - level) / min(step + 1, 4)
        slow += (value - slow) / min(step + 1, 20)
        assert float(past.usual_doubt) == pytest.approx(slow, abs=1e-9)


def test_small_changes_are_never_unusual() -> None:
    past = CalmPast()
    for _ in range(PAST):  # a past without any variance at all
        assert past.accept(*batch(0))
    _, scores, features, shift = batch(0)
    mean = float(past.mean[1]) + 0.9 * SMALLEST_CHANGE[1]
    assert past.accept(likelihoods(torch.full((SAMPLES,), mean, dtype=torch.float64)), scores, features, shift)


def test_nothing_is_unusual_before_there_is_a_past() -> None:
    past = CalmPast()
    assert past.accept(*batch(0, novelty=0.9)) and past.accept(*batch(1, novelty=0.1))


def test_copies_never_teach() -> None:
    logs, scores, features, shift = batch(0)
    assert different_share(features) == 1.0
    assert different_share(features[:1].expand(SAMPLES, -1)) == 1 / SAMPLES
    assert different_share(torch.zeros(SAMPLES, DIM)) == 1 / SAMPLES
    past = CalmPast()
    assert not past.accept(logs, scores, features[:4].repeat(SAMPLES // 4, 1), shift)
    assert past.accept(logs, scores, torch.cat([features[:32], features[:32]]), shift)  # half of them differ
    assert not past.accept(logs, scores, torch.cat([features[:31], features[:31], features[:2]]), shift)


def test_few_deviations_may_be_asked_for_but_not_none() -> None:
    assert CalmPast(0.5).deviations == 0.5
    for none in (0.0, -1.0, math.nan):
        with pytest.raises(DriftgateError, match="positive number of standard deviations"):
            CalmPast(none)


def test_the_shift_of_a_batch_by_hand() -> None:
    """The mixture as one heap: each dimension's mean and variance over all that it has taken in, by their shares."""
    generator = torch.Generator().manual_seed(0)
    mixture = StreamingGMM(3, 2, 1.0)
    past, shares = torch.randn(40, 2, generator=generator), torch.rand(40, 3, generator=generator).softmax(dim=1)
    batch_now = torch.randn(8, 2, generator=generator) + 2.0
    assert mixture_shift(mixture, batch_now) == 0.0  # nothing to be away from
    mixture.update(past, shares)
    expected = 0.0
    for column, now in zip(past.double().T.tolist(), batch_now.double().T.tolist(), strict=True):
        mean = sum(column) / 40
        variance = sum((value - mean) ** 2 for value in column) / 40
        expected += (sum(now) / 8 - mean) ** 2 / variance / 2
    assert float(mixture_shift(mixture, batch_now)) == pytest.approx(expected, rel=1e-4)
    assert not mixture_shift(mixture, batch_now.clone().requires_grad_()).requires_grad  # no graph is held by a look


def test_what_stays_is_the_stream() -> None:
    past = calm_past()
    for seed in range(PATIENCE):
        assert not past.accept(*batch(seed, novelty=0.9))
    assert past.accept(*batch(0, novelty=0.9)) and int(past.taught) == 1


def test_state_survives() -> None:
    past, other = calm_past(), CalmPast()
    other.load_state_dict(past.state_dict())
    clone = past.clone()
    clone.accept(*batch(900))
    assert int(past.taught) == PAST == int(other.taught) and torch.equal(past.mean, other.mean)
