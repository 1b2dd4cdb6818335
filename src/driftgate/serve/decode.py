"""Bytes of strangers to samples: few decoders, sizes looked at before anything is decoded, no file ever opened."""

from __future__ import annotations

import base64
import binascii
from io import BytesIO

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from driftgate.models import SourceModel
from driftgate.types import DriftgateError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
"""The decoders that strangers may reach; Pillow has dozens, some of them for printers and paint programs."""


class BadPicture(DriftgateError):
    """A picture that cannot be answered; ``status`` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Pixels:
    """A budget of pixels, spent picture by picture before any of them is decoded."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most

    def spend(self, width: int, height: int) -> None:
        if width * height > self.left:
            raise BadPicture(
                413,
                f"Expected at most {self.most:,} pixels in a request but a picture of {width} x {height} goes beyond; "
                "send it smaller, or alone.",
            )
        self.left -= width * height


def decode(data: bytes, model: SourceModel, pixels: Pixels) -> Tensor:
    """One encoded picture -> one sample (C, H, W) as the model takes it; ``BadPicture`` says what is wrong with it."""
    if not data:
        raise BadPicture(400, "Expected a picture but got no bytes.")
    try:
        picture = Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise BadPicture(
            415, f"Expected a picture as {', '.join(FORMATS)} but these bytes are none of them."
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadPicture(413, "Expected a picture of a sensible size but it claims to be enormous.") from error
    except Exception as error:  # whatever a decoder stumbles over
        raise BadPicture(400, f"Expected a picture but it cannot be read: {_reason(error)}.") from error
    with picture:
        pixels.spend(*picture.size)
        try:
            picture.load()
            return model.prepare([picture])[0]
        except DriftgateError as error:
            raise BadPicture(422, str(error)) from error
        except Exception as error:
            raise BadPicture(400, f"Expected a whole picture but it cannot be decoded: {_reason(error)}.") from error


def from_base64(text: str) -> bytes:
    """The bytes of one picture in JSON; a ``data:`` URL is taken too."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadPicture(400, f"Expected base64 but {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """One line of what a decoder said."""
    return " ".join(str(error).split())[:200] or type(error).__name__
