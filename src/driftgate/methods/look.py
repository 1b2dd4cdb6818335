"""How a method appears in tables and charts: printed name, place, block of rows, colours."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Literal

Block = Literal["baseline", "told", "universal"]
"""The blocks of the paper's tables: baselines; what uses the source's data or must be told the shift; and the rest."""

STRANGERS = (("#4d5b9e", "#97a5ea"), ("#557a46", "#a3cf91"), ("#7a4460", "#d095b3"), ("#3f6f7d", "#8cc3d3"))
"""Colours of methods that have none of their own."""


@dataclass(frozen=True)
class Look:
    """What a class says of its looks; whatever it leaves out is found.

    Attributes:
        label: as it is printed; the method's name if empty.
        place: rows are sorted by it; those without one stand last, by name.
        block: which block of rows it stands in; by ``source_free`` and ``universal`` if None.
        colors: for a light and for a dark ground, as ``#rrggbb``; one of a few by the name if None.
    """

    label: str = ""
    place: float = math.inf
    block: Block | None = None
    colors: tuple[str, str] | None = None

    def of(self, name: str, *, universal: bool = True) -> Look:
        """The look of a method called ``name``, with nothing left out."""
        return Look(
            self.label or name,
            self.place,
            self.block or ("universal" if universal else "told"),
            self.colors or STRANGERS[zlib.crc32(name.encode()) % len(STRANGERS)],
        )
