"""What an error says: whatever a command can run into ends with what to do next. Read from the source, for no test
could run into all of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import driftgate

ROOT = Path(driftgate.__file__).parent
PLACES = (
    *("lab", "methods", "models", "views", "guard", "checkpoint.py", "export.py", "extras.py", "files.py"),
    *("loggers.py", "plugins.py", "progress.py", "shifts.py", "stream.py"),
)
"""What the command line is made of and made to work with; a mixture, a loss or a score has no user of its own."""


def sentence(node: ast.expr) -> str:
    """The words of a message; what is filled in is left out."""
    return "".join(str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant))


def without_advice(source: str) -> list[str]:
    """The messages of errors that say what is wrong, but not what to do: nothing follows a semicolon."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    raising = {"DriftgateError", "refuse", "console.refuse"}
    told = [sentence(node.args[0]) for node in calls if ast.unparse(node.func) in raising]
    return [words for words in told if "Expected" in words and ";" not in words]


def files() -> list[Path]:
    return [
        file for place in PLACES for file in sorted([*(ROOT / place).rglob("*.py"), ROOT / place]) if file.is_file()
    ]


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_every_error_ends_with_what_to_do_next(file: Path) -> None:
    assert without_advice(file.read_text(encoding="utf-8")) == []


def test_the_check_itself_sees_an_error_without_advice() -> None:
    told = "raise DriftgateError(f'Expected a file but {path} is a folder{more}.')"
    for way in ("raise DriftgateError", "refuse", "console.refuse"):
        wrong = told.replace("{more}", "").replace("raise DriftgateError", way)
        assert without_advice(wrong) == ["Expected a file but  is a folder."], way
    assert without_advice(told.replace("{more}", "; name the file in it")) == []
