"""A tree of pictures, and a source model trained on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from lab.cli.commands import answer, pretrain_command
from PIL import Image


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of four classes: squares of one brightness a class, darker in the second domain."""
    root = tmp_path_factory.mktemp("tree")
    random = np.random.default_rng(0)
    for domain, scale in (("day", 1.0), ("night", 0.6)):
        for index, name in enumerate(("ape", "bee", "cat", "dog")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(12):
                pixels = random.uniform(0, 60, (28, 28, 3))
                pixels[6 * index : 6 * index + 8] += 180 * scale
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def trained(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source model trained by the command; what it printed lies beside its folder."""
    out = tmp_path_factory.mktemp("model") / "model" / "source.safetensors"
    told = answer(*pretrain_command(tree, out), "--epochs", 2, "--held-out", 0.25)
    (out.parents[1] / "told.json").write_text(json.dumps(told))
    return out
