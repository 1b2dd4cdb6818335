"""bn-stats, written out: the batch's own statistics, no gradient, nothing else."""

from __future__ import annotations

import math

import torch
from support import images_of, small_model
from torch import nn

import driftgate
from driftgate import UNKNOWN


def test_it_is_the_network_in_the_mode_that_normalises_by_the_batch() -> None:
    method, by_hand = driftgate.create("bn-stats", small_model(), threshold=0.9), small_model().eval()
    for step in range(3):
        images = images_of(24, seed=step)
        for layer in by_hand.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.train()
        with torch.no_grad():
            scores = by_hand(images).logits.softmax(dim=1)
        doubt = -(scores * scores.log()).sum(dim=1) / math.log(scores.shape[1])
        for answer in (method.predict(images), method.step(images)):
            assert torch.allclose(answer.scores, scores, atol=1e-6)
            assert torch.allclose(answer.novelty.float(), doubt, atol=1e-5)
            assert torch.equal(answer.labels, torch.where(doubt > 0.9, UNKNOWN, scores.argmax(dim=1)))
        for name, value in by_hand.named_buffers():  # moved once, by the step
            assert torch.equal(dict(method.model.named_buffers())[name], value), name


def test_no_weight_moves_and_no_graph_is_kept() -> None:
    method = driftgate.create("bn-stats", small_model())
    before = {name: value.clone() for name, value in method.named_parameters()}
    seen: list[bool] = []
    method.model.register_forward_hook(lambda *call: seen.append(call[2].logits.requires_grad))
    method.step(images_of(24, seed=0))
    assert seen == [False]
    assert all(torch.equal(value, before[name]) for name, value in method.named_parameters())
