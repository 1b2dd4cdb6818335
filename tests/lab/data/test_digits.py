from __future__ import annotations

import pytest
import torch

from driftgate.lab.data.digits import CLASS_NAMES, DOMAINS, digit_fonts, load_digits, render_digits
from driftgate.types import DriftgateError


@pytest.mark.parametrize("domain", DOMAINS)
def test_all_domains_look_alike_in_form(domain: str) -> None:
    images, digits = load_digits(domain, per_class=20)
    assert images.dtype == torch.uint8 and images.shape[1:] == (3, 28, 28) and len(images) == len(digits)
    assert digits.dtype == torch.int64 and sorted(set(digits.tolist())) == list(range(len(CLASS_NAMES)))
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(images[:, 0], images[:, 2])
    shares = (images[:, 0] > 127).float().mean(dim=(1, 2))
    assert 0.03 < float(shares.mean()) < 0.4, "white ink on black ground"


def test_rendered_digits_are_seeded() -> None:
    first, digits = render_digits(5, seed=0)
    again, _ = render_digits(5, seed=0)
    other, _ = render_digits(5, seed=1)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert digits.tolist() == [digit for digit in range(10) for _ in range(5)]


def test_every_font_draws_every_digit() -> None:
    assert len(digit_fonts()) >= 10
    images, digits = render_digits(200, seed=0)
    ink = (images[:, 0].float() / 255).sum(dim=(1, 2))
    assert float(ink.min()) > 5, "a font that draws nothing"
    flat = images[:, 0].flatten(1).float()
    means = torch.stack([flat[digits == digit].mean(dim=0) for digit in range(10)])
    nearest = torch.cdist(flat, means).argmin(dim=1)
    assert float((nearest == digits).float().mean()) > 0.7, "a font that draws the same box for all digits"


def test_rendered_digits_are_plain() -> None:
    images, digits = render_digits(1500, seed=0)
    kinds = len(digit_fonts()) * 9
    ones = {image.numpy().tobytes() for image in images[digits == 1]}
    assert kinds * 0.5 < len(ones) <= kinds, "font and size are all that varies: no tilt, no move"
    ink = images[:, 0].float().mean(dim=0)
    across = float((ink.sum(dim=0) * torch.arange(28)).sum() / ink.sum())
    down = float((ink.sum(dim=1) * torch.arange(28)).sum() / ink.sum())
    assert abs(across - 13.5) < 1.0 and abs(down - 13.5) < 1.5, "centred"


def test_unknown_domain() -> None:
    with pytest.raises(DriftgateError, match="mnist, rendered, uci"):
        load_digits("svhn")
