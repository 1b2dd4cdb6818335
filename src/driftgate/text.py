"""Text as it may be shown: names from outside must not steer a terminal, and pydantic's report becomes one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and line end, marks that turn the direction of writing, halves of characters."""


def shown(text: str) -> str:
    """``text`` with a question mark for every character that would act on a terminal or cannot be written to one."""
    return text if text.isprintable() else _HIDDEN.sub("?", text)


def shown_name(name: str) -> str:
    """The same for a name, which has one line."""
    return shown(name).replace("\n", "?").replace("\t", "?")


def few(names: Sequence[str], most: int = 8) -> str:
    """``a, b, c ...``: the first of many names."""
    return f"{', '.join(names[:most])}{' ...' if len(names) > most else ''}"


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """``did you mean gmm?``, or something else where nothing that is known is like ``name``."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def problems(error: ValidationError, known: Callable[[str], Iterable[str]] | None = None, what: str = "key") -> str:
    """What pydantic found wrong, in one line; ``known`` tells which names of ``what`` there are where one is too many.

    For whoever reads it the sentence goes on with what to do.
    """
    parts = []
    found = error.errors()
    for item in found:
        # A list is too short for pydantic if its items were wrong, which is said already.
        if item["type"] == "too_short" and any(other["loc"][:-1] == item["loc"] for other in found):
            continue
        place = ".".join(map(str, item["loc"]))
        if item["type"] == "missing":
            parts.append(f"{place!r} is missing")
        elif item["type"] == "extra_forbidden" and known is not None:
            parts.append(f"no {what} {place!r}, expected one of {', '.join(known(place))}")
        else:
            given = f", got {item['input']!r}" if place and not isinstance(item["input"], dict) else ""
            message = item["msg"].removeprefix("Value error, ")
            parts.append(f"{place}: {message}{given}" if place else message)
    return "; ".join(parts)
