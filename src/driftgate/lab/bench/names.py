"""How methods and shifts look everywhere: printed names, order, blocks of rows, colours; a method's class says its own.

Every colour is a pair, for a light and for a dark ground.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from driftgate.methods import Look, available, look_of
from driftgate.methods.look import STRANGERS, Block

OWN_METHOD = "gmm"
JOINED = "shot-o/p"
"""The row of SHOT where each of its two versions ran only where it belongs, as in the paper."""

SHIFT_COLORS = {"PDA": ("#3a7cd7", "#75aaf3"), "ODA": ("#1e8a6f", "#4dc8a9"), "OPDA": ("#c9283d", "#ff6c7c")}
OTHER_SHIFT = ("#6a4c94", "#b79fe4")


def row_look(row: str) -> Look:
    """How a row of a table appears: as the method's class says."""
    return replace(look_of("shot-o"), label="SHOT-O/P") if row == JOINED else look_of(row)


def method_name(method: str) -> str:
    """A method as it is printed."""
    return row_look(method).label


def method_color(method: str) -> str:
    """The light colour of a method, always the same for the same name."""
    return (row_look(method).colors or STRANGERS[0])[0]


def method_block(method: str) -> int:
    """Which of the paper's blocks of rows a method stands in."""
    return get_args(Block).index(row_look(method).block)


def shift_color(shift: str) -> str:
    """The light colour of a shift."""
    return SHIFT_COLORS.get(shift, OTHER_SHIFT)[0]


def drawn_colors() -> list[tuple[str, str]]:
    """All colours of methods and shifts."""
    own = [look_of(name).colors or STRANGERS[0] for name in available()]
    return [*own, *STRANGERS, *SHIFT_COLORS.values(), OTHER_SHIFT]
