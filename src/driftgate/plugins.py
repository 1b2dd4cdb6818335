"""Code of the user's own: a module by its name or its file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from driftgate.types import DriftgateError


def import_module(name: str) -> ModuleType:
    """``my_package.my_module`` or ``path/to/my_module.py`` -> the module, imported once.

    A name is looked for in the working folder too, as Python does it for a script but not for an installed command.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and something that it imports is not
        raise DriftgateError(
            f"Expected a module {name!r} but there is none in {Path.cwd()} nor among the installed ones; give its name "
            "as in an import, or its file."
        ) from error


def import_object(text: str) -> Any:
    """``my_module:build`` or ``path/to/my_module.py:build`` -> the object of that name."""
    module, colon, name = text.rpartition(":")
    if not colon or not module or not name:
        raise DriftgateError(f"Expected MODULE:NAME, like my_module:build, but got {text!r}; write it so.")
    found = import_module(module)
    try:
        return getattr(found, name)
    except AttributeError as error:
        raise DriftgateError(f"Expected {name!r} in {module} but it is not there; check its spelling.") from error


def home_of(thing: type) -> str:
    """What ``import_module`` in another process needs to find the class: its module's name, or the file.

    The file where a name would not do: of a script, and of a module that stands beside the script or in the working
    folder.
    """
    module = sys.modules[thing.__module__]
    file = getattr(module, "__file__", None)
    return module.__name__ if file is None or "." in module.__name__ else str(Path(file).resolve())


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DriftgateError(f"Expected a Python file at {path} but there is none; look at the path.")
    name, place = path.stem, str(path.resolve())
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) == place:
            return known
        raise DriftgateError(
            f"Expected a file with a name of its own but there is another module {name!r}; rename {path}."
        )
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
