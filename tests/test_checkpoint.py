"""Checkpoints: what was written comes back, and what is damaged, hostile or something else is refused."""

from __future__ import annotations

import json
import logging
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support import images_of, small_model

import driftgate
from driftgate import DriftgateError, SourceModel
from driftgate.checkpoint import DTYPES, KEY, SUM_KEY, SUMS, Pace, read_checkpoint, write_checkpoint


def test_round_trip_keeps_tensors_and_info(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "x.safetensors"
    tensors = {"a": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "b": torch.arange(3)}
    for number, dtype in enumerate(DTYPES):
        tensors |= {f"{number} many": torch.arange(5).to(dtype), f"{number} one": torch.ones((), dtype=dtype)}
    tensors |= {"none": torch.zeros(0, 3), "view": tensors["b"][1:], "turned": torch.randn(3, 4).T}
    write_checkpoint(file, "thing", tensors, {"note": "ü"})
    again, info = read_checkpoint(file, "thing")
    assert again.keys() == tensors.keys() and load_file(file).keys() == tensors.keys()
    assert all(tensors[name].dtype == again[name].dtype for name in tensors)
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    assert info["note"] == "ü"


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
    for name, settings in (("x", {"second_opinion": 0.0}), ("y", {})):
        method = driftgate.create("gmm", small_model(), **settings)
        method.step(images_of(8, 0))
        method.save(tmp_path / f"{name}.safetensors")
    other = SourceModel.untrained(
        torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 32)),
        class_names=small_model().spec.class_names,
        input_size=(8, 8),
        feature_dim=16,
    )
    with pytest.raises(DriftgateError, match="Expected the weights of 'custom'"):
        driftgate.load(tmp_path / "x.safetensors", model=other)
    with pytest.raises(DriftgateError, match=r"second_opinion\.statistics .* load it with the model"):
        driftgate.load(tmp_path / "y.safetensors", model=other)
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


def rewritten(file: Path, change: Any) -> None:
    """The file again, with its document and tensors as ``change`` leaves them; checksums of an older version: none."""
    with safe_open(file, framework="pt") as opened:
        document = json.loads(opened.metadata()[KEY])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    document.pop(SUMS)
    text = change(document, tensors)
    save_file(tensors, file, metadata={KEY: text if isinstance(text, str) else json.dumps(document)})


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    file, damaged = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
    method = driftgate.create("gmm", small_model(), min_batch=1)
    method.step(images_of(8, 0))
    method.save(file)
    content, draw = file.read_bytes(), random.Random(0)
    (header,) = struct.unpack("<Q", content[:8])
    before, info = read_checkpoint(file, "method")
    silent = 0
    for number in range(600):
        place = draw.randrange(8 + header, len(content)) if number < 400 else draw.randrange(8 + header)
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw.randrange(8)
        damaged.write_bytes(flipped)
        try:
            after, told = read_checkpoint(damaged, "method")
        except DriftgateError:
            continue
        # A blank at the header's end may change into another: then nothing of what was written has.
        assert number >= 400 and told == info and after.keys() == before.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        silent += 1
    assert silent < 20


def test_files_without_checksums_load_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "x.safetensors"
    driftgate.create("source-only", model := named_model()).save(file)
    rewritten(file, lambda document, tensors: None)
    with caplog.at_level(logging.WARNING):
        again = driftgate.load(file)
    assert "before checkpoints had checksums" in caplog.text
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(again.predict(images).scores, driftgate.create("source-only", model).predict(images).scores)


def test_a_checksum_that_was_taken_away_is_missed(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    write_checkpoint(file, "thing", {"a": torch.ones(3)}, {})
    with safe_open(file, framework="pt") as opened:
        document = json.loads(opened.metadata()[KEY])
    for metadata in (
        {KEY: json.dumps(document)},
        {KEY: json.dumps({**document, SUMS: {}}), SUM_KEY: "00000000"},
        {KEY: json.dumps({**document, SUMS: "none"})},
    ):
        save_file({"a": torch.ones(3)}, file, metadata=metadata)
        with pytest.raises(DriftgateError, match="damaged; take a copy"):
            read_checkpoint(file, "thing")


def named_model() -> SourceModel:
    return SourceModel.build("cnn", ["a", "b"], input_size=(8, 8), feature_dim=4)


DEEP = "[" * 100_000 + "]" * 100_000


def replaced(*path: str, by: object) -> Any:
    """Change one value in the document."""

    def change(document: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = by

    return change


HOSTILE: dict[str, Any] = {
    "deep": lambda document, tensors: DEEP,
    "deep inside": lambda document, tensors: json.dumps(document)[:-1] + f', "settings": {DEEP}}}',
    "huge number": lambda document, tensors: f'{{"format": {"9" * 5000}}}',
    "format of another kind": replaced("format", by={}),
    "kind of another kind": replaced("kind", by=[]),
    "no settings": replaced("settings", by=None),
    "settings as a list": replaced("settings", by=["seed"]),
    "settings that are arguments": replaced("settings", by={"preset": "paper", "model": 1, "name": 2, "views": 3}),
    "method as a list": replaced("method", by=["gmm"]),
    "method as nothing": replaced("method", by=None),
    "views as an object": replaced("views", by={"a": 1}),
    "model as text": replaced("model", by="cnn"),
    "model as nothing": replaced("model", by=None),
    "backbone as a number": replaced("model", "backbone", by=5),
    "huge feature_dim": replaced("model", "feature_dim", by=10**12),
    "feature_dim beyond all integers": replaced("model", "feature_dim", by=10**40),
    "huge pictures": replaced("model", "input_size", by=[10**6, 10**6]),
    "size of text": replaced("model", "input_size", by=["a", "b"]),
    "infinite mean": replaced("model", "mean", by=[float("inf")] * 3),
    "seed of text": replaced("settings", "seed", by="x"),
    "rng too short": lambda document, tensors: tensors.update(rng=torch.zeros(3, dtype=torch.uint8)),
    "rng of floats": lambda document, tensors: tensors.update(rng=torch.zeros(5056)),
    "several steps": lambda document, tensors: tensors.update(steps=torch.zeros(3)),
    "steps without end": lambda document, tensors: tensors.update(steps=torch.tensor(float("inf"))),
    "no steps": lambda document, tensors: tensors.pop("steps"),
    "misshapen memory": lambda document, tensors: tensors.update(
        {name: torch.zeros(2, 2) for name in tensors if name.startswith("mixture.")}
    ),
    "foreign momentum": lambda document, tensors: tensors.update({"optimizer.momentum_buffer.nobody": torch.ones(1)}),
    "momentum without a name": lambda document, tensors: tensors.update({"optimizer.x": torch.ones(1)}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_content_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "x.safetensors"
    method = driftgate.create("gmm", named_model(), min_batch=1)
    method.step(torch.rand(8, 3, 8, 8))
    method.save(file)
    rewritten(file, HOSTILE[kind])
    with pytest.raises(DriftgateError, match=r"Expected|Settings") as caught:
        driftgate.load(file)
    assert len(str(caught.value)) < 4000
    model = tmp_path / "model.safetensors"
    named_model().save(model)
    if kind in ("deep", "huge number") or kind.startswith("model") or "pictures" in kind or "feature_dim" in kind:
        rewritten(model, HOSTILE[kind])
        with pytest.raises(DriftgateError, match="Expected"):
            SourceModel.load(model)
