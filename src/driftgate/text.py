"""Text from outside, as it may be shown: names of files and classes must not steer a terminal."""

from __future__ import annotations

import re

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and line end, marks that turn the direction of writing, halves of characters."""


def shown(text: str) -> str:
    """``text`` with a question mark for every character that would act on a terminal or cannot be written to one."""
    return text if text.isprintable() else _HIDDEN.sub("?", text)


def shown_name(name: str) -> str:
    """The same for a name, which has one line."""
    return shown(name).replace("\n", "?").replace("\t", "?")
