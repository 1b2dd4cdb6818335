from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

VISDA_COUNTS = {
    "aeroplane": 3646,
    "bicycle": 3475,
    "bus": 4690,
    "car": 10401,
    "horse": 4691,
    "knife": 2075,
    "motorcycle": 5796,
    "person": 4000,
    "plant": 4549,
    "skateboard": 2281,
    "train": 4236,
    "truck": 5548,
}
"""Images of each class in VisDA-C's validation domain."""

TreeMaker = Callable[[Path, dict[str, int]], Path]


def write_picture(path: Path, seed: int = 0, size: tuple[int, int] = (20, 16)) -> Path:
    """A small JPEG of random blocks; ``seed`` makes it different from others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST).save(path, format="JPEG")
    return path


def write_tree(folder: Path, counts: dict[str, int]) -> Path:
    """``folder``/<class>/*.jpg with so many images; all of a class are links to one file, so that it is cheap."""
    for number, (name, count) in enumerate(counts.items()):
        inside = folder / name
        inside.mkdir(parents=True, exist_ok=True)
        if count:
            first = write_picture(inside / "image_00000.jpg", seed=number)
            for index in range(1, count):
                os.link(first, inside / f"image_{index:05d}.jpg")
    return folder


@pytest.fixture
def make_tree() -> TreeMaker:
    return write_tree


@pytest.fixture
def make_picture() -> Callable[..., Path]:
    return write_picture


@pytest.fixture(scope="session")
def visda_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with as many images as VisDA-C's validation domain, and a small train domain."""
    root = tmp_path_factory.mktemp("visda")
    write_tree(root / "validation", VISDA_COUNTS)
    write_tree(root / "train", dict.fromkeys(VISDA_COUNTS, 2))
    return root


@pytest.fixture(scope="session")
def pacs_root() -> Path:
    root = Path(__file__).parents[4] / "shared" / "data" / "pacs128"
    if not root.is_dir():
        pytest.skip("PACS is not at hand")
    return root
