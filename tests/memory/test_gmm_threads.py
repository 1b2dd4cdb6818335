"""The mixture gives the same on any number of threads, and leaves their number alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest
import torch
from torch import Tensor

from driftgate.memory import CovarianceForm, StreamingGMM

FORMS = get_args(CovarianceForm)


def test_few_classes_leave_the_number_of_threads_as_it_was() -> None:
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        mixture = StreamingGMM(2, 3)
        mixture.update(torch.randn(4, 3), torch.rand(4, 2))
        mixture.evaluate(torch.randn(4, 3))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(usual)


@pytest.mark.parametrize("covariance", FORMS)
@pytest.mark.parametrize("threads", [1, 3])
def test_repetition_is_bit_for_bit_on_any_number_of_threads(threads: int, covariance: CovarianceForm) -> None:
    """100 classes make several blocks, so that three threads do share the work."""
    generator = torch.Generator().manual_seed(0)
    features, weights = torch.randn(16, 64, generator=generator), torch.rand(16, 100, generator=generator)

    def once() -> tuple[Tensor, Tensor]:
        mixture = StreamingGMM(100, 64, covariance=covariance, shrinkage=1.0)
        mixture.update(features, weights)
        with torch.inference_mode():
            return mixture.packed_covariances, mixture.log_likelihood(features)

    usual = torch.get_num_threads()
    expected = once()
    torch.set_num_threads(threads)
    try:
        found, again = once(), once()
        with ThreadPoolExecutor(1) as fresh:  # neither this thread's number of threads changed, nor that of new ones
            assert torch.get_num_threads() == fresh.submit(torch.get_num_threads).result() == threads
    finally:
        torch.set_num_threads(usual)
    assert torch.equal(found[0], again[0])
    assert torch.equal(found[1], again[1])
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=0.0)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=0.0)
