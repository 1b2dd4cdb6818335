"""The architecture is a direction: a part imports only parts before it, and no two files import each other. Parsed, not
imported, so that imports inside functions count like all others."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import driftgate

ROOT = Path(driftgate.__file__).parent
LAYERS: list[set[str]] = [
    {"types", "text"},
    {"files"},
    {"rng", "state", "checkpoint", "record", "resources", "extras", "plugins", "shifts"},
    {"models"},
    {"views"},
    {"memory"},
    {"novelty"},
    {"losses"},
    {"export"},
    {"methods"},
    {"metrics"},
    {"log"},
    {"loggers"},
    {"progress", "pacing"},
    {"stream"},
    {"guard"},
    {"serve"},
    {"lab"},
    {"lab.files"},
    {"lab.data"},
    {"lab.pretrain", "lab.model_card"},
    {"lab.bench"},
    {"lab.figures"},
    {"lab.report"},
    {"lab.serve_demo"},
    {"lab.cli"},
]
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def part_of(module: str) -> str:
    """driftgate.memory.gmm -> memory, driftgate.lab.data.streams -> lab.data"""
    parts = module.split(".")
    return ".".join(parts[1:3]) if parts[1] == "lab" else parts[1]


def module_files() -> list[tuple[str, Path]]:
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts not in {("__init__",), ("__main__",)}:  # these two stand above all
            names.append((".".join(["driftgate", *(part for part in parts if part != "__init__")]), path))
    return names


MODULES = {name for name, _ in module_files()}


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
            # ``from driftgate import methods`` names the part only in the list behind it, a folder likewise its files.
            inside = [f"{base}.{alias.name}" for alias in node.names]
            found += [name if base == "driftgate" or name in MODULES else base for name in inside]
    return [name for name in found if name == "driftgate" or name.startswith("driftgate.")]


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    own = part_of(module)
    found = []
    for name in imported_modules(source, module, is_package):
        other = name if name == "driftgate" else part_of(name)
        if other != own and RANKS.get(other, len(LAYERS)) >= RANKS[own]:
            found.append(f"{module} imports {name}")
    return found


def cycle(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring, the first of them twice; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_part_has_its_place_in_the_order() -> None:
    assert {part_of(module) for module in MODULES} == set(RANKS)


@pytest.mark.parametrize(("module", "path"), module_files(), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_point_to_the_left(module: str, path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), module, path.name == "__init__.py") == []


def test_no_files_import_each_other() -> None:
    imports = {
        module: set(imported_modules(path.read_text(encoding="utf-8"), module, path.name == "__init__.py"))
        for module, path in module_files()
    }
    assert cycle(imports) == []


def test_the_library_does_not_need_the_laboratory() -> None:
    imported = imported_modules((ROOT / "__init__.py").read_text(encoding="utf-8"), "driftgate", True)
    assert not any(part_of(name).startswith("lab") for name in imported)


@pytest.mark.parametrize(
    ("module", "line", "allowed"),
    [
        ("driftgate.novelty.gate", "from driftgate.types import UNKNOWN", True),
        ("driftgate.novelty.gate", "from driftgate.novelty.scores import entropy", True),
        ("driftgate.novelty.gate", "from .scores import entropy", True),
        ("driftgate.novelty.gate", "from driftgate.memory import StreamingGMM", True),
        ("driftgate.novelty.gate", "from driftgate.methods.base import Method", False),
        ("driftgate.novelty.gate", "import driftgate.methods.base", False),
        ("driftgate.novelty.gate", "from driftgate import methods", False),
        ("driftgate.novelty.gate", "from ..methods import base", False),
        ("driftgate.novelty.gate", "from .. import methods", False),
        ("driftgate.novelty.gate", "import driftgate", False),
        ("driftgate.novelty.gate", "from driftgate import SourceModel", False),
        ("driftgate.novelty.gate", "def late():\n    from driftgate.stream import run", False),
        ("driftgate.memory.gmm", "from driftgate.novelty import scores", False),
        ("driftgate.metrics", "from driftgate.stream import run", False),
        ("driftgate.stream", "from driftgate.lab.data.streams import TensorStream", False),
        ("driftgate.stream", "from driftgate.lab import data", False),
        ("driftgate.stream", "from driftgate.data.streams import TensorStream", False),
        ("driftgate.lab.data.domains", "from driftgate.methods import create", True),
        ("driftgate.lab.data.domains", "from driftgate.lab.bench import suite", False),
        ("driftgate.lab.data.domains", "from .. import pretrain", False),
        ("driftgate.lab.cli.app", "import torch\nfrom driftgate.lab.bench.tables import table", True),
    ],
)
def test_the_check_itself_sees_a_wrong_import(module: str, line: str, allowed: bool) -> None:
    assert (violations(line, module) == []) == allowed


def test_the_check_itself_sees_a_cycle() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


LONGEST_FILE, LONGEST_FUNCTION = 400, 80
"""Lines; what is longer is two things."""


def too_long(source: str) -> list[str]:
    """The functions of a file that are too long, and ``file`` where the file itself is."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, functions)]
    long = [node.name for node in found if (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION]
    return [*long, *(["file"] if len(source.splitlines()) > LONGEST_FILE else [])]


@pytest.mark.parametrize("path", [path for _, path in module_files()], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_and_no_function_is_two_things(path: Path) -> None:
    assert too_long(path.read_text(encoding="utf-8")) == []


def test_the_check_itself_sees_what_is_too_long() -> None:
    body = "    pass\n"
    assert too_long("def short():\n" + body * 79) == []
    assert too_long("def long():\n" + body * 80) == ["long"]
    assert too_long("# line\n" * 401) == ["file"]
