"""What ``pretrain``, ``adapt`` and ``import-checkpoint`` share: the data set, its split, and files of stopped runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

from driftgate.data.datasets import DataSet, open_dataset
from driftgate.data.shifts import ClassOrder, ClassSplit
from driftgate.types import DriftgateError


def check_class_order(text: str) -> ClassOrder:
    """The class order of that name."""
    known = get_args(ClassOrder)
    if text not in known:
        raise DriftgateError(f"Expected a class order out of {', '.join(known)} but got {text!r}.")
    return cast(ClassOrder, text)


def open_split(
    data: str, root: Path | None, shift: str | None, split: str | None, class_order: str
) -> tuple[DataSet, ClassSplit]:
    """The data set and the split that the options name."""
    order = check_class_order(class_order)
    opened = open_dataset(data, root)
    return opened, opened.split(shift, order, split)


def source_class_names(data: DataSet, split: ClassSplit) -> tuple[str, ...]:
    """Names of the source classes, in the order of the classifier's outputs."""
    return tuple(data.class_names[index] for index in split.source_classes)


def split_names(texts: Sequence[str]) -> list[str]:
    """Names out of an option that may be repeated and may hold several, separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """``["lr=0.01", "gate=frozen"]`` -> settings; a value is JSON where it can be, else text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise DriftgateError(f"Expected --set key=value but got {pair!r}.")
        try:
            settings[key.strip()] = json.loads(value)
        except json.JSONDecodeError:
            settings[key.strip()] = value
    return settings


def progress_file(path: Path, resume: bool) -> Path:
    """The file of a run that may have been stopped; refuses to overwrite one, or to resume without one."""
    if path.exists() and not resume:
        raise DriftgateError(f"Found a stopped run in {path}; give --resume to go on with it, or remove the file.")
    if resume and not path.exists():
        raise DriftgateError(f"Expected a stopped run in {path} but there is none; start without --resume.")
    return path


def writable_file(path: Path) -> Path:
    """Refuse a place that cannot be written before hours are spent on what should go there."""
    if path.is_dir():
        raise DriftgateError(f"Expected the name of a file to write but {path} is a folder; add a file name.")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
