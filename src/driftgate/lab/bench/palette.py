"""Colours of charts and page, each for a light and a dark ground.

Charts are drawn in the light colours; in the page every one of them becomes a CSS variable, so that one drawing serves
both grounds.
"""

from __future__ import annotations

import re
import zlib

INK, SOFT, FAINT, LINE, GROUND = "#25282d", "#5c636b", "#b9bec5", "#e6e8eb", "#fdfdfe"
KNOWN_METHODS = {
    "source-only": ("#7d848e", "#a3aab4"),
    "bn-stats": ("#3b7dd8", "#74a9f2"),
    "tent": ("#0e8fa5", "#4fc6d9"),
    "owttt": ("#8a6d1c", "#d6b955"),
    "comet-p": ("#6a4c93", "#b79fe3"),
    "comet-f": ("#9a5cc4", "#d3a3f4"),
    "shot-o": ("#1f8a70", "#4cc8a8"),
    "shot-o/p": ("#1f8a71", "#4cc8a9"),
    "shot-p": ("#5b9a3b", "#98d377"),
    "glc": ("#b4641e", "#e59d5d"),
    "glc++": ("#d07c17", "#f7b468"),
    "lead": ("#8c564b", "#cc978a"),
    "adacontrast": ("#c2559d", "#ec94cd"),
    "gmm-comet": ("#e2748a", "#ffa3b4"),
    "gmm": ("#c8283c", "#ff6b7b"),
}
STRANGERS = (("#4d5b9e", "#97a5ea"), ("#557a46", "#a3cf91"), ("#7a4460", "#d095b3"), ("#3f6f7d", "#8cc3d3"))
"""For methods of the user's own."""

SHIFT_COLORS = {"PDA": ("#3a7cd7", "#75aaf3"), "ODA": ("#1e8a6f", "#4dc8a9"), "OPDA": ("#c9283d", "#ff6c7c")}
OTHER_SHIFT = ("#6a4c94", "#b79fe4")

_GROUND_COLORS = {
    "ink": (INK, "#e7e9ec"),
    "soft": (SOFT, "#a7adb6"),
    "faint": (FAINT, "#555c66"),
    "line": (LINE, "#343a42"),
    "ground": (GROUND, "#16181c"),
}


def method_color(method: str) -> str:
    """The light colour of a method, always the same for the same name."""
    pair = KNOWN_METHODS.get(method) or STRANGERS[zlib.crc32(method.encode()) % len(STRANGERS)]
    return pair[0]


def shift_color(shift: str) -> str:
    """The light colour of a shift."""
    return SHIFT_COLORS.get(shift, OTHER_SHIFT)[0]


def variables() -> dict[str, tuple[str, str]]:
    """CSS variable -> its light and its dark colour."""
    drawn = [*KNOWN_METHODS.values(), *STRANGERS, *SHIFT_COLORS.values(), OTHER_SHIFT]
    return {**_GROUND_COLORS, **{light.lstrip("#"): (light, dark) for light, dark in drawn}}


def css(ground: int) -> str:
    """The declarations of all variables for the light (0) or the dark (1) ground."""
    return "".join(f"--c-{name}:{pair[ground]};" for name, pair in variables().items())


_NAMES = {pair[0]: name for name, pair in variables().items()}


def to_variables(svg: str) -> str:
    """Replace every known light colour of a drawing by its variable."""
    return re.sub(
        r"#[0-9a-f]{6}\b", lambda found: f"var(--c-{_NAMES[found[0]]})" if found[0] in _NAMES else found[0], svg
    )
