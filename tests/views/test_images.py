"""Both sets of augmentations: pixels stay pixels, every sample draws its own, nobody else's random state moves."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from driftgate.rng import seeded
from driftgate.views.images import Augmentation, StrongAugmentation, turn_hue

View = Callable[[Tensor, torch.Generator], Tensor]

SIZES = [(8, 8), (28, 28), (20, 33), (96, 96)]


def both(size: tuple[int, int], *, flip: bool = True) -> list[View]:
    return [Augmentation(flip=flip), StrongAugmentation(size, flip=flip)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 5])
def test_pixels_in_pixels_out(size: tuple[int, int], count: int) -> None:
    images = torch.rand(count, 3, *size, generator=seeded(0))
    for augmentation in both(size):
        before = images.clone()
        for seed in range(5):
            views = augmentation(images, seeded(seed))
            assert views.shape == images.shape and views.dtype == images.dtype
            assert views.isfinite().all() and views.min() >= 0 and views.max() <= 1
        assert torch.equal(images, before)


def test_each_sample_draws_its_own() -> None:
    images = torch.rand(1, 3, 28, 28, generator=seeded(1)).repeat(6, 1, 1, 1)
    for augmentation in both((28, 28)):
        views = augmentation(images, seeded(0))
        assert all((views[0] - views[other]).abs().max() > 0.05 for other in range(1, 6))


def test_draws_come_from_the_generator_alone() -> None:
    images = torch.rand(4, 3, 28, 28, generator=seeded(1))
    for augmentation in both((28, 28)):
        before = torch.get_rng_state()
        one, two, generator = augmentation(images, seeded(3)), augmentation(images, seeded(3)), seeded(3)
        assert torch.equal(one, two)
        assert torch.equal(before, torch.get_rng_state())
        assert not torch.equal(augmentation(images, generator), augmentation(images, generator))


def test_moves_reach_an_eighth_of_the_picture() -> None:
    # A blob in the middle shows the translation alone: rotation and scale leave the centre where it is.
    size, count = 64, 400
    images = torch.zeros(count, 3, size, size)
    images[:, :, size // 2 - 4 : size // 2 + 4, size // 2 - 4 : size // 2 + 4] = 1.0
    light = Augmentation(flip=False)(images, seeded(0)).mean(dim=1)
    light = torch.where(light > 0.2, light, 0.0)
    places = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
    total = light.sum(dim=(1, 2))
    moves = torch.stack([(light.sum(dim=2) @ places) / total, (light.sum(dim=1) @ places) / total]).abs()
    assert moves.amax(dim=1).max() <= size / 8 + 0.75 and moves.amax(dim=1).min() > size / 8 - 0.75
    assert abs(float(moves.mean()) - size / 16) < 0.5  # even over the range: the mean of |U(-s/8, s/8)|


def test_strong_views_are_crops() -> None:
    framed = torch.ones(100, 3, 32, 32)
    framed[:, :, 2:-2, 2:-2] = 0.0
    views = StrongAugmentation((32, 32))(framed, seeded(0)).mean(dim=1)
    sides = torch.stack([views[:, 0], views[:, -1], views[:, :, 0], views[:, :, -1]]).mean(dim=2)
    inside = views[:, 12:20, 12:20].mean(dim=(1, 2))
    whole = (sides > inside + 0.3).all(dim=0)
    assert whole.float().mean() < 0.2


def test_some_strong_views_are_grey_and_half_are_flipped() -> None:
    # A ramp from left to right: only a flip turns it round.
    ramp = torch.linspace(0.2, 0.8, 32).expand(200, 1, 32, 32) * torch.tensor([1.0, 0.6, 0.3]).view(1, 3, 1, 1)
    views = StrongAugmentation((32, 32), flip=False)(ramp.contiguous(), seeded(0))
    grey = (views[:, 0] - views[:, 2]).abs().amax(dim=(1, 2)) < 1e-4
    assert 0.1 < grey.float().mean() < 0.32
    rises = views[:, :, :, -1].mean(dim=(1, 2)) - views[:, :, :, 0].mean(dim=(1, 2))
    assert (rises > 0).all()
    flipped = StrongAugmentation((32, 32), flip=True)(ramp.contiguous(), seeded(0))
    turned = flipped[:, :, :, -1].mean(dim=(1, 2)) < flipped[:, :, :, 0].mean(dim=(1, 2))
    assert 0.35 < turned.float().mean() < 0.65


def test_the_hue_turns_as_in_kornia() -> None:
    from kornia.enhance import adjust_hue

    images = torch.rand(8, 3, 20, 33, generator=seeded(0))
    images[0], images[1] = 0.0, 0.5  # black, grey
    images[2, 1], images[3] = images[2, 0], (3 * images[3]).round() / 3  # ties for the largest channel
    images[4] *= 1e-6
    for angle in torch.linspace(-2.0 * math.pi, 2.0 * math.pi, 13):
        turned = turn_hue(images, angle.expand(8))
        torch.testing.assert_close(turned, adjust_hue(images, angle.expand(8)), rtol=0.0, atol=2e-6)
    third = turn_hue(images, torch.full((8,), 2.0 * math.pi / 3))
    torch.testing.assert_close(third, images[:, [2, 0, 1]], rtol=0.0, atol=2e-6)  # red where green was, and so on


def test_views_are_those_of_kornias_own_hue() -> None:
    from kornia.enhance import adjust_hue

    images = torch.rand(6, 3, 28, 28, generator=seeded(0))
    for quick, plain in zip(both((28, 28)), both((28, 28)), strict=True):
        for layer in plain.layers:  # type: ignore[attr-defined]
            if hasattr(layer, "_hue_fn"):
                assert layer._hue_fn is turn_hue
                layer._hue_fn = adjust_hue
        for seed in range(5):
            torch.testing.assert_close(quick(images, seeded(seed)), plain(images, seeded(seed)), rtol=0.0, atol=1e-5)
