"""driftgate: online source-free universal domain adaptation."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as ``typing`` has it, whose import would cost more than all the rest of this file
if TYPE_CHECKING:
    from typing import Any

    from driftgate.methods import Method, available, create
    from driftgate.methods import load_method as load
    from driftgate.models import SourceModel, wrap
    from driftgate.stream import run_stream, stream_steps
    from driftgate.types import UNKNOWN, UNLABELED, DivergedError, DriftgateError, Prediction

__version__ = "0.2.0"

__all__ = [
    "UNKNOWN",
    "UNLABELED",
    "DivergedError",
    "DriftgateError",
    "Method",
    "Prediction",
    "SourceModel",
    "__version__",
    "available",
    "create",
    "load",
    "run_stream",
    "stream_steps",
    "wrap",
]

_HOMES = {
    "Method": "driftgate.methods",
    "available": "driftgate.methods",
    "create": "driftgate.methods",
    "load": "driftgate.methods:load_method",
    "SourceModel": "driftgate.models",
    "run_stream": "driftgate.stream",
    "stream_steps": "driftgate.stream",
    "wrap": "driftgate.models",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `driftgate --help` should not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'driftgate' has no attribute {name!r}")
    module, _, attribute = _HOMES.get(name, "driftgate.types").partition(":")
    value = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
