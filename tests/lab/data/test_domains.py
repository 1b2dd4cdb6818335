from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from driftgate.lab.data import domains
from driftgate.lab.data.loading import BrokenImage, Transform
from driftgate.types import DriftgateError

MakePicture = Callable[..., Path]


def test_tree_in_ascii_order_without_hidden_files(tmp_path: Path, make_picture: MakePicture) -> None:
    for name in ("zebra", "The_Wall", "aircraft", "TV", "Table"):
        make_picture(tmp_path / name / "b.JPG")
        make_picture(tmp_path / name / "a.png")
        make_picture(tmp_path / name / "B.webp")
    make_picture(tmp_path / ".hidden" / "a.jpg")
    make_picture(tmp_path / "__MACOSX" / "a.jpg")
    make_picture(tmp_path / "TV" / "._a.jpg")
    (tmp_path / "TV" / "Thumbs.db").write_text("no image")
    (tmp_path / "empty").mkdir()
    make_picture(tmp_path / "TV" / "inner" / "c.tiff")
    names = domains.class_folders(tmp_path)
    assert names == ["TV", "Table", "The_Wall", "aircraft", "zebra"]
    assert list(domains.image_paths(tmp_path / "TV")) == ["B.webp", "a.png", "b.JPG", "inner/c.tiff"]
    domain = domains.read_tree("photo", tmp_path, names)
    assert len(domain) == 16
    assert domain.classes.tolist() == [0] * 4 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert domain.describe(3) == str(tmp_path / "TV" / "inner" / "c.tiff")
    assert domain.load(3, Transform((8, 8))).shape == (3, 8, 8)


def test_list_with_blanks_byte_order_mark_and_windows_ends(tmp_path: Path, make_picture: MakePicture) -> None:
    make_picture(tmp_path / "Alarm Clock" / "my photo.jpg")
    make_picture(tmp_path / "Bike" / "ä 1.jpg")
    text = "\ufeffAlarm Clock/my photo.jpg 0\r\n\r\nBike/ä 1.jpg\t1\r\n"
    (tmp_path / "image_unida_list.txt").write_bytes(text.encode())
    listed = domains.read_list(tmp_path / "image_unida_list.txt", 2)
    assert listed.folder_names == {0: "Alarm Clock", 1: "Bike"}
    domain = domains.list_domain("art", listed, [tmp_path], ["Alarm Clock", "Bike"])
    assert domain.classes.tolist() == [0, 1]
    assert all(domain.load(index, Transform((8, 8))).shape == (3, 8, 8) for index in range(2))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("b/y.jpg 12", r"from 0 to 11 in line 3 .* got 12"),
        ("b/y.jpg -1", "line 3 .* got -1"),
        ("b/y.jpg", "line 3"),
        ("b/my photo.jpg", "path label.*line 3"),
        ("b/y.jpg 1.5", "line 3"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "train_list.txt"
    file.write_text(f"a/x.jpg 0\na/y.jpg 11\n{line}\n")
    with pytest.raises(DriftgateError, match=message):
        domains.read_list(file, 12)


def test_empty_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train_list.txt").write_text("\n")
    with pytest.raises(DriftgateError, match="empty"):
        domains.read_list(tmp_path / "train_list.txt")


@pytest.mark.parametrize("prefix", ["/home/somebody/data/", "./data/office/", "../", ""])
def test_paths_of_another_machine_are_found(tmp_path: Path, make_picture: MakePicture, prefix: str) -> None:
    make_picture(tmp_path / "Art" / "Bike" / "1.jpg")
    file = tmp_path / "Art_list.txt"
    file.write_text(f"{prefix}Art/Bike/0.jpg 0\n{prefix}Art/Bike/1.jpg 0\n")  # the first is missing
    domain = domains.list_domain("art", domains.read_list(file), [tmp_path], ["Bike"])
    assert domain.load(1, Transform((8, 8))).shape == (3, 8, 8)
    with pytest.raises(BrokenImage, match="no such file"):
        domain.load(0, Transform((8, 8)))


def test_list_without_its_images(tmp_path: Path) -> None:
    file = tmp_path / "Art_list.txt"
    file.write_text("Art/Bike/1.jpg 0\n")
    with pytest.raises(DriftgateError, match="put the images beside the list"):
        domains.list_domain("art", domains.read_list(file), [tmp_path], ["Bike"])


def test_folders_count_before_the_labels_of_another_order(tmp_path: Path, make_picture: MakePicture) -> None:
    for name in ("Bike", "Drill", "Exit"):
        make_picture(tmp_path / name / "1.jpg")
    file = tmp_path / "Art_list.txt"
    file.write_text("Drill/1.jpg 0\nExit/1.jpg 1\nBike/1.jpg 2\nDrill/1.jpg 0\n")
    domain = domains.list_domain("art", domains.read_list(file), [tmp_path], ["Bike", "Drill", "Exit"])
    assert domain.classes.tolist() == [1, 2, 0, 1]


def test_labels_count_where_folders_show_no_classes(tmp_path: Path, make_picture: MakePicture) -> None:
    make_picture(tmp_path / "all" / "1.jpg")
    file = tmp_path / "Art_list.txt"
    file.write_text("all/1.jpg 2\nall/1.jpg 0\n")
    listed = domains.read_list(file)
    assert listed.folder_names == {}
    assert domains.list_domain("art", listed, [tmp_path], ["a", "b", "c"]).classes.tolist() == [2, 0]
    with pytest.raises(DriftgateError, match="largest is 2"):
        domains.list_domain("art", listed, [tmp_path], ["a", "b"])


@pytest.mark.skipif(os.name != "posix", reason="names that are no UTF-8 exist on POSIX only")
def test_names_that_are_no_utf8(tmp_path: Path, make_picture: MakePicture) -> None:
    odd = os.fsencode(tmp_path) + b"/cat/\xff\xfe.jpg"
    picture = make_picture(tmp_path / "cat" / "a.jpg")
    try:
        os.rename(os.fsencode(picture), odd)
    except OSError:
        pytest.skip("the file system refuses such names")
    domain = domains.read_tree("photo", tmp_path, ["cat"])
    assert domain.load(0, Transform((8, 8))).shape == (3, 8, 8)
    domain.describe(0).encode("utf-8")


def test_memory_domain_leaves_images_of_the_right_size_alone() -> None:
    images = torch.randint(0, 256, (3, 3, 28, 28), dtype=torch.uint8)
    domain = domains.MemoryDomain("mnist", images, torch.tensor([0, 1, 2]))
    assert torch.equal(domain.load(1, Transform((28, 28), place=(0.0, 0.9))), images[1])
    assert torch.equal(domain.load(1, Transform((28, 28), mirror=True)), images[1].flip(-1))
    picture = Image.fromarray(images[2].permute(1, 2, 0).contiguous().numpy())
    assert torch.equal(domain.load(2, Transform((56, 56))), Transform((56, 56))(picture))


@pytest.mark.parametrize("shape", [(3, 28, 28), (2, 1, 28, 28)])
def test_memory_domain_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(DriftgateError, match="uint8 images"):
        domains.MemoryDomain("x", torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape[0]))
