"""The neighbours' opinion: who has a share in an answer, and what is left where there are none."""

from __future__ import annotations

import pytest
import torch
from support import NUM_CLASSES
from torch import Tensor

from driftgate.methods.neighbor_opinion import COUNT, pool_neighbors
from driftgate.models.source_model import ModelOutput


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_those_in_the_same_direction_have_their_share() -> None:
    """Two groups of samples; one sample of each answers otherwise than its group."""
    features = torch.cat([noise(6, 3) * 0.01 + torch.tensor([5.0, 1.0, 1.0]), noise(6, 3) * 0.01 + 1.0])
    logits = torch.zeros(12, NUM_CLASSES)
    logits[:6, 0], logits[6:, 1], logits[0] = 4.0, 4.0, torch.eye(NUM_CLASSES)[2] * 4.0
    found = pool_neighbors(ModelOutput(features, logits), 0.6)
    assert found.features is features
    own, theirs = logits[0].softmax(dim=0), logits[1].softmax(dim=0)
    product = own**0.4 * theirs**0.6
    assert torch.allclose(found.logits[0].exp(), product / product.sum(), atol=1e-6)
    assert found.logits.argmax(dim=1).tolist() == [0] * 6 + [1] * 6
    # Of the others of its group a fifth answered as it did not.
    mixed = theirs**0.4 * (own ** (1 / 5) * theirs ** (4 / 5)) ** 0.6
    assert COUNT == 5 and torch.allclose(found.logits[3].exp(), mixed / mixed.sum(), atol=1e-6)


def test_without_a_share_or_without_others_nothing_is_asked() -> None:
    output = ModelOutput(noise(7, 3), noise(7, NUM_CLASSES))
    assert pool_neighbors(output, 0.0) is output
    alone = ModelOutput(noise(1, 3), noise(1, NUM_CLASSES))
    assert pool_neighbors(alone, 0.5) is alone
    pair = pool_neighbors(ModelOutput(noise(2, 3), noise(2, NUM_CLASSES)), 0.5).logits
    assert torch.allclose(pair[0], pair[1], atol=1e-6)  # each is the other's only neighbour


@pytest.mark.parametrize("features", [torch.zeros(8, 3), torch.full((8, 3), 1e30), 1e-30 * noise(8, 3)])
def test_features_without_a_direction_leave_answers_finite(features: Tensor) -> None:
    logits = noise(8, NUM_CLASSES)
    logits[0, 0], logits[1, 1] = 1e30, -1e30
    found = pool_neighbors(ModelOutput(features, logits), 0.3).logits
    assert bool(found.isfinite().all()) and torch.allclose(found.exp().sum(dim=1), torch.ones(8))


def test_a_common_offset_makes_no_other_neighbors() -> None:
    """Features behind a ReLU have one: seen from zero they would all lie in one direction."""
    features, logits = noise(20, 6, seed=1), 3.0 * noise(20, NUM_CLASSES, seed=2)
    plain, moved = (pool_neighbors(ModelOutput(features + offset, logits), 0.5).logits for offset in (0.0, 50.0))
    assert torch.allclose(plain, moved, atol=1e-4)


def test_features_and_logits_of_fewer_digits_are_not_rounded_again() -> None:
    rough = ModelOutput(noise(20, 6, seed=1).bfloat16(), noise(20, NUM_CLASSES, seed=2).bfloat16())
    exact = ModelOutput(rough.features.float(), rough.logits.float())
    assert torch.equal(pool_neighbors(rough, 0.5).logits, pool_neighbors(exact, 0.5).logits)
