"""The architecture is a direction: a part imports only parts to its left. Parsed, not imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import driftgate

ROOT = Path(driftgate.__file__).parent
LAYERS: list[set[str]] = [
    {"types"},
    {"rng", "checkpoint", "resources"},
    {"models"},
    {"memory"},
    {"novelty"},
    {"losses"},
    {"data"},
    {"methods"},
    {"metrics", "pretrain"},
    {"stream"},
    {"bench"},
    {"cli"},
]
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def part_of(module: str) -> str:
    """driftgate.data.shifts -> data"""
    return module.split(".")[1]


def imported_modules(source: str, module: str, is_package: bool) -> list[str]:
    """Every driftgate module a file imports, anywhere in it, as an absolute name of at least two parts."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join(package[: len(package) - node.level + 1] + ([base] if base else []))
            # ``from driftgate import data`` names the part only in the list behind it.
            found += [f"{base}.{alias.name}" for alias in node.names] if base == "driftgate" else [base]
    return [name for name in found if name == "driftgate" or name.startswith("driftgate.")]


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    own = part_of(module)
    found = []
    for name in imported_modules(source, module, is_package):
        other = name if name == "driftgate" else part_of(name)
        if other != own and RANKS.get(other, len(LAYERS)) >= RANKS[own]:
            found.append(f"{module} imports {name}")
    return found


def module_files() -> list[tuple[str, Path]]:
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts not in {("__init__",), ("__main__",)}:  # these two stand above all
            names.append((".".join(["driftgate", *(part for part in parts if part != "__init__")]), path))
    return names


def test_every_part_has_its_place_in_the_order() -> None:
    assert {part_of(module) for module, _ in module_files()} == set(RANKS)


@pytest.mark.parametrize(("module", "path"), module_files(), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_point_to_the_left(module: str, path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), module, path.name == "__init__.py") == []


def test_the_library_does_not_need_the_command_line() -> None:
    imported = imported_modules((ROOT / "__init__.py").read_text(encoding="utf-8"), "driftgate", True)
    assert not any(part_of(name) == "cli" for name in imported)


@pytest.mark.parametrize(
    ("module", "line", "allowed"),
    [
        ("driftgate.data.shifts", "from driftgate.types import UNKNOWN", True),
        ("driftgate.data.shifts", "from driftgate.data.domains import Domain", True),
        ("driftgate.data.shifts", "from .domains import Domain", True),
        ("driftgate.data.shifts", "from driftgate.methods.base import Method", False),
        ("driftgate.data.shifts", "import driftgate.methods.base", False),
        ("driftgate.data.shifts", "from driftgate import methods", False),
        ("driftgate.data.shifts", "from ..methods import base", False),
        ("driftgate.data.shifts", "from .. import methods", False),
        ("driftgate.data.shifts", "import driftgate", False),
        ("driftgate.data.shifts", "from driftgate import SourceModel", False),
        ("driftgate.data.shifts", "def late():\n    from driftgate.stream import run", False),
        ("driftgate.metrics", "from driftgate.stream import run", False),
        ("driftgate.novelty.scores", "from driftgate.memory import StreamingGMM", True),
        ("driftgate.memory.gmm", "from driftgate.novelty import scores", False),
        ("driftgate.cli.app", "import torch\nfrom driftgate.bench.tables import table", True),
    ],
)
def test_the_check_itself_sees_a_wrong_import(module: str, line: str, allowed: bool) -> None:
    assert (violations(line, module) == []) == allowed
