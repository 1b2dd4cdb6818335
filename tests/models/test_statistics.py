"""Source statistics against slow references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driftgate.models.statistics import SourceStatistics, source_statistics
from driftgate.types import DriftgateError


@pytest.mark.parametrize("sizes", [[97], [32, 32, 32, 1], [1] * 97])
def test_statistics_equal_a_slow_reference(sizes):
    generator = torch.Generator().manual_seed(1)
    # Far from the origin, where naive sums of squares in float32 would lose the covariance.
    features = 1000 + torch.randn(97, 6, generator=generator) * torch.tensor([1.0, 2, 3, 0.1, 1, 1])
    labels = torch.arange(97) % 3
    batches = zip(features.split(sizes), labels.split(sizes), strict=True)
    found = source_statistics(batches, ("a", "b", "c"), 6)
    slow = features.double().numpy()
    prototypes = np.stack([slow[labels.numpy() == label].mean(axis=0) for label in range(3)])
    np.testing.assert_allclose(found.prototypes, prototypes, rtol=1e-6)
    np.testing.assert_allclose(found.feature_mean, slow.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.feature_covariance, np.cov(slow.T), rtol=1e-5, atol=1e-7)
    assert {tensor.dtype for tensor in found.tensors().values()} == {torch.float32}


def test_batches_may_be_a_stream_that_is_never_held():
    alive = 0

    def batches():
        nonlocal alive
        for _ in range(50):
            alive += 1
            yield torch.randn(8, 4), torch.arange(8) % 2

    assert source_statistics(batches(), ("a", "b"), 4).prototypes.shape == (2, 4)
    assert alive == 50


def test_a_class_without_images_is_named():
    with pytest.raises(DriftgateError, match="none of owl;"):
        source_statistics([(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))], ("cat", "dog", "owl"), 2)
    with pytest.raises(DriftgateError, match="none of cat, dog;"):
        source_statistics([], ("cat", "dog"), 2)


def test_tensors_round_trip():
    whole = SourceStatistics(torch.rand(3, 2), torch.rand(2), torch.rand(2, 2))
    only_prototypes = SourceStatistics(torch.rand(3, 2))
    for statistics in (whole, only_prototypes):
        again = SourceStatistics.from_tensors(statistics.tensors())
        assert again is not None
        assert again.tensors().keys() == statistics.tensors().keys()
    assert only_prototypes.feature_mean is None
    assert SourceStatistics.from_tensors({}) is None
