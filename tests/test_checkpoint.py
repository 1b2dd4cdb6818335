"""Files: written whole or not at all, readable by others, and refused when they are something else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import images_of, small_model

import driftgate
from driftgate import DriftgateError, SourceModel
from driftgate.checkpoint import Pace, read_checkpoint, write_atomically, write_checkpoint, write_text


def test_round_trip_keeps_tensors_and_info(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "x.safetensors"
    tensors = {"a": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "b": torch.arange(3)}
    write_checkpoint(file, "thing", tensors, {"note": "ü"})
    again, info = read_checkpoint(file, "thing")
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    assert info["note"] == "ü"


def test_the_content_is_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut can leave the new name with nothing in it."""
    calls: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append("rename"), replace(old, new)))
    write_text(tmp_path / "x.json", "new")
    assert calls == ["sync", "rename"] and (tmp_path / "x.json").read_text() == "new"
    write_text(tmp_path / "x.json", "often", durable=False)
    assert calls == ["sync", "rename", "rename"] and (tmp_path / "x.json").read_text() == "often"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_text(file, "old")

    def fail(temporary: str) -> None:
        Path(temporary).write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(file, fail)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_others_may_read_what_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "x.json", "{}")
    finally:
        os.umask(before)
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "kind", ["nothing", "folder", "text", "truncated", "foreign", "not json", "list", "other kind"]
)
def test_files_that_are_something_else_are_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "x.safetensors"
    if kind == "folder":
        file.mkdir()
    elif kind == "text":
        file.write_text("hello world")
    elif kind == "truncated":
        small_model().save(file)
        file.write_bytes(file.read_bytes()[:-100])
    elif kind != "nothing":
        document = {"foreign": {}, "not json": {"driftgate": "{"}, "list": {"driftgate": "[]"}}.get(
            kind, {"driftgate": json.dumps({"format": 1, "kind": "cake"})}
        )
        save_file({"a": torch.zeros(1)}, file, metadata=document)
    for load in (SourceModel.load, driftgate.load):
        with pytest.raises(DriftgateError, match="Expected"):
            load(file)


def test_a_network_of_another_shape_is_refused(tmp_path: Path) -> None:
    method = driftgate.create("gmm", small_model())
    method.step(images_of(8, 0))
    method.save(tmp_path / "x.safetensors")
    other = SourceModel.untrained(
        torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 32)),
        class_names=small_model().spec.class_names,
        input_size=(8, 8),
        feature_dim=16,
    )
    with pytest.raises(DriftgateError, match="Expected the weights of 'custom'"):
        driftgate.load(tmp_path / "x.safetensors", model=other)
    with pytest.raises(DriftgateError, match="class_names"):
        driftgate.load(tmp_path / "x.safetensors", model=small_model(num_classes=3))


def test_a_pace_counts_seconds_since_it_was_last_due(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pace, always = Pace(10), Pace(0)
    due = []
    for moment in (105.0, 110.0, 111.0, 119.0, 121.0, 200.0, 201.0):
        now[0] = moment
        due.append(pace.due())
        assert always.due()
    assert due == [False, True, False, False, True, True, False]
