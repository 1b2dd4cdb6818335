"""Do the tests notice? Break one place of the package at a time and run the tests that should see it.

    python benchmarks/mutants.py                                # or `make mutants`
    python benchmarks/mutants.py --only memory losses/kl.py     # these alone
    python benchmarks/mutants.py --seed 1 --count 100           # others
    python benchmarks/mutants.py --only methods/gmm.py --list   # only say which

The mutants (``mutations.py``) are drawn by a seed: as many of each file as its share of all places, of all kinds in
turn, one a line. Each runs in a copy of the tree, in a process forked from one that has loaded torch, until the first
test fails. Results are kept in ``--out`` as they come, so that a run can be stopped. A mutant that was noticed is not
tried again while its file is the same, one that was not while its tests are the same too; remove the results to try all
anew. Mutants that no test can notice stand in ``mutants.yaml`` with the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from mutations import Mutant, compiles, mutants_of

ROOT = Path(__file__).parents[1]
PACKAGE = "src/driftgate"
BROKEN = ("methods", "memory", "novelty", "losses", "models/passes.py", "stream.py")
"""Folders and files that are broken: what decides the numbers."""
REASONS = Path(__file__).with_suffix(".yaml")
FEWEST = 3
"""Mutants of the smallest file."""
TIMES_LONGER = 4
"""Tests of a mutant that need so many times the processor time of the whole ones have noticed it."""


def contract(*names: str) -> str:
    """The contract suite of some methods."""
    return f"tests/contract -k '{' or '.join(f'{name}]' for name in names)}'"


GMM = "tests/methods/test_gmm_default_step.py tests/methods/test_gmm_method.py tests/methods/test_gmm_guards.py"
GLC = "tests/methods/test_glc.py tests/methods/test_neighbor_rule.py tests/golden/test_golden_glc_lead.py"
SHOT = "tests/methods/test_shot.py tests/golden/test_golden_shot.py"
COMET = "tests/methods/test_comet.py tests/golden/test_golden_comet.py"
TESTS: dict[str, tuple[str, ...]] = {
    "losses/affinity.py": ("tests/losses/test_soft_targets.py",),
    "memory/blocks.py": ("tests/memory/test_blocks.py", "tests/memory/test_gmm.py"),
    "memory/factors.py": ("tests/memory/test_frozen.py tests/memory/test_gmm.py", "tests/memory/test_gmm_tied.py", GMM),
    "memory/frozen.py": ("tests/memory/test_frozen.py", "tests/test_export.py"),
    "memory/packed.py": ("tests/memory/test_gmm.py", "tests/memory/test_gmm_tied.py"),
    "memory/gmm.py": (
        "tests/memory/test_gmm.py tests/memory/test_gmm_properties.py tests/memory/test_gmm_size.py",
        "tests/memory/test_gmm_tied.py tests/test_state.py",
        GMM,
    ),
    "memory/teacher.py": ("tests/memory/test_teacher.py", COMET, contract("comet-p")),
    "methods/adacontrast.py": (
        "tests/methods/test_adacontrast.py tests/golden/test_golden_adacontrast.py",
        contract("adacontrast"),
    ),
    "methods/base.py": (f"tests/methods/test_registry.py {GMM}", contract("source-only", "tent", "owttt")),
    "methods/batchwise.py": (f"tests/methods/test_batchwise.py {SHOT} {GLC}", contract("glc", "shot-o")),
    "methods/bn_stats.py": ("tests/methods/test_bn_stats.py tests/methods/test_registry.py", contract("bn-stats")),
    "methods/comet.py": (COMET, contract("comet-p", "comet-f")),
    "methods/glc.py": (GLC, contract("glc")),
    "methods/glc_plus.py": (GLC, contract("glc++")),
    "methods/gmm.py": (GMM, "tests/golden/test_golden_gmm.py", contract("gmm")),
    "methods/gmm_settings.py": (f"{GMM} tests/methods/test_effort.py", "tests/golden/test_golden_gmm.py"),
    "methods/gmm_comet.py": (
        "tests/methods/test_gmm_comet.py tests/golden/test_golden_gmm_comet.py",
        contract("gmm-comet"),
    ),
    "methods/gradient.py": (GMM, "tests/methods/test_tent.py", contract("gmm")),
    "methods/lead.py": ("tests/methods/test_lead.py tests/golden/test_golden_glc_lead.py", contract("lead")),
    "methods/look.py": ("tests/methods/test_registry.py",),
    "methods/loss_scale.py": ("tests/methods/test_optimizer.py",),
    "methods/one_step.py": ("tests/methods/test_tent.py", SHOT, contract("tent")),
    "methods/one_vs_all.py": (GLC,),
    "methods/owttt.py": ("tests/methods/test_owttt.py tests/golden/test_golden_owttt.py", contract("owttt")),
    "methods/persistence.py": (
        "tests/methods/test_persistence.py",
        contract("tent", "adacontrast", "owttt"),
        "tests/test_stream.py",
    ),
    "methods/registry.py": ("tests/methods/test_registry.py", contract("gmm")),
    "methods/shot.py": (SHOT, contract("shot-o", "shot-p")),
    "methods/shot_o.py": (SHOT, contract("shot-o")),
    "methods/shot_p.py": (SHOT, contract("shot-p")),
    "methods/source_only.py": ("tests/methods/test_tent.py tests/methods/test_registry.py", contract("source-only")),
    "methods/tent.py": ("tests/methods/test_tent.py tests/golden/test_golden_tent.py", contract("tent")),
    "models/passes.py": ("tests/models/test_passes.py -k 'not resnet50'", contract("gmm")),
    "novelty/rejection.py": ("tests/methods/test_tent.py", contract("source-only")),
    "novelty/calm.py": ("tests/novelty/test_calm.py tests/test_state.py",),
    "novelty/gate.py": (
        "tests/novelty/test_gate.py tests/test_state.py",
        "tests/methods/test_gmm_method.py",
        contract("gmm"),
    ),
}
"""Tests of a file, in the order they are tried, each line one call of pytest; the mirrored file for those not named."""


def tests_of(file: str) -> tuple[str, ...]:
    """The calls of pytest that should notice a mutant of ``file``."""
    path = Path(file)
    return TESTS.get(file, (str(Path("tests") / path.parent / f"test_{path.name}"),))


def broken_files(only: Iterable[str] = ()) -> list[str]:
    """The files to break, relative to the package; of a folder all."""
    package = ROOT / PACKAGE
    named = [package / part for part in only or BROKEN]
    paths = [path for part in named for path in ([part] if part.is_file() else part.rglob("*.py"))]
    return sorted(str(path.relative_to(package)) for path in paths if path.name != "__init__.py")


def draw(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Some of a file's mutants: all kinds in turn, one a line as long as there are lines.

    Each has a number of its own made of seed and key, so that a change of the file leaves most of the choice.
    """
    shuffled = sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest())
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in shuffled:
        by_kind[mutant.kind].append(mutant)
    turns = [(turn, mutant) for kind in by_kind.values() for turn, mutant in enumerate(kind)]
    in_turn = [mutant for _, mutant in sorted(turns, key=lambda pair: pair[0])]
    first = {(mutant.where, mutant.before): mutant.key for mutant in reversed(in_turn)}.values()
    in_order = sorted(in_turn, key=lambda mutant: mutant.key not in first)
    return list(islice((mutant for mutant in in_order if compiles(mutant.source)), count))


def choose(files: list[str], count: int, seed: int, match: str = "") -> list[Mutant]:
    """About ``count`` mutants, of every file by its number of places; or all of the lines that hold ``match``."""
    whole = {file: mutants_of(file, (ROOT / PACKAGE / file).read_text()) for file in broken_files()}
    if match:
        return [
            mutant for file in files for mutant in whole[file] if match in mutant.before and compiles(mutant.source)
        ]
    total = sum(len(mutants) for mutants in whole.values())
    shares = {file: max(round(count * len(mutants) / total), FEWEST) for file, mutants in whole.items()}
    return [mutant for file in files for mutant in draw(whole[file], shares[file], seed)]


@dataclass(frozen=True)
class Result:
    """What became of a mutant: ``by`` names the test that noticed it, and is empty where none did.

    ``source`` and ``tests`` are digests of the mutated file and of the tests it met.
    """

    key: str
    source: str
    tests: str
    by: str
    seconds: float


class Runner:
    """A copy of the tree, and processes that run its tests with one file broken."""

    def __init__(self, tree: Path, results: Path) -> None:
        self.tree, self.path = tree, results
        self.results = {result.key: result for result in read_results(results)}
        for name in ("src", "tests", "benchmarks", "examples", "pyproject.toml", "CONTRIBUTING.md"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            elif source.exists():
                shutil.copy(source, tree / name)
        self.seconds: dict[str, float] = {}

    def run(self, mutant: Mutant) -> Result:
        """Run the mutant's tests, unless the result is known."""
        calls = tests_of(mutant.file)
        source, tests = digest([mutant.source]), self.digest_of_tests(calls)
        known = self.results.get(mutant.key)
        if known is not None and known.source == source and (known.by or known.tests == tests):
            return known
        limit = self.limit(calls)
        path = self.tree / PACKAGE / mutant.file
        whole = path.read_text()
        path.write_text(mutant.source)
        try:
            by, seconds = self.first_failure(calls, limit)
        finally:
            path.write_text(whole)
        result = Result(mutant.key, source, tests, by, round(seconds, 1))
        self.keep(result)
        return result

    def digest_of_tests(self, calls: tuple[str, ...]) -> str:
        words = [word for call in calls for word in shlex.split(call) if word.startswith("tests/")]
        paths = [path for word in words for path in sorted((self.tree / word).rglob("*.py")) or [self.tree / word]]
        return digest([*calls, *(path.read_text() for path in paths)])

    def limit(self, calls: tuple[str, ...]) -> int:
        """Seconds of processor time the tests may take; they must pass where nothing is broken."""
        for call in calls:
            if call not in self.seconds:
                by, self.seconds[call] = self.first_failure((call,), None)
                if by:
                    raise SystemExit(f"{by} fails without a mutant; mend it first.")
        return int(TIMES_LONGER * sum(self.seconds[call] for call in calls)) + 10

    def first_failure(self, calls: tuple[str, ...], limit: int | None) -> tuple[str, float]:
        """Name of the first test that fails, empty if none does, and the processor time it took."""
        log = self.tree / "pytest.log"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = multiprocessing.get_context("fork").Process(target=run_tests, args=(self.tree, calls, limit, log))
        process.start()
        process.join()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if process.exitcode == 0:
            return "", seconds
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", log.read_text(), re.MULTILINE)
        return (found.group(1) if found else f"exit code {process.exitcode}"), seconds

    def keep(self, result: Result) -> None:
        self.results[result.key] = result
        with self.path.open("a") as lines:
            lines.write(json.dumps(vars(result)) + "\n")


def digest(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def read_results(path: Path) -> list[Result]:
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def preload() -> None:
    """Load what the package and the tests import of others, so that a forked process starts at once."""
    names = {"hypothesis", "pytest"}
    for path in (ROOT / PACKAGE).rglob("*.py"):
        if "lab" not in path.parts:
            imports = re.findall(r"^ *(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
            names |= {name for name in imports if name.split(".")[0] != "driftgate"}
    for name in sorted(names):
        with suppress(ImportError):
            importlib.import_module(name)


def run_tests(tree: Path, calls: tuple[str, ...], limit: int | None, log: Path) -> None:
    """In a process of its own: call pytest until a call fails, and leave with its exit code."""
    import pytest

    sys.dont_write_bytecode = True  # two mutants of one second and one size would share their bytecode
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str((tree / PACKAGE).parent)  # for the processes that tests start
    options = ["-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    for call in calls:
        code = pytest.main([*options, *shlex.split(call)])
        if code != 0:
            sys.exit(int(code))
    where = sys.modules["driftgate"].__file__ or ""
    sys.exit(0 if Path(where).is_relative_to(tree) else "the package that ran is not the copy")


def read_reasons() -> dict[str, str]:
    """Key of a mutant that no test can notice -> why."""
    entries: list[dict[str, Any]] = yaml.safe_load(REASONS.read_text())
    return {
        f"{entry['file']} | {entry['where']} | {entry['before']} | {entry['after']}": entry["reason"]
        for entry in entries
    }


def report(mutants: list[Mutant], results: dict[str, Result], reasons: dict[str, str]) -> str:
    """A table by folder, then who was not noticed."""
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    lines = []
    for mutant in mutants:
        result = results[mutant.key]
        explained = not result.by and mutant.key in reasons
        for row in (rows[mutant.file.split("/")[0]], rows["all"]):
            row[0] += 1
            row[1] += bool(result.by)
            row[2] += explained
        if not result.by:
            why = f": {reasons[mutant.key]}" if explained else " (not explained)"
            lines.append(
                f"{mutant.file} in {mutant.where}, {mutant.kind}{why}\n  - {mutant.before}\n  + {mutant.after}"
            )
    rows["all"] = rows.pop("all")
    table = ["| folder | tried | noticed | cannot be noticed | not noticed |", "|---|---|---|---|---|"]
    for name, (tried, noticed, hopeless) in rows.items():
        share = f"{100 * noticed / (tried - hopeless):.1f} %" if tried > hopeless else "all"
        table.append(f"| {name} | {tried} | {noticed} ({share}) | {hopeless} | {tried - noticed - hopeless} |")
    return "\n".join([*table, "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="folders or files of the package; all if not given")
    parser.add_argument("--count", type=int, default=300, help="mutants of all files together")
    parser.add_argument("--match", default="", help="all mutants of the lines that hold this, instead of a draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutants")
    parser.add_argument("--list", action="store_true", help="only list them")
    arguments = parser.parse_args()
    mutants = choose(broken_files(arguments.only), arguments.count, arguments.seed, arguments.match)
    if arguments.list:
        print("\n".join(f"{mutant.key} ({mutant.kind})" for mutant in mutants))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    preload()
    arguments.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder), arguments.out / "results.jsonl")
        for index, mutant in enumerate(mutants):
            result = runner.run(mutant)
            verdict = f"noticed by {result.by}" if result.by else "NOT NOTICED"
            print(f"{index + 1}/{len(mutants)} {result.seconds:.0f} s {mutant.key}: {verdict}", flush=True)
        print(f"\n{report(mutants, runner.results, read_reasons())}\n\n{time.monotonic() - started:.0f} seconds")


if __name__ == "__main__":
    main()
