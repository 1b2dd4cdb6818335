"""Colours of charts and page, each for a light and a dark ground.

Charts are drawn in the light colours; in the page every one of them becomes a CSS variable, so that one drawing serves
both grounds.
"""

from __future__ import annotations

import re
from dataclasses import replace

from driftgate.methods import Look, available, look_of
from driftgate.methods.look import STRANGERS

INK, SOFT, FAINT, LINE, GROUND = "#25282d", "#5c636b", "#b9bec5", "#e6e8eb", "#fdfdfe"
JOINED = "shot-o/p"
"""The row of SHOT where each of its two versions ran only where it belongs, as in the paper."""

SHIFT_COLORS = {"PDA": ("#3a7cd7", "#75aaf3"), "ODA": ("#1e8a6f", "#4dc8a9"), "OPDA": ("#c9283d", "#ff6c7c")}
OTHER_SHIFT = ("#6a4c94", "#b79fe4")

_GROUND_COLORS = {
    "ink": (INK, "#e7e9ec"),
    "soft": (SOFT, "#a7adb6"),
    "faint": (FAINT, "#555c66"),
    "line": (LINE, "#343a42"),
    "ground": (GROUND, "#16181c"),
}


def row_look(row: str) -> Look:
    """How a row of methods appears: as the method's class says."""
    return replace(look_of("shot-o"), label="SHOT-O/P") if row == JOINED else look_of(row)


def method_color(method: str) -> str:
    """The light colour of a method, always the same for the same name."""
    return (row_look(method).colors or STRANGERS[0])[0]


def shift_color(shift: str) -> str:
    """The light colour of a shift."""
    return SHIFT_COLORS.get(shift, OTHER_SHIFT)[0]


def variables() -> dict[str, tuple[str, str]]:
    """CSS variable -> its light and its dark colour."""
    own = [look_of(name).colors or STRANGERS[0] for name in available()]
    drawn = [*own, *STRANGERS, *SHIFT_COLORS.values(), OTHER_SHIFT]
    return {**_GROUND_COLORS, **{light.lstrip("#"): (light, dark) for light, dark in drawn}}


def css(ground: int) -> str:
    """The declarations of all variables for the light (0) or the dark (1) ground."""
    return "".join(f"--c-{name}:{pair[ground]};" for name, pair in variables().items())


def to_variables(svg: str) -> str:
    """Replace every known light colour of a drawing by its variable."""
    names = {pair[0]: name for name, pair in variables().items()}
    return re.sub(
        r"#[0-9a-f]{6}\b", lambda found: f"var(--c-{names[found[0]]})" if found[0] in names else found[0], svg
    )
