"""Writing: whole or not at all, through links and on full disks, by one writer at a time; real faults, not played."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from driftgate import DriftgateError
from driftgate.checkpoint import read_checkpoint, write_checkpoint
from driftgate.files import only_writer, write_atomically, write_text

posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and signals of POSIX")


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that runs ``code`` with driftgate at hand."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_content_and_name_are_on_the_disk_in_that_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut can leave the new name with nothing in it, or neither name."""
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def watched(handle: int) -> None:
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "content")
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append("rename"), replace(old, new)))
    write_text(tmp_path / "x.json", "new")
    assert calls == ["content", "rename", "folder"] and (tmp_path / "x.json").read_text() == "new"
    write_text(tmp_path / "x.json", "often", durable=False)
    assert calls[3:] == ["rename"] and (tmp_path / "x.json").read_text() == "often"
    write_text(tmp_path / "a" / "b" / "x.json", "deep")
    assert calls[4:] == ["content", "rename", "folder", "folder", "folder"], "new folders are names, too"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_text(file, "old")

    def fail(temporary: str) -> None:
        Path(temporary).write_text("half")
        raise OSError("disk full")

    with pytest.raises(DriftgateError, match="disk full"):
        write_atomically(file, fail)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@posix
def test_others_may_read_what_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "x.json", "{}")
    finally:
        os.umask(before)
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o644


@posix
def test_a_file_written_again_keeps_its_mode_also_while_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "secret.json"
    write_text(file, "{}")
    file.chmod(0o600)
    seen: list[int] = []

    def write(temporary: str) -> None:
        Path(temporary).write_text("new")
        seen.append(os.stat(temporary).st_mode & 0o777)

    write_atomically(file, write)
    assert seen == [0o600] and file.stat().st_mode & 0o777 == 0o600 and file.read_text() == "new"


@posix
def test_a_link_is_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "disk" / "x.json", tmp_path / "x.json"
    write_text(real, "old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    assert sorted(path.name for path in real.parent.iterdir()) == ["x.json"]
    (tmp_path / "later.json").symlink_to(tmp_path / "disk" / "not yet.json")
    write_text(tmp_path / "later.json", "new")
    assert (tmp_path / "disk" / "not yet.json").read_text() == "new"


@posix
def test_what_is_no_file_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("loop", "pipe", "folder"):
        with pytest.raises(DriftgateError, match="Expected a file to write"):
            write_text(tmp_path / name, "{}")
    assert (tmp_path / "loop").is_symlink() and (tmp_path / "pipe").is_fifo()
    assert len(list(tmp_path.iterdir())) == 3


KILLED = """
import sys, torch
from driftgate.checkpoint import write_checkpoint
tensors = {"a": torch.zeros(4_000_000)}
number = 0
while True:
    number += 1
    write_checkpoint(sys.argv[1], "thing", {**tensors, "number": torch.tensor(number)}, {})
    print(number, flush=True)
"""


@posix
def test_kills_leave_a_whole_file_and_no_litter(tmp_path: Path) -> None:
    """A real SIGKILL at any moment of a save; the old names of temporaries left a new file of 16 MB each time."""
    file, last = tmp_path / "x.safetensors", 0
    for number in range(5):
        process = start(KILLED, file)
        assert process.stdout is not None
        last = int(process.stdout.readline())
        time.sleep(0.011 * (number + 1))
        process.kill()
        rest = process.communicate()[0].split()
        last = int(rest[-1]) if rest else last
        number_saved = int(read_checkpoint(file, "thing")[0]["number"])
        assert number_saved in (last, last + 1), "what was reported as saved is there"
        assert len(list(tmp_path.iterdir())) <= 2, "at most one half-written file, under one name"
    write_checkpoint(file, "thing", {"number": torch.tensor(0)}, {})
    assert list(tmp_path.iterdir()) == [file]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, where it can be had."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("this system lets nobody mount a disk")
    except FileNotFoundError:
        pytest.skip("this system has no mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_costs_nothing(small_disk: Path) -> None:
    file = small_disk / "x.safetensors"
    write_checkpoint(file, "thing", {"a": torch.ones(10)}, {})
    with pytest.raises(DriftgateError, match="No space left"):
        write_checkpoint(file, "thing", {"a": torch.ones(1_000_000)}, {})
    with pytest.raises(DriftgateError, match="No space left"):
        write_text(small_disk / "y.json", "x" * 2_000_000)
    assert read_checkpoint(file, "thing")[0]["a"].shape == (10,)
    assert list(small_disk.iterdir()) == [file]


LIMITED = """
import resource, signal, sys, torch
from driftgate import DriftgateError
from driftgate.checkpoint import write_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_checkpoint(sys.argv[1], "thing", {"a": torch.ones(1_000_000)}, {})
except DriftgateError as error:
    print(error)
"""


@posix
def test_a_limit_of_the_system_is_one_line(tmp_path: Path) -> None:
    """The same without the right to mount: the system cuts every file at 100 kB."""
    said = start(LIMITED, tmp_path / "x.safetensors").communicate()[0]
    assert said.startswith("Expected to write") and len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


HOLDS = """
import sys, time
from driftgate.files import only_writer
with only_writer(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@posix
def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "x.safetensors"
    refused = pytest.raises(DriftgateError, match=f"only one who writes .* process {os.getpid()}")
    with only_writer(output), refused, only_writer(output):
        raise AssertionError
    process = start(HOLDS, output)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(DriftgateError, match=f"process {process.pid} is at it"), only_writer(output):
        raise AssertionError
    process.send_signal(signal.SIGKILL)
    process.wait()
    with only_writer(output):
        assert [path.name for path in output.parent.iterdir()] == [".x.safetensors.lock"]
    assert list(output.parent.iterdir()) == []


def test_writers_at_once_leave_one_of_their_files(tmp_path: Path) -> None:
    file, problems = tmp_path / "x.txt", []

    def write(letter: str) -> None:
        try:
            for _ in range(30):
                write_text(file, letter * 5000, durable=False)
                assert len(set(file.read_text())) == 1
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [] and list(tmp_path.iterdir()) == [file]


AS_NOBODY = """
import os, sys
from driftgate import DriftgateError
from driftgate.files import only_writer, write_text
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for attempt in (lambda: write_text(sys.argv[1], "x"), lambda: only_writer(sys.argv[1]).__enter__()):
    try:
        attempt()
    except DriftgateError as error:
        print(error)
"""


@posix
def test_a_folder_that_takes_no_files_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "read only"
    folder.mkdir(mode=0o555)
    said = start(AS_NOBODY, folder / "x.json").communicate()[0]
    assert len(said.splitlines()) == 2 and said.count("Permission denied") == 2
    assert list(folder.iterdir()) == []
