"""Old names of modules that have moved: they work for one release and say where their place is now.

An old name is bound to the module at the new place itself, not to a copy, so that classes and exceptions stay the same
whichever name they came by.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as ``typing`` has it, whose import would cost more than all of ``import driftgate``
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MOVED = {
    "driftgate.data.augment": "driftgate.views.images",
    "driftgate.data.shifts": "driftgate.shifts",
    "driftgate.data": "driftgate.lab.data",
    "driftgate.pretrain": "driftgate.lab.pretrain",
    "driftgate.bench.ablations": "driftgate.lab.bench.parts",
    "driftgate.bench.demo": "driftgate.lab.demo",
    "driftgate.bench.figures": "driftgate.lab.figures",
    "driftgate.bench.records": "driftgate.lab.bench.results",
    "driftgate.bench.report": "driftgate.lab.report.page",
    "driftgate.bench.runner": "driftgate.lab.bench.sweep",
    "driftgate.bench": "driftgate.lab.bench",
    "driftgate.cli": "driftgate.lab.cli",
}
"""Modules and packages by their old names; of a package, all inside moved with it. The narrower name comes first."""


def new_name(name: str) -> str | None:
    """driftgate.bench.report -> driftgate.lab.report.page; None for what has not moved."""
    for old, new in MOVED.items():
        if name == old or name.startswith(old + "."):
            return new + name.removeprefix(old)
    return None


class MovedModules:
    """An importer of old names, finder and loader in one."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of an old name whose new place exists."""
        new = new_name(name)
        if new is None:
            return None
        from importlib.machinery import ModuleSpec
        from importlib.util import find_spec

        return ModuleSpec(name, self) if find_spec(new) is not None else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an empty module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module at the new place under the old name."""
        import importlib
        import warnings

        old, new = module.__name__, new_name(module.__name__)
        assert new is not None  # find_spec gave no spec for others
        warnings.warn(f"{old} is now {new}; the old name goes with the next release.", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)


def install() -> None:
    """Make the old names importable. First in line: the path of a moved package would load its modules twice."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
