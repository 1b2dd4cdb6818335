from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from driftgate.lab.data import loading
from driftgate.types import DriftgateError


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize(("side", "full"), [(224, 256), (112, 128), (28, 32), (32, 37)])
def test_resize_keeps_the_ratio_of_the_paper(side: int, full: int) -> None:
    assert loading.resized(side) == full


@pytest.mark.parametrize("size", [(300, 200), (128, 128), (57, 400), (1, 1)])
def test_test_transform_is_resize_and_centre_crop(size: tuple[int, int]) -> None:
    picture = photo(*size)
    plain = picture.resize((128, 128), Image.Resampling.BILINEAR).crop((8, 8, 120, 120))
    ours = loading.Transform((112, 112))(picture)
    assert ours.dtype == torch.uint8 and ours.shape == (3, 112, 112)
    difference = ours.permute(1, 2, 0).numpy().astype(int) - np.asarray(plain).astype(int)
    assert np.abs(difference).max() <= 1


def test_height_and_width_are_not_exchanged() -> None:
    picture = Image.new("RGB", (100, 50))
    picture.paste((255, 0, 0), (0, 0, 50, 50))
    image = loading.Transform((28, 56))(picture)
    assert image.shape == (3, 28, 56)
    assert image[0, :, :20].min() == 255 and image[0, :, 36:].max() == 0


@pytest.mark.parametrize("place", [(0.0, 0.0), (0.999, 0.999), (1.0, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("size", [(333, 97), (128, 128)])
def test_crop_at_the_corners(place: tuple[float, float], size: tuple[int, int]) -> None:
    picture = photo(*size)
    full = np.asarray(picture.resize((128, 128), Image.Resampling.BILINEAR)).astype(int)
    top, left = (16 if value > 0.5 else 0 for value in place)
    ours = loading.Transform((112, 112), place)(picture).permute(1, 2, 0).numpy().astype(int)
    assert np.abs(ours - full[top : top + 112, left : left + 112]).max() <= 1


def test_mirror_exchanges_left_and_right() -> None:
    picture = photo(90, 60)
    assert torch.equal(loading.Transform((28, 28), mirror=True)(picture), loading.Transform((28, 28))(picture).flip(-1))


def test_train_transform_depends_on_seed_epoch_and_index_alone() -> None:
    def draw(**changes: int) -> loading.Transform:
        return loading.train_transform((224, 224), **{"flip": True, "seed": 0, "epoch": 0, "index": 0, **changes})  # type: ignore[arg-type]

    assert draw() == draw()
    assert len({draw(), draw(seed=1), draw(epoch=1), draw(index=1)}) == 4
    many = [draw(index=index) for index in range(400)]
    assert 140 < sum(transform.mirror for transform in many) < 260
    assert {int(transform.place[0] * 33) for transform in many} == set(range(33))
    assert not any(
        loading.train_transform((8, 8), flip=False, seed=0, epoch=0, index=index).mirror for index in range(50)
    )


def save(folder: Path, picture: Image.Image, name: str, **options: object) -> Path:
    path = folder / name
    picture.save(path, **options)
    return path


def grey_step() -> Image.Image:
    """Left half level 40, right half level 200."""
    values = np.full((16, 16), 40, dtype=np.uint8)
    values[:, 8:] = 200
    return Image.fromarray(values)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("a.png", "L"),
        ("a.png", "LA"),
        ("a.png", "RGB"),
        ("a.png", "RGBA"),
        ("a.png", "P"),
        ("a.gif", "P"),
        ("a.bmp", "L"),
        ("a.tif", "L"),
        ("a.tiff", "CMYK"),
        ("a.jpg", "CMYK"),
        ("a.jpg", "L"),
        ("a.webp", "RGB"),
        ("a.JPEG", "RGB"),
        ("a.tif", "LAB"),
    ],
)
def test_any_mode_shows_the_same_picture(tmp_path: Path, name: str, mode: str) -> None:
    picture = grey_step()
    if mode == "LAB":
        levels = np.zeros((16, 16, 3), dtype=np.uint8)
        levels[..., 0] = np.where(np.asarray(picture) == 40, 39, 204)  # lightness of the two greys, times 2.55
        picture = Image.fromarray(levels, mode="LAB")
    else:
        coloured = picture.convert("RGB")
        picture = coloured.quantize(4) if mode == "P" else coloured.convert(mode)
    options = {"quality": 95} if name.lower().endswith(("jpg", "jpeg", "webp")) else {}
    decoded = loading.decode(save(tmp_path, picture, name, **options))
    assert decoded.mode == "RGB" and decoded.size == (16, 16)
    values = np.asarray(decoded).astype(int)
    assert np.abs(values[:, :6] - 40).max() <= 8
    assert np.abs(values[:, 10:] - 200).max() <= 8


def test_one_bit_and_sixteen_bit_and_float(tmp_path: Path) -> None:
    bits = grey_step().point(lambda level: 255 if level > 100 else 0).convert("1")
    assert np.unique(np.asarray(loading.decode(save(tmp_path, bits, "bits.png")))).tolist() == [0, 255]
    deep = Image.fromarray(np.asarray(grey_step()).astype(np.uint16) * 257)
    assert np.array_equal(
        np.asarray(loading.decode(save(tmp_path, deep, "deep.png")).convert("L")), np.asarray(grey_step())
    )
    assert np.array_equal(
        np.asarray(loading.decode(save(tmp_path, deep, "deep.tif")).convert("L")), np.asarray(grey_step())
    )
    floats = Image.fromarray(np.asarray(grey_step()).astype(np.float32) / 255)
    assert np.array_equal(
        np.asarray(loading.decode(save(tmp_path, floats, "f.tif")).convert("L")), np.asarray(grey_step())
    )


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    clear.paste((10, 20, 30, 255), (0, 0, 4, 8))
    for path in (
        save(tmp_path, clear, "a.png"),
        save(tmp_path, clear, "a.gif"),
        save(tmp_path, clear, "a.webp", lossless=True),
        save(tmp_path, clear.convert("LA"), "la.png"),
        save(tmp_path, Image.new("L", (8, 8), 7), "l.png", transparency=7),
    ):
        assert loading.decode(path).getpixel((6, 4)) == (255, 255, 255)
    assert loading.decode(tmp_path / "a.png").getpixel((1, 4)) == (10, 20, 30)


def test_exif_rotation_is_undone(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the stored picture lies on its side
    picture = Image.new("RGB", (40, 20))
    picture.paste((255, 255, 255), (0, 0, 20, 20))
    decoded = loading.decode(save(tmp_path, picture, "turned.jpg", exif=exif, quality=95))
    assert decoded.size == (20, 40)
    assert decoded.getpixel((10, 5))[0] > 240 and decoded.getpixel((10, 35))[0] < 15


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_does_not_lose_the_picture(tmp_path: Path) -> None:
    path = save(tmp_path, photo(20, 20), "odd.jpg", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff broken")
    assert loading.decode(path).size == (20, 20)


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("L", (8, 8), level) for level in (0, 255)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert loading.decode(tmp_path / "a.gif").getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "missing", "folder"])
def test_broken_images_are_named(tmp_path: Path, damage: str) -> None:
    path = save(tmp_path, photo(64, 64), "x.jpg")
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "text": b"not an image"}[damage])
    with pytest.raises(loading.BrokenImage, match=r"x\.jpg") as caught:
        loading.decode(path)
    assert caught.value.path == str(path)
    if damage == "truncated":
        loading.check_header(path)  # the header alone is sound
    else:
        with pytest.raises(loading.BrokenImage):
            loading.check_header(path)


def test_floats_equal_torch_division() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(3, -1, -1)
    floats = loading.to_floats([levels, levels.flip(-1)])
    assert torch.equal(floats, torch.stack([levels, levels.flip(-1)]).float() / 255.0)
    assert floats.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_load_ahead_keeps_the_order(workers: int) -> None:
    def slow(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item * item

    assert list(loading.load_ahead(slow, range(30), workers=workers)) == [item * item for item in range(30)]


def test_load_ahead_is_bounded_and_ends_its_threads() -> None:
    started: list[int] = []
    before = set(threading.enumerate())
    results = loading.load_ahead(lambda item: started.append(item) or item, range(1000), workers=2, ahead=3)
    assert set(threading.enumerate()) == before, "no thread before the first item is wanted"
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    time.sleep(0.05)
    assert len(started) <= 5 + 3
    results.close()
    assert set(threading.enumerate()) == before


def test_load_ahead_passes_errors_on_and_ends_its_threads() -> None:
    def fail(item: int) -> int:
        if item == 3:
            raise KeyError(item)
        return item

    before = set(threading.enumerate())
    seen = []
    with pytest.raises(KeyError):
        for item in loading.load_ahead(fail, range(100), workers=2):
            seen.append(item)
    assert seen == [0, 1, 2]
    assert set(threading.enumerate()) == before


def test_negative_workers_are_refused() -> None:
    with pytest.raises(DriftgateError, match="workers"):
        next(loading.load_ahead(str, [1], workers=-1))
