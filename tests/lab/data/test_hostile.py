"""Data that means harm, or met with harm: nothing is executed, nothing hangs, nothing takes all memory, and one bad
file costs itself alone."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tempfile
import textwrap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from driftgate.lab.data.check import check_dataset
from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.domains import LONGEST_LINE, class_folders, image_paths, read_list, read_tree
from driftgate.lab.data.loading import BrokenImage, Transform, check_header, decode, printable
from driftgate.models.pictures import FORMATS
from driftgate.types import DriftgateError

MakePicture = Callable[..., Path]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes, links and modes of POSIX")


def test_no_program_is_run_for_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's EPS decoder starts ``gs`` of the PATH, whatever that is and whatever the file is called."""
    trap, marker = tmp_path / "bin" / "gs", tmp_path / "was run"
    trap.parent.mkdir()
    trap.write_text(f"#!/bin/sh\ntouch '{marker}'\n")
    trap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{trap.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # so that it looks for one again
    eps = tmp_path / "x.jpg"
    eps.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    for read in (decode, check_header):
        with pytest.raises(BrokenImage, match="none of JPEG"):
            read(eps)
    assert not marker.exists()


@pytest.mark.parametrize("kind", sorted({"PPM", "TGA", "PCX", "ICO", "SGI", "DIB", "MSP", "SPIDER"}))
def test_only_the_listed_decoders_are_used(tmp_path: Path, kind: str) -> None:
    picture = Image.new({"MSP": "1", "SPIDER": "F"}.get(kind, "RGB"), (16, 16))
    content = io.BytesIO()
    picture.save(content, kind)
    (tmp_path / "x.png").write_bytes(content.getvalue())
    with pytest.raises(BrokenImage, match="none of"):
        decode(tmp_path / "x.png")


def test_the_listed_decoders_work(tmp_path: Path) -> None:
    for kind in FORMATS:
        Image.new("RGB", (16, 16), (200, 10, 10)).save(tmp_path / "x.png", kind)
        assert decode(tmp_path / "x.png").size == (16, 16), kind


@pytest.mark.timeout(30)
def test_a_pipe_is_not_waited_for(tmp_path: Path, make_picture: MakePicture) -> None:
    make_picture(tmp_path / "photo" / "cat" / "a.jpg")
    os.mkfifo(tmp_path / "photo" / "cat" / "x.jpg")
    (tmp_path / "photo" / "cat" / "zero.png").symlink_to("/dev/zero")
    report = check_dataset("folder", tmp_path, verify=True)
    assert [text.rpartition("/")[2] for text in report.domains[0].unreadable] == [
        "x.jpg (no plain file)",
        "zero.png (no plain file)",
    ]


def png(width: int, height: int) -> bytes:
    """A black picture of one bit a pixel: 100 million pixels in 12 kB."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compress(bytes(height * (1 + (width + 7) // 8)), 9)
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_pixels_are_counted_before_they_are_decoded(tmp_path: Path) -> None:
    bomb, allowed = tmp_path / "bomb.png", tmp_path / "large.png"
    bomb.write_bytes(png(8000, 7000))
    allowed.write_bytes(png(1000, 1000))
    before = _peak_kilobytes()
    for read in (decode, check_header):
        with pytest.raises(BrokenImage, match="8000 x 7000 pixels, more than 50000000"):
            read(bomb)
    assert _peak_kilobytes() - before < 20_000
    assert decode(allowed).size == (1000, 1000)
    with pytest.raises(BrokenImage, match="more than 999999"):
        decode(allowed, max_pixels=999_999)


def _peak_kilobytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_the_pixel_limit_is_a_setting_of_the_data_set(tmp_path: Path, make_picture: MakePicture) -> None:
    make_picture(tmp_path / "photo" / "cat" / "a.png", size=(20, 10))
    make_picture(tmp_path / "photo" / "cat" / "b.png", size=(10, 10))
    assert check_dataset("folder", tmp_path).ok
    report = check_dataset("folder", tmp_path, max_pixels=100)
    assert len(report.domains[0].unreadable) == 1 and "20 x 10 pixels" in report.domains[0].unreadable[0]
    domain = open_dataset("folder", tmp_path, max_pixels=100).domain("photo")
    assert domain.load(1, Transform((8, 8))).shape == (3, 8, 8)
    with pytest.raises(BrokenImage, match="more than 100"):
        domain.load(0, Transform((8, 8)))


def test_looping_links_cost_themselves_alone(tmp_path: Path, make_picture: MakePicture) -> None:
    for name in ("cat", "dog"):
        make_picture(tmp_path / "photo" / name / "a.jpg")
        make_picture(tmp_path / "photo" / name / "inner" / "b.jpg")
    (tmp_path / "photo" / "self").symlink_to("self")  # a link to itself
    (tmp_path / "photo" / "cat" / "x.jpg").symlink_to("x.jpg")
    (tmp_path / "photo" / "cat" / "loop").symlink_to(".")
    (tmp_path / "photo" / "cat" / "up").symlink_to("../..")
    (tmp_path / "photo" / "cat" / "again").symlink_to("inner")
    (tmp_path / "round").symlink_to(".")
    assert list(image_paths(tmp_path / "photo" / "cat")) == ["a.jpg", "again/b.jpg"], "each folder once"
    data = open_dataset("folder", tmp_path)
    assert data.domains == ("photo",) and data.class_names == ("cat", "dog")
    report = check_dataset("folder", tmp_path)
    assert len(report.skipped) == 2 and all("symbolic links" in text for text in report.skipped)
    assert not report.ok and any(line.startswith("skipped: ") for line in report.lines())
    assert [domain.images for domain in report.domains] == [4]


AS_NOBODY = """
import os, sys
from driftgate.lab.data.check import check_dataset
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
report = check_dataset("folder", sys.argv[1])
print([domain.name for domain in report.domains], report.classes, [domain.images for domain in report.domains])
print(*sorted(report.skipped), sep="\\n")
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may look into, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_unreadable_folders_cost_themselves_alone(public_folder: Path, make_picture: MakePicture) -> None:
    for domain, name in (("photo", "cat"), ("photo", "dog"), ("art", "cat"), ("secret", "cat")):
        make_picture(public_folder / domain / name / "a.png")
    for closed in (public_folder / "photo" / "dog", public_folder / "secret"):
        closed.chmod(0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(AS_NOBODY), str(public_folder)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "['art', 'photo'] ['cat'] [1, 1]",
        f"{public_folder}/photo/dog (Permission denied)",
        f"{public_folder}/secret (Permission denied)",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"a/x.jpg 1000000000000", r"from 0 to 999999 in line 2 .* got 1000000000000;"),
        (b"a/x.jpg 1" + b"0" * 30, "from 0 to 999999 in line 2"),
        (b"a/x.jpg " + b"9" * 5000, "Expected 'path label' in line 2 .* and more"),
        (b"a/" + b"x" * 300_000 + b".jpg 1", "line 2 .* and more"),
        (b"\x1b]0;owned\x07/x.jpg one", r"line 2 .* got '\?\]0;owned\?/x.jpg one'"),
        (b"a/x\x00.jpg 1", "line 2"),
    ],
)
def test_absurd_lines_are_refused_in_one_line(tmp_path: Path, line: bytes, message: str) -> None:
    file = tmp_path / "Art_list.txt"
    file.write_bytes(b"a/x.jpg 0\n" + line + b"\na/y.jpg 1\n")
    with pytest.raises(DriftgateError, match=message) as caught:
        read_list(file)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value) and "\x1b" not in str(caught.value)


def test_a_line_without_end_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "Art_list.txt"
    with file.open("wb") as lines:
        lines.truncate(2 * 10**9)  # a hole of two gigabytes, which takes no room on the disk
    before = _peak_kilobytes()
    with pytest.raises(DriftgateError, match="line 1"):
        read_list(file)
    assert _peak_kilobytes() - before < 20_000
    file.write_bytes(b" " * (LONGEST_LINE + 1) + b"\na/x.jpg 0\n")
    with pytest.raises(DriftgateError, match="line 1"):
        read_list(file)


@pytest.mark.parametrize("how", ["absolute", "upwards", "upwards in a later line", "beside the root"])
def test_lists_do_not_lead_out_of_the_root(tmp_path: Path, make_picture: MakePicture, how: str) -> None:
    make_picture(tmp_path / "elsewhere" / "cat" / "2.png")
    make_picture(tmp_path / "data" / "art" / "cat" / "1.png")
    line = {
        "absolute": f"{tmp_path}/elsewhere/cat/2.png 0\n",
        "upwards": "art/../../elsewhere/cat/2.png 0\n",
        "upwards in a later line": "art/cat/1.png 0\nart/cat/../../../elsewhere/cat/2.png 0\n",
        "beside the root": "elsewhere/cat/2.png 0\n",
    }[how]
    (tmp_path / "data" / "art_list.txt").write_text(line)
    with pytest.raises(DriftgateError, match=r"outside of it; give --allow-outside"):
        open_dataset("folder", tmp_path / "data").domain("art")
    domain = open_dataset("folder", tmp_path / "data", allow_outside=True).domain("art")
    assert domain.load(len(domain) - 1, Transform((8, 8))).shape == (3, 8, 8)


@pytest.mark.parametrize("line", ["{root}/art/cat/1.png 0\n", "data/art/cat/1.png 0\n", "art/./cat/../cat/1.png 0\n"])
def test_paths_inside_the_root_may_be_written_in_any_way(tmp_path: Path, make_picture: MakePicture, line: str) -> None:
    make_picture(tmp_path / "data" / "art" / "cat" / "1.png")
    (tmp_path / "data" / "art_list.txt").write_text(line.format(root=tmp_path / "data"))
    assert len(open_dataset("folder", tmp_path / "data").domain("art")) == 1


def test_names_do_not_steer_a_terminal(tmp_path: Path, make_picture: MakePicture) -> None:
    make_picture(tmp_path / "cat" / "a\x1b[2J\n\u202e.jpg")
    domain = read_tree("photo", tmp_path, ["cat"])
    assert domain.describe(0) == f"{tmp_path}/cat/a?[2J??.jpg"
    assert domain.load(0, Transform((8, 8))).shape == (3, 8, 8), "the file itself is read by its real name"
    assert printable("ä\x9b.jpg") == "ä?.jpg"


def test_many_class_folders(tmp_path: Path, make_picture: MakePicture) -> None:
    """3,000 here; ``make fuzz`` does 100,000."""
    picture = make_picture(tmp_path / "one.png")
    for number in range(3_000):
        folder = tmp_path / "photo" / f"class {number:05d}"
        folder.mkdir(parents=True)
        os.link(picture, folder / "x.png")
    names = class_folders(tmp_path / "photo")
    assert len(names) == 3_000
    assert read_tree("photo", tmp_path / "photo", names).classes.tolist() == list(range(3_000))
