"""Pictures of Pillow in any mode, as eight-bit RGB or grey; Pillow is imported only by those who have a picture."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""The only decoders that are used, whatever a file is called: Pillow's others are many, and one of them (EPS) runs
Ghostscript."""
MAX_PIXELS = 50_000_000
"""Of a picture that is decoded: a file of 172 kB can hold 400 million, which take more than a gigabyte."""

ORIENTATION = 0x0112
"""The note about how the camera was held; 1 is upright."""


def open_picture(file: BinaryIO, max_pixels: int = MAX_PIXELS) -> Image:
    """The picture in an open file, not decoded yet; ValueError if it is too large, Pillow's errors if it is none."""
    from PIL import Image

    picture = Image.open(file, formats=FORMATS)
    if min(picture.size) < 1 or picture.width * picture.height > max_pixels:
        raise ValueError(f"{picture.width} x {picture.height} pixels, more than {max_pixels} or none at all")
    return picture


def to_rgb(picture: Image) -> Image:
    """Any mode -> RGB. Deep greyscale keeps its upper 8 bits, and transparent parts become white as on paper."""
    from PIL import Image, ImageCms

    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode.startswith("I"):
        deep = np.asarray(picture).astype(np.int64).clip(0, 65535)
        return Image.fromarray((deep >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode == "F":
        levels = np.nan_to_num(np.asarray(picture, dtype=np.float64))
        levels = levels * 255.0 if levels.max() <= 1.0 else levels
        return Image.fromarray(levels.clip(0, 255).round().astype(np.uint8)).convert("RGB")
    if picture.mode in {"LA", "La", "PA", "RGBA", "RGBa"} or "transparency" in picture.info:
        if picture.mode == "La":
            picture = picture.convert("LA")
        clear = picture.convert("RGBA")
        paper = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, clear).convert("RGB")
    if picture.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        picture = ImageCms.profileToProfile(picture, lab, srgb, outputMode="RGB") or picture
    return picture.convert("RGB")


def to_grey(picture: Image) -> Image:
    """Any mode -> eight-bit grey, by way of RGB where that decides about depth and transparency."""
    return picture if picture.mode == "L" and "transparency" not in picture.info else to_rgb(picture).convert("L")


def upright(picture: Image) -> Image:
    """Turned as the camera noted it; damaged notes are no reason to lose the picture."""
    from PIL import ImageOps

    with suppress(Exception):
        if picture.getexif().get(ORIENTATION, 1) != 1:
            return ImageOps.exif_transpose(picture)
    return picture
