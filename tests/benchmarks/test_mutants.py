"""The mutation tool: what it breaks, what it chooses, and that it tells noticed from not noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import load_benchmark

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def broken(source: str) -> set[str]:
    """All mutants of a source, by their changed lines."""
    mutants = load_benchmark("mutations").mutants_of("file.py", source)
    for mutant in mutants:
        compile(mutant.source, "file.py", "exec")
    return {mutant.after for mutant in mutants}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a >= b", "a <= b"}),
        ("(a + b) == (c)", {"(a + b) != (c)", "(a - b) == (c)", "(a) == (c)", "(b) == (c)"}),
        ("a is not b", {"a is b"}),
        ("a and b and c", {"a or b and c"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = a"}),
        ("x = ~a & b", {"x = a & b", "x = ~a | b", "x = ~a", "x = b"}),
        ("x = (a + 1) * b", {"x = (a - 1) * b", "x = (a) * b", "x = (1) * b", "x = (a + 2) * b"}
         | {"x = (a + 1) / b", "x = (a + 1)", "x = b"}),
        ("x = [0, 0.5, True, 'a']", {"x = [1, 0.5, True, 'a']", "x = [0, 5.0, True, 'a']", "x = [0, 0.5, False, 'a']"}),
        ("y = x.detach()", {"y = x"}),
        ("y = F.normalize(x, eps=z)", {"y = x", "y = F.normalize(x)"}),
        ("y = x.sum(dim=1)", {"y = x.mean(dim=1)", "y = x.sum(dim=0)", "y = x"}),
        ("y = max(a, b)", {"y = min(a, b)", "y = a"}),
        ("y = sum(parts)", {"y = parts"}),
        ("y = f(a, b=c, d=e)", {"y = f(a, d=e)", "y = f(a, b=c)"}),
        ("y = f(b=c)", {"y = f()"}),
        ("y = torch.cat([a, b], dim=0)", {"y = torch.cat([a], dim=0)", "y = torch.cat([a, b], dim=1)"}),
        ("y = x[: len(z)]", {"y = x[: (len(z) + 1)]"}),
        ("self.x = y", {"pass"}),
        ("x += y", {"x -= y", "pass"}),
        ("f(x)", {"pass"}),
        ("for x in y:\n    pass", {"for x in list(y)[1:]:"}),
        ("if x:\n    pass", {"if True:", "if False:"}),
        ("y = a if x else b", {"y = a if not (x) else b"}),
        ("y = [x for x in z if x]", {"y = [x for x in z if True]"}),
        ("with a, b:\n    pass", {"with b:", "with a:"}),
        ("with a:\n    pass", {"if True:"}),
        ("with a as b:\n    pass", set()),
        ("def f(a):\n    b = g(a)\n    return b", {"return a"}),
        ("def f(a, b):\n    return a, b", {"return b, a"}),
        ("a, b = c, d", {"a, b = d, c"}),
        ("@torch.no_grad()\ndef f():\n    pass", {""}),
    ],
)  # fmt: skip
def test_every_way_to_break_a_line(source: str, expected: set[str]) -> None:
    assert broken(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Words."""',
        "raise Error(f'{a + b}', 1 < 2)",
        "assert a < b",
        "x = f'{a + b}'",
        "logger.warning('lost', a + b)",
        "x: int = Field(default=1, ge=0)",
        "class OwnSettings:\n    x: bool = True",
        "def f(x: Literal[1] = 2, *, y: bool = True) -> Literal[3]:\n    pass",
        "super().__init__()",
    ],
)
def test_words_types_and_settings_stay(source: str) -> None:
    assert broken(source) == set()


def test_a_mutant_is_known_by_its_lines_and_not_by_their_numbers() -> None:
    mutations = load_benchmark("mutations")
    source = "def f(ä):\n    return ä < 'ö'  # wide letters\n"
    one, _ = mutations.mutants_of("file.py", source)
    moved, _ = mutations.mutants_of("file.py", f"import math\n\n\n{source}")
    assert one.key == moved.key == "file.py | f | return ä < 'ö' # wide letters | return ä >= 'ö' # wide letters"
    assert one.source == source.replace("<", ">=")


def test_the_draw_is_the_same_for_a_seed_and_spreads_over_kinds_and_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tool = load_benchmark("mutants")
    chosen = tool.choose(tool.broken_files(), 200, seed=0)
    keys = [mutant.key for mutant in chosen]
    assert len(set(keys)) == len(keys) > 180
    of_one = [mutant.key for mutant in chosen if mutant.file == "losses/kl.py"]
    assert of_one == [mutant.key for mutant in tool.choose(["losses/kl.py"], 200, seed=0)]
    assert of_one != [mutant.key for mutant in tool.choose(["losses/kl.py"], 200, seed=1)]
    assert len({mutant.kind for mutant in chosen}) > 10
    assert {mutant.file.split("/")[0] for mutant in chosen} == {
        "methods", "memory", "novelty", "losses", "models", "stream.py"
    }  # fmt: skip
    in_gate = [mutant for mutant in chosen if mutant.file == "novelty/gate.py"]
    assert len({(mutant.where, mutant.before) for mutant in in_gate}) == len(in_gate) > 10


def test_tests_and_reasons_are_of_files_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tool = load_benchmark("mutants")
    files = tool.broken_files()
    assert set(tool.TESTS) <= set(files)
    for file in files:
        for call in tool.tests_of(file):
            words = [word for word in call.split() if word.startswith("tests/")]
            assert words and all((BENCHMARKS.parent / word).exists() for word in words), file
    sources = {file: (BENCHMARKS.parent / tool.PACKAGE / file).read_text() for file in files}
    every = {mutant.key for file, source in sources.items() for mutant in tool.mutants_of(file, source)}
    assert [key for key in tool.read_reasons() if key not in every] == []


def run(root: Path) -> str:
    """The tool on a tree of its own, by itself; what it printed."""
    command = [sys.executable, "benchmarks/mutants.py", "--match", "<"]
    return subprocess.run(
        command, cwd=root, env={"PYTHONPATH": "src"}, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def test_it_tells_noticed_from_not_noticed_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    files = {
        "src/driftgate/__init__.py": "",
        "src/driftgate/stream.py": "def small(x: int) -> bool:\n    return x < 3\n",
        "tests/test_stream.py": "from driftgate.stream import small\n\ndef test_small():\n    assert small(2)\n",
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\n',
        "benchmarks/mutants.yaml": "[]\n",
    }
    for name in ("mutants.py", "mutations.py"):
        files[f"benchmarks/{name}"] = (BENCHMARKS / name).read_text()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = run(tmp_path)
    assert "return x >= 3: noticed by tests/test_stream.py::test_small" in found
    assert "return x <= 3: NOT NOTICED" in found
    assert "return x < 4: NOT NOTICED" in found
    assert "| stream.py | 3 | 1 (33.3 %) | 0 | 2 |" in found

    results = tmp_path / "runs" / "mutants" / "results.jsonl"
    kept = results.read_text()
    assert run(tmp_path).splitlines()[:5] == found.splitlines()[:5] and results.read_text() == kept

    (tmp_path / "tests" / "test_stream.py").write_text(f"{files['tests/test_stream.py']}    assert not small(3)\n")
    (tmp_path / "benchmarks" / "mutants.yaml").write_text(
        "- file: stream.py\n  where: small\n  before: return x < 3\n  after: return x >= 3\n  reason: none\n"
    )
    again = run(tmp_path)
    assert "| stream.py | 3 | 3 (100.0 %) | 0 | 0 |" in again  # a reason counts only where nobody noticed
    assert (tmp_path / "src/driftgate/stream.py").read_text() == files["src/driftgate/stream.py"]
