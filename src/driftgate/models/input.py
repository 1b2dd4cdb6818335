"""What a sample must look like, and how a batch of whatever comes is made into it: pictures or rows of features."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from torch import Tensor
from torch.nn import functional as F

from driftgate.models.pictures import to_grey, to_rgb, upright
from driftgate.text import problems
from driftgate.types import UNKNOWN, UNLABELED, DriftgateError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
KEYS = ("pixel_values", "images", "image", "inputs", "features", "x")
"""Under which of these names a loader's dictionary holds the samples; the first is transformers'."""
LABEL_KEYS = ("labels", "label", "targets", "target", "y")
"""And under which of these the labels, if it has any."""
TOLERANCE = 1e-3
"""How far outside its range a pixel may lie, as a share of the range: resizing overshoots a little."""

LARGEST_SIDE = 4096
"""Of the pictures a model takes: a file that claims more must not make this machine reserve all its memory."""

Interpolation = Literal["bilinear", "bicubic"]


class Resize(BaseModel):
    """How a picture of another size becomes one of the model's: resized to ``input_size / crop``, its middle cut out.

    Attributes:
        crop: share of the resized side that is kept; 224/256 = 0.875 is usual.
        keep_aspect: whether the shorter side is what fits; otherwise the picture is stretched, as the paper does it.
        interpolation: between pixels; always with antialiasing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    crop: float = Field(default=1.0, gt=0.0, le=1.0)
    keep_aspect: bool = True
    interpolation: Interpolation = "bilinear"


PAPER_RESIZE = Resize(crop=224 / 256, keep_aspect=False)
"""The paper resizes to 256 x 256 whatever the aspect ratio and crops 224 x 224; other sizes keep that ratio."""

S = TypeVar("S", bound="InputSpec")


class InputSpec(BaseModel):
    """What a model takes: pictures (C, H, W) or rows of D features, their range and their normalisation.

    Attributes:
        input_size: (height, width) of a picture, or (D,) for rows of features.
        channels: of a picture.
        pixel_range: values between which pixels given as floats lie; inside driftgate they lie in [0, 1].
        mean, std: normalisation, applied inside the model to pixels in [0, 1] or to the rows; one number for all, or
            one for each channel or feature.
        resize: how pictures of another size are brought to ``input_size``; None refuses them.
        flip: whether a mirrored picture still shows the same class; views follow it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    input_size: tuple[int, int] | tuple[int]
    channels: int = Field(default=3, ge=1)
    pixel_range: tuple[float, float] = (0.0, 1.0)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: Resize | None = None
    flip: bool = True

    @field_validator("input_size", mode="before")
    @classmethod
    def _check_size(cls, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or len(value) not in (1, 2):
            raise ValueError(f"expected (height, width) of pictures, or (D,) for rows of features, but got {value!r}")
        return tuple(value)

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _one_for_all(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | float) else value

    @model_validator(mode="after")
    def _check_input(self) -> InputSpec:
        if min(self.std, default=0.0) <= 0 or min(self.input_size) < 1:
            raise ValueError(f"std and input_size must be positive, got {self.std} and {self.input_size}")
        if len(self.input_size) == 2 and max(self.input_size) > LARGEST_SIDE:
            raise ValueError(f"pictures may have sides of at most {LARGEST_SIDE} pixels")
        sizes = (1, self.shape[0])
        if len(self.mean) not in sizes or len(self.std) not in sizes:
            wanted = " or ".join(map(str, sorted(set(sizes))))
            raise ValueError(f"expected {wanted} numbers as mean and std, got {len(self.mean)} and {len(self.std)}")
        if not self.pixel_range[0] < self.pixel_range[1]:
            raise ValueError("pixel_range must be (lowest, highest)")
        return self

    @classmethod
    def parse(cls: type[S], spec: S | dict[str, Any]) -> S:
        """The spec out of keywords or of a checkpoint's metadata; refuses what is none."""
        if isinstance(spec, cls):
            return spec
        try:
            return cls(**spec)  # type: ignore[arg-type]
        except (ValidationError, TypeError) as error:
            wrong = str(error)
            if isinstance(error, ValidationError):
                wrong = problems(error, lambda _: cls.model_fields, "property of a model")
            raise DriftgateError(f"Expected a model's properties but {wrong}; give them so.") from error

    @property
    def kind(self) -> Literal["images", "rows"]:
        return "images" if len(self.input_size) == 2 else "rows"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: (C, H, W) or (D,)."""
        return (self.channels, *self.input_size) if self.kind == "images" else self.input_size

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width; refuses a model of rows."""
        if len(self.input_size) != 2:
            raise DriftgateError(
                f"Expected a model that takes pictures but this one takes rows of {self.input_size}; give it rows "
                "through driftgate.run_stream."
            )
        return self.input_size

    @property
    def expected(self) -> str:
        """Begin of every refusal."""
        return f"Expected {self.kind} of shape (N, {', '.join(map(str, self.shape))})"


def prepare(batch: Any, spec: InputSpec) -> Tensor:
    """A batch as it comes -> float32 (N, C, H, W) with pixels in [0, 1], or (N, D); refuses what would be misread.

    Taken are tensors (channels first), numpy arrays (channels last), lists of pictures of Pillow, of tensors or of
    arrays, and what loaders make of these: (samples, labels) and dictionaries. uint8 pixels are divided by 255, one
    channel is repeated where the model has three, other sizes are resized as the spec says.
    """
    with torch.no_grad():
        samples = _samples_of(batch, spec)
        if isinstance(samples, list | tuple):
            return _stacked(samples, spec)
        return _checked(_tensor(samples, spec, batched=True), spec)


def labels_of(batch: Any, spec: InputSpec, num_classes: int) -> Tensor | None:
    """The labels (N,) int64 of a loader's batch, on the CPU: a class, ``UNKNOWN`` or ``UNLABELED``; None without any.

    They are what stands behind the samples in a pair, or under one of ``LABEL_KEYS`` in a dictionary.
    """
    samples = _samples_of(batch, spec)
    if isinstance(batch, Mapping):
        found = next((batch[key] for key in LABEL_KEYS if key in batch), None)
    else:
        found = batch[1] if samples is not batch and len(batch) > 1 else None
    if found is None:
        return None
    try:
        labels = torch.as_tensor(found).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DriftgateError(
            f"Expected labels (N,) as integers but got {type(found).__name__}; leave others out."
        ) from error
    if labels.dtype not in INTEGERS or labels.shape != (len(samples),):
        raise DriftgateError(
            f"Expected {len(samples)} labels as integers, one a sample, but got {labels.dtype} {tuple(labels.shape)}; "
            "leave others out."
        )
    low, high = (int(end) for end in labels.aminmax()) if len(labels) else (0, 0)
    if low < UNLABELED or high >= num_classes:
        raise DriftgateError(
            f"Expected labels from 0 to {num_classes - 1}, or {UNKNOWN} (driftgate.UNKNOWN) for every other class, but "
            f"got {high if high >= num_classes else low}; map classes the model does not have to UNKNOWN."
        )
    return labels.long()


def _samples_of(batch: Any, spec: InputSpec) -> Any:
    """What a method sees of a loader's batch: neither the labels nor anything else beside the samples."""
    if isinstance(batch, Mapping):
        found = next((key for key in KEYS if key in batch), None)
        if found is None:
            raise DriftgateError(
                f"{spec.expected} but got a dictionary of {', '.join(map(str, batch)) or 'nothing'}; name the samples "
                f"{KEYS[0]!r} or pass them alone."
            )
        return batch[found]
    if isinstance(batch, list | tuple) and batch and not _is_sample(batch[0], spec):
        return batch[0]
    return batch


def _is_sample(item: Any, spec: InputSpec) -> bool:
    """Whether a list's first member is one sample, rather than a batch of them with labels behind it."""
    if isinstance(item, list | tuple):
        return False
    return getattr(item, "ndim", 0) <= len(spec.shape)


def _stacked(samples: Sequence[Any], spec: InputSpec) -> Tensor:
    """Samples one by one, perhaps of many sizes -> one batch."""
    if not samples:
        raise _empty(spec)
    return torch.cat([_checked(_tensor(sample, spec, batched=False).unsqueeze(0), spec) for sample in samples])


def _checked(samples: Tensor, spec: InputSpec) -> Tensor:
    return _pixels(samples, spec) if spec.kind == "images" else _rows(samples, spec)


def _tensor(value: Any, spec: InputSpec, *, batched: bool) -> Tensor:
    """A tensor of a dtype we know, channels first, out of a tensor, an array or a picture."""
    expected = spec.expected
    image = sys.modules.get("PIL.Image")  # whoever has a picture has imported it
    if image is not None and isinstance(value, image.Image):
        if batched or spec.kind == "rows":
            raise DriftgateError(f"{expected} but got one picture; pass a list of pictures.")
        value = upright(value)
        value = np.array(to_grey(value) if spec.channels == 1 else to_rgb(value), dtype=np.uint8)
    if isinstance(value, Tensor):
        _check_storage(value, expected)
        return value.detach()
    if not hasattr(value, "__array__"):
        raise DriftgateError(
            f"{expected} but got {type(value).__name__}; pass a tensor, an array or a list of pictures."
        )
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
        raise DriftgateError(f"{expected} but got an array of {array.dtype}; pass floats or uint8.")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # A copy, for the array may be read-only, reversed, or in the other order of bytes.
    tensor = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    return _channels_first(tensor, spec, batched=batched) if spec.kind == "images" else tensor


def _channels_first(array: Tensor, spec: InputSpec, *, batched: bool) -> Tensor:
    """Arrays have their channels last, or none where the picture is grey; those that have them first may stay."""
    sample_dims, with_channels = array.ndim - batched, array.shape[-1] in (1, spec.channels)
    if sample_dims == 2 and not with_channels:  # with channels it is one picture, and no batch
        return array.unsqueeze(-3)
    return array.movedim(-1, -3) if sample_dims == 3 and with_channels else array


def _check_storage(tensor: Tensor, expected: str) -> None:
    """Refuse tensors whose values cannot be read as plain numbers."""
    if tensor.is_nested:
        raise DriftgateError(f"{expected} but got a nested tensor; resize its parts to one size and stack them.")
    if tensor.layout is not torch.strided:
        raise DriftgateError(f"{expected} but got a sparse tensor; call to_dense() on it.")
    if tensor.is_meta:
        raise DriftgateError(
            f"{expected} but got a tensor on the meta device, which holds no values; move it to a device that does."
        )
    if tensor.dtype not in FLOATS and tensor.dtype not in INTEGERS:
        raise DriftgateError(f"{expected} but got {tensor.dtype}; pass float32 or uint8.")


def _pixels(images: Tensor, spec: InputSpec) -> Tensor:
    """(N, C or 1, h, w) as it came -> (N, C, H, W) float32 in [0, 1]."""
    _check_picture_shape(images, spec)
    if images.dtype == torch.uint8:
        pixels = images.to(torch.float32) / 255.0
    elif images.dtype in FLOATS:
        low, high = spec.pixel_range
        slack = TOLERANCE * (high - low)
        _check_values(images, spec, low - slack, high + slack)
        pixels = images.to(torch.float32)
        if spec.pixel_range != (0.0, 1.0):
            pixels = (pixels - low) / (high - low)
    else:
        raise DriftgateError(
            f"{spec.expected} as uint8, or as floats in {_interval(spec.pixel_range)}, but got {images.dtype}; convert "
            "it to one of them."
        )
    if pixels.shape[1] != spec.channels:
        pixels = pixels.repeat(1, spec.channels, 1, 1)
    return pixels if tuple(pixels.shape[2:]) == spec.image_size else resize_images(pixels, spec)


def _check_picture_shape(images: Tensor, spec: InputSpec) -> None:
    shape, channels = tuple(images.shape), spec.channels
    kind = {1: "grey pictures", 3: "RGB images"}.get(channels, f"pictures of {channels} channels")
    if images.ndim == 4 and shape[1] not in (1, channels) and shape[3] == channels:
        raise DriftgateError(f"{spec.expected} but got {shape}; move channels first.")
    if images.ndim != 4 or shape[1] not in (1, channels):
        raise DriftgateError(f"{spec.expected} but got {shape}; pass a batch of {kind}.")
    if shape[0] == 0:
        raise _empty(spec)
    if shape[2:] != spec.image_size and (spec.resize is None or min(shape[2:]) < 1):
        raise DriftgateError(
            f"{spec.expected} but got {shape}; resize them to the size the model was trained on, or tell the model how "
            "(resize=driftgate.models.Resize(...))."
        )


def _rows(rows: Tensor, spec: InputSpec) -> Tensor:
    """(N, D) of any real numbers -> float32."""
    shape = tuple(rows.shape)
    if rows.ndim != 2 or shape[1:] != spec.shape:
        raise DriftgateError(f"{spec.expected} but got {shape}; pass a batch of rows, one a sample.")
    if shape[0] == 0:
        raise _empty(spec)
    floats = rows.to(torch.float32)
    _check_values(floats, spec, -math.inf, math.inf)
    return floats


def _check_values(values: Tensor, spec: InputSpec, lowest: float, highest: float) -> None:
    # Both ends in one read: a device has to finish its work before the host can see a number.
    low, high = torch.stack(values.aminmax()).tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DriftgateError(f"{spec.expected} with finite values but got NaN or infinity; leave broken samples out.")
    if low < lowest or high > highest:
        raise DriftgateError(
            f"Expected pixels in {_interval(spec.pixel_range)} but got {_interval((low, high))}; the model normalises "
            "by itself, pass them as they are, or as uint8."
        )


def resize_images(images: Tensor, spec: InputSpec) -> Tensor:
    """(N, C, h, w) in [0, 1] -> (N, C, H, W) by the spec's ``resize``."""
    rule, (height, width) = spec.resize, spec.image_size
    assert rule is not None  # refused before
    full = (round(height / rule.crop), round(width / rule.crop))
    if rule.keep_aspect:
        scale = max(full[0] / images.shape[2], full[1] / images.shape[3])
        full = (max(round(images.shape[2] * scale), height), max(round(images.shape[3] * scale), width))
    if tuple(images.shape[2:]) != full:
        images = F.interpolate(images, full, mode=rule.interpolation, antialias=True, align_corners=False)
        images = images.clamp_(0.0, 1.0)  # bicubic overshoots
    top, left = (full[0] - height + 1) // 2, (full[1] - width + 1) // 2
    return images[:, :, top : top + height, left : left + width]


def _empty(spec: InputSpec) -> DriftgateError:
    return DriftgateError(f"{spec.expected} but got an empty batch; pass at least one sample.")


def _interval(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.4g}, {ends[1]:.4g}]"
