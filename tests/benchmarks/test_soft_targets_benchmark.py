"""benchmarks/soft_targets.py: what it counts."""

from __future__ import annotations

import torch
from support import images_of, load_benchmark, small_model
from torch.nn import functional as F

benchmark = load_benchmark("soft_targets")


def test_a_guess_and_its_seconds() -> None:
    centers = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    features = F.normalize(centers.repeat(6, 1) + 0.01 * torch.randn(24, 16), dim=1)
    ratio, seconds = benchmark.guess(features, 8, (0.5, 2.0))
    assert ratio == 0.5 and seconds > 0
    assert benchmark.guess(features[:2], 8, (0.5, 2.0))[0] is None


def test_own_neighbours_are_counted_and_the_model_stays() -> None:
    model, images = small_model().eval(), images_of(24, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        bank = F.normalize(model(images).features, dim=1)
    share = benchmark.own_neighbor_share(model, images, bank, 4)
    normalised = small_model().eval()
    for layer in (normalised.backbone[1], normalised.bottleneck[1]):
        layer.train()
    with torch.no_grad():
        order = (normalised(images).features @ bank.T).argsort(dim=1, descending=True).tolist()
    assert share == sum(row in order[row][1:5] for row in range(24)) / 24 > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
