from __future__ import annotations

import numpy as np
import torch

from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.domains import MemoryDomain
from driftgate.lab.data.drawn import DrawnDomain, distort
from driftgate.lab.data.loading import Transform

SAME = Transform((28, 28))


def bar(size: int = 28) -> torch.Tensor:
    """A white upright bar in the middle, grey by a half, as (3, size, size)."""
    image = torch.zeros(3, size, size, dtype=torch.uint8)
    image[:, size // 4 : -size // 4, size // 2 - size // 14 : size // 2 + size // 14] = 255
    return image


def drawn(seed: int = 0, rounds: int = 3) -> DrawnDomain:
    images = torch.stack([bar(), bar().flip(2), bar().transpose(1, 2)])
    return DrawnDomain("bars", MemoryDomain("plain", images, torch.tensor([0, 1, 2])), rounds=rounds, seed=seed)


def test_a_drawing_depends_on_seed_and_index_alone() -> None:
    domain = drawn()
    assert len(domain) == len(domain.classes) == 9 and domain.classes.tolist() == [0, 1, 2] * 3
    later = domain.load(7, SAME)
    assert torch.equal(drawn().load(7, SAME), later), "whatever was asked for before"
    assert not torch.equal(domain.load(4, SAME), later), "another drawing of the same picture"
    assert not torch.equal(drawn(seed=1).load(7, SAME), later)
    assert domain.describe(7) == "plain[1], drawing 2"


def test_a_drawing_is_a_picture_like_the_original() -> None:
    domain = drawn(rounds=100)
    drawings = torch.stack([domain.load(index, SAME) for index in range(0, 300, 3)])
    assert drawings.dtype == torch.uint8 and drawings.shape == (100, 3, 28, 28)
    assert torch.equal(drawings[:, 0], drawings[:, 1]) and torch.equal(drawings[:, 0], drawings[:, 2])
    ink = drawings[:, 0].float().sum(dim=(1, 2)) / bar()[0].float().sum()
    assert float(ink.min()) > 0.6 and float(ink.max()) < 1.6, "neither lost at the edge nor blown up"
    assert 0.9 < float(ink.mean()) < 1.1 and float(ink.std()) > 0.02
    down = (drawings[:, 0].float().sum(dim=2) * torch.arange(28)).sum(dim=1) / drawings[:, 0].float().sum(dim=(1, 2))
    assert abs(float(down.mean()) - 13.5) < 0.5 and float(down.std()) > 0.5, "moved, to no side rather than another"


def test_the_distortion_is_the_same_for_larger_pictures() -> None:
    """In parts of the picture, not in pixels: the centre of the ink moves as far, though the bending is another."""
    means = []
    for size in (28, 56):
        images = torch.stack([distort(bar(size), np.random.default_rng(seed)) for seed in range(100)])[:, 0].float()
        across = (images.sum(dim=1) * (torch.arange(size) + 0.5)).sum(dim=1) / images.sum(dim=(1, 2)) / size
        means.append(across)
    assert 0.75 < float(means[0].std() / means[1].std()) < 1.33


def test_drawn_digits_are_asked_for_by_name() -> None:
    data = open_dataset("digits")
    assert data.canonical("MNIST drawn") == "mnist-drawn"
    assert "mnist-drawn" not in (*data.targets("rendered"), *data.targets("mnist"), *data.targets("uci"))
    domain = data.domain("mnist-drawn", seed=3)
    mnist = data.domain("mnist")
    assert len(domain) == 44 * len(mnist) and torch.equal(domain.classes[-5000:], mnist.classes)
    assert torch.bincount(domain.classes)[:6].sum() > 2000 * 64, "enough for PDA, which shows the fewest classes"


def test_drawn_digits_keep_their_label() -> None:
    """The handwritten digit most like a drawing, of those it was not made from, is mostly the same digit."""
    data = open_dataset("digits")
    domain, mnist = data.domain("mnist-drawn", seed=0), data.domain("mnist")
    originals = torch.stack([mnist.load(index, SAME)[0].flatten().float() for index in range(len(mnist))])
    chosen = torch.arange(0, 5000, 17)
    drawings = torch.stack([domain.load(int(index) + 5000, SAME)[0].flatten().float() for index in chosen])
    distances = torch.cdist(drawings, originals)
    distances[torch.arange(len(chosen)), chosen] = torch.inf
    alike = mnist.classes[distances.argmin(dim=1)] == mnist.classes[chosen]
    assert float(alike.float().mean()) > 0.75
