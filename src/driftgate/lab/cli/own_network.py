"""The model a command works on: a file, a network of the user's own, or the one filled with the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from driftgate.models import SourceModel, wrap
from driftgate.plugins import import_object
from driftgate.types import DriftgateError


def open_model(
    file: Path | None, network: str | None, class_names: str | None = None, input_size: int | None = None
) -> SourceModel:
    """The model of ``file``; or the network that ``my_module:build`` makes, its weights from ``file`` if that is given.

    ``build()`` gives a plain network, or what ``driftgate.wrap`` made of it where more has to be said than class names
    and the side of the pictures.
    """
    if network is None:
        if file is None:
            raise DriftgateError("Expected --model FILE, or --network my_module:build for a network of your own.")
        if class_names is not None or input_size is not None:
            raise DriftgateError("Expected --class-names and --input-size only with --network; the file has its own.")
        return SourceModel.load(file)
    own = build_network(network)
    if not isinstance(own, SourceModel):
        size: dict[str, Any] = {} if input_size is None else {"input_size": (input_size, input_size)}
        own = wrap(own, None if class_names is None else read_class_names(class_names), **size)
    elif class_names is not None or input_size is not None:
        raise DriftgateError(
            f"Expected no --class-names and no --input-size: {network} gives a model that has its own."
        )
    return own if file is None else SourceModel.load(file, model=own)


def build_network(text: str) -> nn.Module:
    """What the function ``my_module:build`` returns, called without arguments."""
    build = import_object(text)
    if not callable(build):
        raise DriftgateError(f"Expected a function {text} but it is a {type(build).__name__}.")
    network = build()
    if not isinstance(network, nn.Module):
        raise DriftgateError(
            f"Expected {text} to return a network, an nn.Module or what driftgate.wrap made of one, but it returned "
            f"{type(network).__name__}."
        )
    return network


def read_class_names(text: str) -> list[str]:
    """Names with commas between, or a file with one a line."""
    file = Path(text)
    if "," not in text and file.is_file():
        names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    else:
        names = [name.strip() for name in text.split(",")]
    names = [name for name in names if name]
    if not names:
        raise DriftgateError(f"Expected class names with commas between, or a file with one a line, but got {text!r}.")
    return names
