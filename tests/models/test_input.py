"""What a model takes: every form a batch may come in gives the same numbers, and what would be misread is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import driftgate
from driftgate import DriftgateError, SourceModel
from driftgate.lab.data.loading import Transform
from driftgate.models.input import PAPER_RESIZE, InputSpec, Resize, prepare

COLOUR = InputSpec(input_size=(6, 8))
GREY = InputSpec(input_size=(6, 8), channels=1)
ROWS = InputSpec(input_size=(4,))

LEVELS = torch.randint(0, 256, (5, 3, 6, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
PIXELS = LEVELS / 255.0
LAST = LEVELS.permute(0, 2, 3, 1).numpy()
PICTURES = [Image.fromarray(picture) for picture in LAST]
LABELS = torch.arange(5)


@pytest.mark.parametrize(
    "batch",
    [
        LEVELS,
        PIXELS,
        PIXELS.double(),
        LAST,
        LAST.astype(np.float32) / 255,
        LAST.astype(np.longdouble) / 255,
        LAST.astype(">f8") / 255,
        LEVELS.numpy(),
        LAST[::-1][::-1],
        PICTURES,
        tuple(PICTURES),
        list(LAST),
        list(LEVELS),
        [LAST[0], PICTURES[1], LEVELS[2], PIXELS[3], PICTURES[4]],
        (LEVELS, LABELS),
        [LEVELS],
        [LEVELS, LABELS, torch.rand(5)],
        (PICTURES, LABELS),
        {"pixel_values": PIXELS, "labels": LABELS},
        {"label": LABELS, "image": PICTURES},
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_every_form_gives_the_same_pixels(batch: Any) -> None:
    found = prepare(batch, COLOUR)
    assert found.dtype == torch.float32 and found.shape == (5, 3, 6, 8)
    torch.testing.assert_close(found, PIXELS, rtol=0.0, atol=1e-7)


def test_half_precision_is_taken() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(prepare(PIXELS.to(dtype), COLOUR), PIXELS.to(dtype).float())


def test_read_only_arrays_bring_no_warning_and_are_not_written_to() -> None:
    array = LAST.copy()
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(array, COLOUR).zero_()
    assert np.array_equal(array, LAST)


def test_one_channel_is_repeated_where_the_model_has_three() -> None:
    grey = LEVELS[:, :1]
    expected = PIXELS[:, :1].repeat(1, 3, 1, 1)
    flat = grey[:, 0].numpy()
    for batch in (grey, PIXELS[:, :1], flat, flat[..., None], list(flat), [Image.fromarray(one) for one in flat]):
        torch.testing.assert_close(prepare(batch, COLOUR), expected, rtol=0.0, atol=1e-7)
        torch.testing.assert_close(prepare(batch, GREY), PIXELS[:, :1], rtol=0.0, atol=1e-7)


def test_pictures_become_grey_for_a_model_of_one_channel() -> None:
    found = prepare(PICTURES, GREY)
    expected = torch.stack([torch.from_numpy(np.array(picture.convert("L"))) for picture in PICTURES]) / 255.0
    torch.testing.assert_close(found[:, 0], expected)
    with pytest.raises(DriftgateError, match="grey pictures"):
        prepare(LEVELS, GREY)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16", "YCbCr"])
def test_pictures_of_any_mode(mode: str) -> None:
    picture = (
        Image.fromarray(np.full((6, 8), 40_000, dtype=np.uint16))
        if mode == "I;16"
        else Image.new("RGB", (8, 6), "white").convert(mode)
    )
    found = prepare([picture, picture], COLOUR)
    assert found.shape == (2, 3, 6, 8)
    assert float(found.mean()) == pytest.approx(156 / 255 if mode == "I;16" else 1.0, abs=0.01)


def test_pictures_are_turned_as_the_camera_noted_and_left_as_they_were() -> None:
    picture = PICTURES[0].transpose(Image.Transpose.ROTATE_90)
    picture.getexif()[0x0112] = 6
    assert torch.equal(prepare([picture], COLOUR), PIXELS[:1])
    assert picture.size == (6, 8)


def test_the_range_of_floats_is_the_model_s_to_say() -> None:
    signed = COLOUR.model_copy(update={"pixel_range": (-1.0, 1.0)})
    torch.testing.assert_close(prepare(PIXELS * 2 - 1, signed), PIXELS)
    torch.testing.assert_close(prepare(LEVELS, signed), PIXELS)
    wide = COLOUR.model_copy(update={"pixel_range": (0.0, 255.0)})
    torch.testing.assert_close(prepare(LEVELS.float(), wide), PIXELS)
    with pytest.raises(DriftgateError, match=r"pixels in \[-1, 1\] but got \[0.*, 255\]"):
        prepare(LEVELS.float(), signed)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(6, 8), (12, 16), (40, 31), (9, 70), (3, 5)])
def test_other_sizes_are_resized_and_cropped(size: tuple[int, int], interpolation: str) -> None:
    rule = Resize(crop=0.8, interpolation=interpolation)
    spec = COLOUR.model_copy(update={"resize": rule})
    images = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1))
    found = prepare(images, spec)
    assert found.shape == (2, 3, 6, 8) and found.min() >= 0 and found.max() <= 1
    assert torch.equal(found, prepare(list(images), spec))
    if size == (6, 8):
        assert torch.equal(found, images)  # a picture of the right size is left alone
    elif size == (12, 16):
        # 6 x 8 at a crop of 0.8 is the middle of 8 x 10; the height needs the larger factor.
        whole = F.interpolate(images, (8, 11), mode=interpolation, antialias=True, align_corners=False).clamp(0, 1)
        assert torch.equal(found, whole[:, :, 1:7, 2:10])


def test_sizes_may_differ_within_a_list() -> None:
    spec = COLOUR.model_copy(update={"resize": Resize()})
    pictures = [Image.new("RGB", size, (51, 102, 204)) for size in ((8, 6), (30, 9), (7, 40), (4, 4))]
    expected = torch.tensor([0.2, 0.4, 0.8]).view(1, 3, 1, 1).expand(4, 3, 6, 8)
    torch.testing.assert_close(prepare(pictures, spec), expected)


def test_the_paper_s_transform_is_that_of_the_loader() -> None:
    """Resized by torch on floats here, by Pillow on bytes there: the same picture to a level or two."""
    smooth = np.add.outer(np.linspace(0, 120, 90), np.linspace(0, 130, 150))
    picture = Image.fromarray(np.stack([smooth, 250 - smooth, smooth / 2], axis=-1).astype(np.uint8))
    spec = InputSpec(input_size=(56, 56), resize=PAPER_RESIZE)
    difference = prepare([picture], spec)[0] - Transform((56, 56))(picture) / 255.0
    assert difference.abs().max() < 2.5 / 255


def test_without_a_transform_other_sizes_are_refused_with_how() -> None:
    for batch in (torch.rand(2, 3, 7, 8), [Image.new("RGB", (9, 9))]):
        with pytest.raises(DriftgateError, match=r"\(N, 3, 6, 8\) but got .* resize them .*resize=driftgate"):
            prepare(batch, COLOUR)


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(12).view(3, 4),
        torch.arange(12.0, dtype=torch.float64).view(3, 4),
        torch.arange(12, dtype=torch.uint8).view(3, 4),
        np.arange(12.0).reshape(3, 4),
        list(np.arange(12).reshape(3, 4)),
        (torch.arange(12.0).view(3, 4), torch.zeros(3)),
    ],
)
def test_rows_are_numbers_as_they_are(rows: Any) -> None:
    assert torch.equal(prepare(rows, ROWS), torch.arange(12.0).view(3, 4))


def test_a_data_frame_is_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({name: [1.0, 2.0] for name in "abcd"})
    assert torch.equal(prepare(frame, ROWS), torch.tensor([[1.0] * 4, [2.0] * 4]))


BAD: list[tuple[InputSpec, Any, str]] = [
    (COLOUR, PICTURES[0], "one picture; pass a list"),
    (COLOUR, LAST[0], r"got \(6, 8, 3\); pass a batch"),
    (COLOUR, [], "empty batch"),
    (COLOUR, LAST[:0], "empty batch"),
    (COLOUR, {"labels": LABELS}, "dictionary of labels; name the samples 'pixel_values'"),
    (COLOUR, {}, "dictionary of nothing"),
    (COLOUR, None, "got NoneType"),
    (COLOUR, "cat.jpg", "got str"),
    (COLOUR, LAST.astype(np.uint16), "array of uint16; pass floats or uint8"),
    (COLOUR, LAST.astype(np.int32), "as uint8, or as floats"),
    (COLOUR, LAST.astype(bool), "array of bool"),
    (COLOUR, np.array(["a", "b"]), "array of <U1"),
    (COLOUR, LAST.astype(np.complex64), "array of complex64"),
    (COLOUR, LAST * np.float32(1.0), r"pixels in \[0, 1\] but got .* as uint8"),
    (COLOUR, torch.zeros(2, 3, 6, 8, dtype=torch.bool), "torch.bool; pass float32 or uint8"),
    (COLOUR, torch.zeros(2, 6, 8, 3), "move channels first"),
    (COLOUR, [LEVELS[0], LEVELS[1, 0]], "pass a batch of RGB"),
    (COLOUR, torch.rand(2, 4), "pass a batch of RGB"),
    (ROWS, torch.rand(4), "pass a batch of rows"),
    (ROWS, torch.rand(2, 5), r"\(N, 4\) but got \(2, 5\)"),
    (ROWS, torch.rand(2, 4, 1), "pass a batch of rows"),
    (ROWS, [torch.rand(4), torch.rand(5)], r"got \(1, 5\)"),
    (ROWS, torch.full((2, 4), torch.inf), "NaN or infinity"),
    (ROWS, torch.tensor([[1e39] * 4], dtype=torch.float64), "NaN or infinity"),  # beyond float32
    (ROWS, torch.rand(0, 4), "empty batch"),
    (ROWS, PICTURES, "one picture"),
    (ROWS, torch.rand(2, 4).to_sparse(), "to_dense"),
]


@pytest.mark.parametrize(("spec", "batch", "message"), BAD)
def test_what_would_be_misread_is_refused_in_one_line(spec: InputSpec, batch: Any, message: str) -> None:
    with pytest.raises(DriftgateError, match=message) as refused:
        prepare(batch, spec)
    assert str(refused.value).startswith("Expected") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_size": 224}, r"\(height, width\) of pictures, or \(D,\) for rows"),
        ({"input_size": (3, 224, 224)}, r"\(height, width\) of pictures"),
        ({"input_size": (0, 8)}, "positive"),
        ({"input_size": (8, 8), "mean": (0.5, 0.5)}, "expected 1 or 3 numbers"),
        ({"input_size": (5,), "std": (1.0, 1.0, 1.0)}, "expected 1 or 5 numbers"),
        ({"input_size": (8, 8), "std": (0.0,)}, "positive"),
        ({"input_size": (8, 8), "pixel_range": (1.0, 0.0)}, "lowest, highest"),
        ({"input_size": (8, 8), "colour": "red"}, "no property of a model .colour., expected one of"),
        ({"input_size": (8, 8), "resize": {"crop": 1.5}}, "resize.crop: .*, got 1.5"),
    ],
)
def test_a_spec_that_is_none_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DriftgateError, match=message):
        InputSpec.parse(fields)


def test_a_spec_comes_back_from_json() -> None:
    for spec in (COLOUR, ROWS, InputSpec(input_size=(9, 7), mean=(0.1, 0.2, 0.3), resize=Resize(crop=0.9))):
        assert InputSpec.parse(spec.model_dump(mode="json")) == spec


def test_one_number_normalises_all() -> None:
    spec = InputSpec.parse({"input_size": (6, 8), "mean": 0.5, "std": 0.25})
    assert (spec.mean, spec.std) == ((0.5,), (0.25,))


def test_rows_are_normalised_inside_the_model() -> None:
    mean, std = (1.0, 2.0, 3.0, 4.0), (1.0, 0.5, 2.0, 4.0)
    model = SourceModel(nn.Identity(), nn.Linear(4, 2), class_names=["a", "b"], input_size=(4,), mean=mean, std=std)
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(rows).features, (rows - torch.tensor(mean)) / torch.tensor(std))
    assert model.spec.kind == "rows"
    with pytest.raises(DriftgateError, match="takes pictures but this one takes rows"):
        _ = model.spec.image_size


def test_predict_and_step_take_all_forms_alike() -> None:
    def method() -> driftgate.Method:
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        model = SourceModel(backbone, nn.Linear(96, 3), class_names=list("abc"), input_size=(6, 8), pixel_range=(-1, 1))
        return driftgate.create("gmm", model)

    expected: list[Tensor] = []
    for batch in (LEVELS, PIXELS * 2 - 1, LAST, PICTURES, (LEVELS, LABELS), {"pixel_values": LEVELS}):
        one = method()
        answers = [one.predict(batch).scores, one.step(batch).scores, one.step(batch).scores]
        expected = expected or answers
        for answer, wanted in zip(answers, expected, strict=True):
            torch.testing.assert_close(answer, wanted, rtol=1e-4, atol=1e-5)
