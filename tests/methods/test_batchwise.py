"""What all methods made for whole target sets share, applied batch-wise."""

from __future__ import annotations

import pytest
import torch
from support import images_of, small_model

import driftgate
from driftgate.methods.batchwise import BatchwiseMethod

NAMES = [name for name, method in driftgate.available().items() if issubclass(method, BatchwiseMethod)]

pytestmark = pytest.mark.parametrize("name", NAMES)


def test_prediction_is_that_of_the_running_statistics_which_then_follow_the_batch(name: str) -> None:
    method, images = driftgate.create(name, small_model()), images_of(16, 0)
    layer = method.model.backbone[1]
    before = layer.running_mean.clone()
    with torch.no_grad():
        expected = small_model()(images).logits.softmax(dim=1)
    assert torch.equal(method.step(images).scores, expected)
    assert not torch.equal(layer.running_mean, before)
    assert int(layer.num_batches_tracked) == 1  # the eval pass left no trace


def test_torch_works_on_as_many_threads_as_before(name: str) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        driftgate.create(name, small_model()).step(images_of(6, 0))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
