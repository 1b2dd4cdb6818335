"""A plain folder as a stream: the order, what comes later, what cannot be read, what the model is given."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from driftgate import DriftgateError
from driftgate.lab.data import pictures
from driftgate.lab.data.loading import Transform, decode
from driftgate.lab.data.pictures import PictureFolder
from driftgate.models.input import PAPER_RESIZE, InputSpec, Resize, prepare

SPEC = InputSpec(input_size=(8, 8), resize=PAPER_RESIZE)
LONG_AGO = time.time() - 3600


def draw(path: Path, age: float = 0.0, size: tuple[int, int] = (20, 12)) -> Path:
    """A picture of noise that was written ``age`` seconds before the others."""
    path.parent.mkdir(exist_ok=True)
    random = np.random.default_rng(len(path.name))
    Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    os.utime(path, (LONG_AGO - age, LONG_AGO - age))
    return path


def test_newest_last_and_cut_into_batches(tmp_path: Path) -> None:
    for name, age in (("b.png", 0), ("a.png", 0), ("old/z.png", 5), ("c.png", 9), ("d.png", -9)):
        draw(tmp_path / name, age)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden.png").write_text("neither")
    batches = list(PictureFolder(tmp_path, SPEC, batch_size=2))
    assert [batch["files"] for batch in batches] == [["c.png", "old/z.png"], ["a.png", "b.png"], ["d.png"]]
    assert [tuple(batch["images"].shape) for batch in batches] == [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]


def test_pictures_that_cannot_be_read_are_skipped_and_counted(tmp_path: Path) -> None:
    draw(tmp_path / "good.png")
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_bytes(b"no picture")
    folder = PictureFolder(tmp_path, SPEC, batch_size=1)
    assert [batch["files"] for batch in folder] == [["good.png"]]
    assert sorted(Path(name).name for name in folder.skipped) == ["a.png", "b.jpg"]


def test_a_folder_that_is_followed_gives_what_comes_later_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "LOOK_SECONDS", 0.0)
    draw(tmp_path / "first.png")
    folder = PictureFolder(tmp_path, SPEC, follow=True, idle=0.2, done=["before.png"])
    draw(tmp_path / "before.png")
    given = iter(folder)
    assert next(given)["files"] == ["first.png"]
    draw(tmp_path / "second.png")
    assert next(given)["files"] == ["second.png"]
    assert list(given) == [], "nothing new came within the limit"


def test_a_picture_that_is_being_written_waits(tmp_path: Path) -> None:
    folder = PictureFolder(tmp_path, SPEC, follow=True)
    path = draw(tmp_path / "slow.png")
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    assert folder.look() == [], "just written: it may grow"
    path.write_bytes(whole)
    assert folder.look() == [], "it has grown"
    assert folder.look() == ["slow.png"], "it has not changed since the last look"
    assert folder.look() == []


def test_it_stops_where_it_is_asked_to(tmp_path: Path) -> None:
    for name in "abc":
        draw(tmp_path / f"{name}.png")
    seen: list[str] = []
    folder = PictureFolder(tmp_path, SPEC, batch_size=1, follow=True, stopped=lambda: len(seen) == 2)
    for batch in folder:
        seen += batch["files"]
    assert seen == ["a.png", "b.png"]


def test_the_model_sees_what_it_would_see_elsewhere(tmp_path: Path) -> None:
    picture = decode(draw(tmp_path / "a.png", size=(30, 20)))
    as_in_training = Transform((8, 8))(picture)
    assert torch.equal(next(iter(PictureFolder(tmp_path, SPEC)))["images"][0], as_in_training)
    unsaid = InputSpec(input_size=(8, 8))
    assert torch.equal(next(iter(PictureFolder(tmp_path, unsaid)))["images"][0], as_in_training)
    own = InputSpec(input_size=(8, 8), resize=Resize(crop=0.5), channels=1, pixel_range=(-1.0, 1.0))
    found = next(iter(PictureFolder(tmp_path, own)))["images"]
    assert found.shape == (1, 1, 8, 8)
    assert torch.allclose(prepare(found, own), prepare([picture], own), atol=0.5 / 255 + 1e-6)


def test_what_is_no_folder_of_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DriftgateError, match="Expected a folder of pictures"):
        PictureFolder(tmp_path / "nowhere", SPEC)
    with pytest.raises(DriftgateError, match="takes rows"):
        PictureFolder(tmp_path, InputSpec(input_size=(8,)))
