from __future__ import annotations

from typing import get_args

import pytest
import torch
from memory.streams import CLASSES, DIM, stream, tensors

from driftgate.memory import CovarianceForm, StreamingGMM
from driftgate.memory.factors import factorise, try_factorise
from driftgate.memory.frozen import FrozenMixture


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("prior", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("shrinkage", [0.0, 1.0])
@pytest.mark.parametrize("form", get_args(CovarianceForm))
def test_says_what_the_mixture_says(form: CovarianceForm, shrinkage: float, prior: float, temperature: float) -> None:
    *batches, last = stream(6)
    mixture = StreamingGMM(CLASSES + 1, DIM, covariance=form, shrinkage=shrinkage)
    for features, weights in map(tensors, batches):
        mixture.update(features, torch.cat([weights, torch.zeros(len(weights), 1)], dim=1))  # the last is never seen
    features = tensors(last)[0].float()
    found, expected = FrozenMixture(mixture, prior, temperature)(features), mixture.evaluate(features, prior=prior)
    assert torch.allclose(found.log_likelihood, expected.log_likelihood / temperature, rtol=1e-9)
    assert torch.allclose(found.squared_mahalanobis, expected.squared_mahalanobis, rtol=1e-9)


@pytest.mark.parametrize("pivot", range(3))
def test_a_factorisation_fails_at_whichever_pivot(pivot: int) -> None:
    lower = torch.eye(3, dtype=torch.float64)[None].repeat(2, 1, 1)
    lower[1, pivot, pivot] = -1.0
    floor = torch.full((2,), 1e-3, dtype=torch.float64)
    assert try_factorise(lower.clone(), floor)[1].tolist() == [False, True]
    assert bool(factorise(lower.clone(), floor).isfinite().all())
