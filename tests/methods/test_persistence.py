"""Files of before: what their tensors are called today."""

from __future__ import annotations

import pytest
import torch

from driftgate.methods.persistence import with_names_of_today


@pytest.mark.parametrize(
    ("before", "today"),
    [
        ("memory.teacher.backbone.0.weight", "teacher.weights.backbone.0.weight"),
        ("memory.source.head.bias", "source.weights.head.bias"),
        ("memory.source.prototypes", "source.prototypes"),
        ("memory.source.feature_mean", "source.feature_mean"),
        ("memory.stream.counts", "memory.counts"),
        ("memory.gate.thresholds", "gate.fitted"),
        ("memory.gate.thresholds_of_others", "gate.thresholds_of_others"),
        ("memory.mixture.means", "mixture.means"),
        ("memory.pool.rows", "memory.pool.rows"),
        ("memory.gaussian.mean", "memory.gaussian.mean"),
        ("memory.learning.sums", "memory.learning.sums"),
        ("memory.answering.sums", "memory.answering.sums"),
        ("module.reducer.weight", "reducer.weight"),
        ("optimizer.momentum_buffer.module.reducer.weight", "optimizer.momentum_buffer.reducer.weight"),
        ("optimizer.momentum_buffer.reducer.weight", "optimizer.momentum_buffer.reducer.weight"),
        ("model.module.weight", "model.module.weight"),
    ],
)
def test_tensors_have_the_names_of_today(before: str, today: str) -> None:
    tensor = torch.ones(2)
    assert with_names_of_today({before: tensor}) == {today: tensor}
