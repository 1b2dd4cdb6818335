"""What the core needs and what it does without: dependencies, imports, and the words where an extra is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from driftgate.extras import EXTRAS
from driftgate.methods import available

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
NOT_HERE = {"mlflow": ["mlflow-skinny"]}
"""Extras too large for the tests' environment, and the distribution that brings the module."""
NEED_SKLEARN = ("glc", "glc++", "lead")
START = "import driftgate\nfrom support import images_of, small_model\n"


def plain(name: str) -> str:
    """A distribution's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(requirements: list[str]) -> list[Requirement]:
    """Those that hold on this machine, for nobody's extra."""
    parsed = map(Requirement, requirements)
    return [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]


def brought_by(requirements: list[str]) -> set[str]:
    """All that pip would install for ``requirements``, by what the packages installed here ask for."""
    found: set[str] = set()
    waiting = [plain(one.name) for one in required(requirements)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [plain(one.name) for one in required(metadata.requires(name) or [])]
    return found


def without(modules: tuple[str, ...], script: str) -> subprocess.CompletedProcess[str]:
    """Run ``script`` where ``modules`` cannot be imported."""
    path = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    hide = f"for name in {modules!r}: sys.modules[name] = None\n"
    return subprocess.run([sys.executable, "-c", path + hide + script], capture_output=True, text=True, check=False)


def test_the_core_brings_no_laboratory() -> None:
    brought = brought_by(PROJECT["dependencies"])
    assert {"torch", "kornia", "lightning-utilities"} <= brought
    assert not brought & {"matplotlib", "typer", "rich", "joblib", "scikit-learn", "scipy", "pillow", "pandas"}
    # torch itself needs jinja2 and filelock, so pip installs them all the same; driftgate's core does not ask for them.
    assert not {plain(Requirement(line).name) for line in PROJECT["dependencies"]} & {"jinja2", "filelock"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_list_of_an_extra_is_what_it_brings(extra: str) -> None:
    asked = {plain(Requirement(line).name) for line in PROJECT["optional-dependencies"][extra]}
    if "driftgate" in asked:
        asked |= {plain(Requirement(line).name) for line in PROJECT["optional-dependencies"]["sklearn"]}
    asked -= {"driftgate", "mlxtend"}  # itself; and the one that its only user asks for
    homes = NOT_HERE | {**metadata.packages_distributions()}
    assert {plain(homes[module][0]) for module in EXTRAS[extra]} == asked


def test_a_step_imports_only_what_it_needs() -> None:
    step = 'driftgate.create("gmm", small_model()).step(images_of(32, seed=0))\n'
    done = without((), START + step + "print(*{name.partition('.')[0] for name in sys.modules})")
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert {"torch", "kornia"} <= imported
    assert not imported & {*EXTRAS["lab"], "torchmetrics", "pandas", "mlxtend", "tensorboard"}


def test_the_public_names_alone_load_no_kornia() -> None:
    script = "import driftgate\nfor name in driftgate.__all__: getattr(driftgate, name)\n"
    done = without((), script + "print(*({'torch', 'kornia', 'torchmetrics'} & {*sys.modules}))")
    assert done.stdout.split() == ["torch"], done.stderr


def test_without_the_extras_all_other_methods_work() -> None:
    methods = sorted(set(available()) - set(NEED_SKLEARN))
    step = "    assert len(driftgate.create(name, small_model()).step(images_of(32, seed=0)).labels) == 32\n"
    done = without(EXTRAS["lab"], START + f"for name in {methods!r}:\n" + step)
    assert done.returncode == 0, done.stderr


def test_what_needs_scikit_learn_says_so_when_it_is_made() -> None:
    script = f"""
for name, settings in (*((name, {{}}) for name in {NEED_SKLEARN!r}), ("gmm", {{"gate": "mixture"}})):
    try:
        driftgate.create(name, small_model(), **settings)
    except driftgate.DriftgateError as error:
        print(error)
"""
    done = without(("sklearn",), START + script)
    users = [*(f"Method {name!r}" for name in NEED_SKLEARN), "The gate 'mixture'"]
    missing = "needs sklearn, not installed here; pip install 'driftgate[sklearn]'."
    assert done.stdout.splitlines() == [f"{user} {missing}" for user in users], done.stderr


def test_the_laboratory_says_what_it_lacks() -> None:
    done = without(("PIL", "typer"), "import driftgate.lab.data")
    said = "DriftgateError: driftgate.lab needs PIL, typer, not installed here; pip install 'driftgate[lab]'."
    assert done.stderr.strip().endswith(said)


@pytest.mark.parametrize("missing", ["typer", "matplotlib"])
def test_the_command_says_in_one_line_what_it_lacks(missing: str) -> None:
    """By its entry point, and even where it could start: many other packages bring typer along."""
    assert PROJECT["scripts"] == {"driftgate": "driftgate.__main__:main"}
    done = without((missing,), "sys.argv[1:] = ['--help']\nfrom driftgate.__main__ import main\nmain()")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"Error: The command line needs {missing}, not installed here; pip install 'driftgate[lab]'.\n"
    )
