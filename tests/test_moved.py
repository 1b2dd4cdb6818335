"""Modules that have moved, by their old names: they are the same modules, and a warning says where they are now."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from driftgate.lab import bench, cli, data
from driftgate.moved import MOVED, new_name

OLD_NAMES = sorted(
    {*MOVED}
    | {
        f"driftgate.{package.__name__.rpartition('.')[2]}.{module.name}"
        for package in (data, bench, cli)
        for module in pkgutil.iter_modules(package.__path__)
    }
)


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: in this one nothing may go by an old name."""
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("driftgate.data", "driftgate.lab.data"),
        ("driftgate.data.streams", "driftgate.lab.data.streams"),
        ("driftgate.data.shifts", "driftgate.shifts"),
        ("driftgate.data.augment", "driftgate.views.images"),
        ("driftgate.pretrain", "driftgate.lab.pretrain"),
        ("driftgate.bench.report", "driftgate.lab.report.page"),
        ("driftgate.bench.plan", "driftgate.lab.bench.plan"),
        ("driftgate.cli", "driftgate.lab.cli"),
        ("driftgate.database", None),
        ("driftgate.lab.data", None),
        ("driftgate.methods.gmm", None),
        ("json", None),
    ],
)
def test_where_a_module_is_now(old: str, new: str | None) -> None:
    assert new_name(old) == new


def test_every_old_name_is_the_module_at_its_new_place_and_warns_once() -> None:
    assert len(OLD_NAMES) > 40
    script = """
import importlib, json, sys, warnings
names = sys.argv[1:]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    modules = [importlib.import_module(name) for name in names * 2][:len(names)]
ours = [str(warning.message) for warning in caught if issubclass(warning.category, DeprecationWarning)]
print(json.dumps({
    "modules": [module.__name__ for module in modules],
    "specs": [module.__spec__.name for module in modules],
    "same": [module is importlib.import_module(module.__name__) for module in modules],
    "warnings": [text for text in ours if text.startswith("driftgate.")],
}))
"""
    done = run(script, *OLD_NAMES)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    new_names = [new_name(name) for name in OLD_NAMES]
    assert found["modules"] == found["specs"] == new_names
    assert all(found["same"])
    said = [f"{old} is now {new};" for old, new in zip(OLD_NAMES, new_names, strict=True)]
    assert sorted(text.partition(" the old")[0] for text in found["warnings"]) == sorted(said)


def test_all_ways_to_import_work_and_the_warning_points_at_the_line(tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    script.write_text(
        "from driftgate.data import ClassSplit, Stream\n"
        "from driftgate.data.shifts import ClassSplit as Same\n"
        "from driftgate import pretrain\n"
        "import driftgate.bench.suite as suite\n"
        "import driftgate.shifts, driftgate.types\n"
        "assert ClassSplit is Same is driftgate.shifts.ClassSplit and Stream is driftgate.types.Stream\n"
        "assert callable(pretrain.pretrain) and suite.read_suite('digits').name == 'digits'\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, name in ((1, "driftgate.data"), (2, "driftgate.data.shifts"), (3, "driftgate.pretrain")):
        assert f"{script}:{line}: DeprecationWarning: {name} is now {new_name(name)};" in done.stderr


def test_a_name_that_never_was_is_missing_as_ever() -> None:
    done = run("import driftgate.data.nonsense")
    assert done.stderr.strip().endswith("ModuleNotFoundError: No module named 'driftgate.data.nonsense'")


def test_importing_the_package_warns_of_nothing() -> None:
    done = run("import driftgate, driftgate.lab.data, driftgate.lab.bench, driftgate.lab.cli; driftgate.create")
    assert (done.returncode, done.stderr) == (0, "")
