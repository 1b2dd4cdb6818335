"""``driftgate methods NAME``: every setting of a method, with its default, its range and its meaning."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic_core import PydanticUndefined

from driftgate.lab.cli.console import make_table, output, print_json
from driftgate.methods import MethodSettings, get_method

ATTRIBUTE = re.compile(r"^    (?=\S)((?:\w+(?:, )?)+): (.*)$")
"""A line of a docstring's list of attributes: one name or several with one meaning."""


def show_settings(name: str, *, as_json: bool) -> None:
    """Print the settings of the method called ``name``, and its presets."""
    method = get_method(name)
    rows = setting_rows(method.Settings)
    if as_json:
        print_json({"method": name, "summary": method.summary, "settings": rows, "presets": method.presets})
        return
    columns = ("setting", "default", "type", "meaning")
    shown = [(row["name"], str(row["default"]), row["type"], row["meaning"]) for row in rows]
    widths = {"type": 34, "meaning": 78}
    output.print(make_table(f"{name}: {method.summary}", columns, shown, left=("setting", *widths), widths=widths))
    for preset, values in method.presets.items():
        text = ", ".join(f"{key}={value}" for key, value in values.items())
        output.print(f"- preset {preset}: {text}", style="dim", markup=False)


def setting_rows(settings: type[MethodSettings]) -> list[dict[str, Any]]:
    """Name, default, type with its range and meaning of every setting, in the order of the class."""
    told = meanings(settings)
    rows = []
    for name, field in settings.model_fields.items():
        limits = filter(None, (_limit(str(limit)) for limit in field.metadata))
        kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
        rows.append(
            {
                "name": name,
                "default": None if field.default is PydanticUndefined else _plain(field.default),
                "type": " ".join([kind.replace("typing.", ""), *limits]),
                "meaning": told.get(name, ""),
            }
        )
    return rows


def meanings(settings: type[MethodSettings]) -> dict[str, str]:
    """Setting -> what its class, or the nearest one before it, says of it under ``Attributes``."""
    found: dict[str, str] = {}
    for kind in settings.__mro__:
        for name, text in _attributes(kind.__dict__.get("__doc__") or "").items():
            found.setdefault(name, text)
    return {name: found[name] for name in settings.model_fields if name in found}


def _attributes(docstring: str) -> dict[str, str]:
    lines = inspect.cleandoc(docstring).splitlines()
    if "Attributes:" not in lines:
        return {}
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines[lines.index("Attributes:") + 1 :]:
        start = ATTRIBUTE.match(line)
        if start is not None:
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2])
        elif line.startswith("        ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            break  # the list has ended
    return found


def _limit(text: str) -> str:
    """``Ge(ge=0.0)`` -> ``>= 0.0``."""
    found = re.fullmatch(r"(Ge|Gt|Le|Lt)\(\w+=(.*)\)", text)
    return f"{ {'Ge': '>=', 'Gt': '>', 'Le': '<=', 'Lt': '<'}[found[1]] } {found[2]}" if found else ""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
