"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import driftgate

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 1
    names: dict[str, object] = {}
    exec(blocks[0], names)
    assert len(names["rejected"]) == 64  # type: ignore[arg-type]
    assert names["method"].steps == 5  # type: ignore[attr-defined]
    fresh = driftgate.SourceModel(
        names["backbone"],  # type: ignore[arg-type]
        names["classifier"],  # type: ignore[arg-type]
        class_names=names["names"],  # type: ignore[arg-type]
        input_size=(32, 32),
    )
    assert driftgate.load("adapted.safetensors", model=fresh).steps == 5


def test_the_links_lead_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_make_targets_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for document in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for target in re.findall(r"^make ([\w-]+)", document, flags=re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_examples_run() -> None:
    for example in sorted((ROOT / "examples").glob("*.py")):
        finished = subprocess.run(
            [sys.executable, str(example)], capture_output=True, text=True, timeout=200, check=False
        )
        assert finished.returncode == 0, finished.stderr
        assert len(example.read_text(encoding="utf-8").splitlines()) <= 60
        if example.name == "rows.py":
            scores = re.findall(r"source-only (0\.\d+), gmm (0\.\d+)", finished.stdout)
            assert len(scores) == 3 and all(float(gmm) > float(source) + 0.2 for source, gmm in scores)
