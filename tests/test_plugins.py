"""Modules of the user's own, by name and by file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftgate import DriftgateError
from driftgate.plugins import import_module, import_object


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a module; what a test imports is forgotten after it."""
    (tmp_path / "of_mine.py").write_text("times = 0\ndef build():\n    return 'built'\n")
    (tmp_path / "broken_one.py").write_text("import no_such_package_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_by_name_in_the_working_folder() -> None:
    assert import_object("of_mine:build")() == "built"
    assert import_module("os.path").join("a", "b") == "a/b"


def test_a_file_is_imported_once(folder: Path) -> None:
    module = import_module("of_mine.py")
    module.times += 1  # type: ignore[attr-defined]
    assert import_module(str(folder / "of_mine.py")).times == 1
    assert import_object(f"{folder}/of_mine.py:times") == 1
    (folder / "inside").mkdir()
    (folder / "inside" / "of_mine.py").write_text("")
    with pytest.raises(DriftgateError, match="another module 'of_mine'; rename"):
        import_module("inside/of_mine.py")


def test_what_is_not_there_says_so() -> None:
    for text, message in (
        ("no_such_module_at_all:build", "Expected a module 'no_such_module_at_all' but there is none"),
        ("of_mine:make", "Expected 'make' in of_mine"),
        ("of_mine", "Expected MODULE:NAME"),
        (":build", "Expected MODULE:NAME"),
        ("missing.py:build", "Expected a Python file at missing.py"),
    ):
        with pytest.raises(DriftgateError, match=message):
            import_object(text)
    for name in ("broken_one", "broken_one.py"):
        with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
            import_module(name)
    assert "broken_one" not in sys.modules
