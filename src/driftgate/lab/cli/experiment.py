"""What ``pretrain``, ``adapt`` and ``import-checkpoint`` share: the data set, its split, and files of stopped runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch
from rich.table import Table
from torch import nn

from driftgate.files import only_writer
from driftgate.lab.cli.console import make_table, note
from driftgate.lab.cli.options import DataOptions, MethodOptions
from driftgate.lab.data.datasets import DataSet, open_dataset
from driftgate.methods import Method, create, resolve_settings
from driftgate.methods.registry import check_device
from driftgate.models import SourceModel, wrap
from driftgate.plugins import import_module, import_object
from driftgate.progress import remove_progress
from driftgate.shifts import ClassOrder, ClassSplit
from driftgate.types import DriftgateError


@dataclass(frozen=True)
class Choice:
    """The method and the model that the options name, and all settings of the method that were given."""

    given: MethodOptions
    settings: dict[str, Any]

    def open_model(self) -> SourceModel:
        """The model, ready to be adapted, where it shall compute: that of the file; or the network that
        ``my_module:build`` makes, its weights from the file if one is given.

        ``build()`` gives a plain network, or what ``driftgate.wrap`` made of it where more has to be said than class
        names and the side of the pictures.
        """
        device, file, network = choose_device(self.given.device), self.given.model, self.given.network
        names, side = self.given.class_names, self.given.network_size
        own = None if network is None else build_network(network)
        if (names is not None or side is not None) and (own is None or isinstance(own, SourceModel)):
            raise DriftgateError(
                "Expected --class-names and --input-size only with --network, and one that was not wrapped: "
                f"{network or 'the file'} has its own; leave them out."
            )
        if own is not None and not isinstance(own, SourceModel):
            size: dict[str, Any] = {} if side is None else {"input_size": (side, side)}
            own = wrap(own, None if names is None else read_class_names(names), **size)
        if file is not None:
            if file.is_dir():
                raise DriftgateError(f"Expected the file of a source model but {file} is a folder; name the file.")
            return SourceModel.load(file, model=own).to(device)
        if own is None:
            raise DriftgateError(
                "Expected a model but got none; give --model FILE, or --network my_module:build for a network of your "
                "own."
            )
        return own.to(device)

    def create(self, model: SourceModel | None = None) -> Method:
        """The method around ``model``, or around the one that is named."""
        return create(self.given.method, model or self.open_model(), preset=self.given.preset, **self.settings)


def make_choice(given: MethodOptions, **more: Any) -> Choice:
    """What the options say about method and model; ``more`` are settings that have options of their own."""
    for module in given.imports or []:
        import_module(module)
    choice = Choice(given, {**more, **parse_settings(given.settings or [])})
    # A misspelt setting should not wait for the model to load.
    resolve_settings(given.method, given.preset, choice.settings)
    return choice


def choose_device(name: str) -> torch.device:
    """The device of that name; for ``auto`` the fastest that is there, which is told at once if it is not the CPU, and
    with the result."""
    if name != "auto":
        return check_device(name)
    found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if found != "cpu":
        note(f"device: {found}")
    return torch.device(found)


def check_class_order(text: str) -> ClassOrder:
    """The class order of that name."""
    known = get_args(ClassOrder)
    if text not in known:
        raise DriftgateError(f"Expected a class order out of {', '.join(known)} but got {text!r}; name one of them.")
    return cast(ClassOrder, text)


def open_split(given: DataOptions) -> tuple[DataSet, ClassSplit]:
    """The data set and the split that the options name."""
    order = check_class_order(given.class_order)
    if given.data is None:
        raise DriftgateError("Expected --data NAME; 'driftgate data check NAME --root DIR' tells what is there.")
    opened = open_dataset(given.data, given.root, allow_outside=given.allow_outside, max_pixels=given.max_pixels)
    return opened, opened.split(given.shift, order, given.split)


def source_class_names(data: DataSet, split: ClassSplit) -> tuple[str, ...]:
    """Names of the source classes, in the order of the classifier's outputs."""
    return tuple(data.class_names[index] for index in split.source_classes)


def split_names(texts: Sequence[str]) -> list[str]:
    """Names out of an option that may be repeated and may hold several, separated by commas; each once."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if names.count(name) > 1:
            raise DriftgateError(
                f"Expected each domain once but got {name!r} {names.count(name)} times; leave out the others."
            )
    return names


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """``["lr=0.01", "gate=frozen"]`` -> settings; a value is JSON where it can be, else text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise DriftgateError(f"Expected --set key=value but got {pair!r}; write it so.")
        settings[key.strip()] = value
        with suppress(json.JSONDecodeError):
            settings[key.strip()] = json.loads(value)
    if "seed" in settings:
        # One seed decides the stream too; two of them would make a record that says only half of it.
        raise DriftgateError(f"Expected no seed among the settings but got seed={settings['seed']}; use --seed.")
    return settings


def progress_file(path: Path, resume: bool) -> Path:
    """The file of a run that may have been stopped; refuses to overwrite one, or to resume without one."""
    if path.exists() and not resume:
        raise DriftgateError(f"Found a stopped run in {path}; give --resume to go on with it, or remove the file.")
    if resume and not path.exists():
        raise DriftgateError(f"Expected a stopped run in {path} but there is none; start without --resume.")
    return path


@contextmanager
def resumable(progress: Path | None, output: Path | None) -> Iterator[None]:
    """Work that ends with its results saved: the progress file goes last, and an interruption says where it is.

    Nobody else may write the ``output`` meanwhile.
    """
    try:
        with only_writer(output):
            yield
    except KeyboardInterrupt as interruption:
        if progress is None or not progress.exists():
            raise
        raise KeyboardInterrupt(f"The same command with --resume goes on from {progress}.") from interruption
    if progress is not None:
        remove_progress(progress)


def what_table(title: str, rows: Iterable[Sequence[str]], bold: str) -> Table:
    """What a record says: a row a thing, its value and its meaning."""
    heads = ("what", "value", "meaning")
    return make_table(title, heads, rows, left=("what", "meaning"), widths={"meaning": None}, bold=bold)


def pace_rows(record: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The row about a stream that did not wait, if it did not."""
    if "pace" not in record:
        return []
    pace = record["pace"]
    told = f"batches learned from and not; {pace['late']} predictions came later than {pace['max_delay']:g} s"
    return [("learned / not", f"{pace['learned']} / {pace['not_learned']}", told)]


def tell_rest(skipped: Sequence[str], places: Mapping[str, Path | None], samples: str = "images") -> None:
    """What was left out of a stream, and where everything is."""
    if skipped:
        note(f"{len(skipped)} {samples} could not be read, the first is {skipped[0]}.")
    for what, place in places.items():
        if place is not None:
            note(f"The {what} in {place}.")


def build_network(text: str) -> nn.Module:
    """What the function ``my_module:build`` returns, called without arguments."""
    build = import_object(text)
    if not callable(build):
        raise DriftgateError(
            f"Expected a function {text} but it is a {type(build).__name__}; name a function that returns the network."
        )
    network = build()
    if not isinstance(network, nn.Module):
        raise DriftgateError(
            f"Expected {text} to return a network, an nn.Module or what driftgate.wrap made of one, but it returned "
            f"{type(network).__name__}; return the network there."
        )
    return network


def read_class_names(text: str) -> list[str]:
    """Names with commas between, or a file with one a line."""
    is_file = "," not in text and Path(text).is_file()
    found = Path(text).read_text(encoding="utf-8").splitlines() if is_file else text.split(",")
    names = [name.strip() for name in found if name.strip()]
    if not names:
        raise DriftgateError(
            f"Expected class names with commas between, or a file with one a line, but got {text!r}; write them so."
        )
    return names
