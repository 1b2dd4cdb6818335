"""Commands where not all is as usual: no home, another language, a narrow or missing terminal, a folder that is closed,
names that mean harm. Each is a process of its own, for the streams are the process's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from driftgate import checkpoint
from driftgate.lab.cli import options
from driftgate.models import pictures

pytestmark = pytest.mark.skipif(os.name != "posix", reason="streams and names of POSIX")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for domain in ("street", "studio"):
        for name in ("a", "b", "c\x1b[31mred\x07", "d\u202e", "e\udcff"):
            folder = tmp_path / "tree" / domain / name
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / "x\x1b[2J.png")
    (tmp_path / "tree" / "street" / "a" / "bro\x1bken.png").write_text("no image")
    return tmp_path / "tree"


def run(tree: Path, redirections: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """``data check`` through a shell, with an environment of nothing but what is needed and given."""
    command = f"exec '{sys.executable}' -m driftgate data check folder --root '{tree}' --split 3/1/1 {redirections}"
    needed = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    return subprocess.run(["sh", "-c", command], capture_output=True, env={**needed, **environment}, check=False)


def test_no_home_plain_language_forty_columns_and_names_that_mean_harm(tree: Path) -> None:
    done = run(tree, "", LANG="C", LC_ALL="C", COLUMNS="40", PYTHONIOENCODING="ascii")
    assert done.returncode == 1, "one image is broken"
    text = done.stdout.decode("ascii")
    assert "c?[31mred " in text and "bro?ken.png (none of JPEG" in text
    assert not any(ord(letter) < 32 for letter in text if letter != "\n")
    assert b"\x1b" not in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize(("redirections", "code"), [(">&-", 1), (">&- 2>&-", 1), ("> /dev/full", 2), ("| true", None)])
def test_streams_that_take_nothing(tree: Path, redirections: str, code: int | None) -> None:
    done = run(tree, redirections)
    assert code is None or done.returncode == code
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
    if "full" in redirections:
        assert done.stderr.splitlines()[-1] == b"Error: [Errno 28] No space left on device"


def test_the_numbers_of_the_command_are_those_of_the_library() -> None:
    assert options.MAX_PIXELS == pictures.MAX_PIXELS
    assert options.CHECKPOINT_SECONDS == checkpoint.CHECKPOINT_SECONDS
