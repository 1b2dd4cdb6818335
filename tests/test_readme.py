"""What the README shows works as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import driftgate
from driftgate.methods import base

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opening, whole, logged = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(whole, names)
    assert len(names["rejected"]) == 64 and names["method"].steps == 5
    assert names["adapted"] is names["network"]
    assert driftgate.load("adapted.safetensors", model=names["network"]).steps == 5
    rows = torch.rand(3, 16, 6)
    given = {"driftgate": driftgate, "network": nn.Linear(6, 3), "names": ["a", "b", "c"], "loader": rows}
    exec(opening, given)
    assert given["method"].steps == 3
    exec(logged, given)
    assert given["method"].steps == 6 and any((tmp_path / "runs" / "street").iterdir())


def test_the_snippets_about_a_model_of_ones_own_run() -> None:
    text = (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8")
    loop, torchvision, view, statistics = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.rand(16, 6), torch.arange(16) % 3) for _ in range(3)]
    given = {"driftgate": driftgate, "torch": torch, "network": network, "names": ["a", "b", "c"], "loader": batches}
    exec(loop, given)
    assert given["adapted"] is network
    exec(view, given)
    driftgate.create("gmm", given["model"], views=given["shifted"]).step(batches[0])
    given["source_loader"] = batches
    exec(statistics, given)
    driftgate.create("owttt", given["model"]).step(batches[0])
    compile(torchvision, "own-model.md", "exec")  # needs torchvision to run: see tests/test_timm.py


def test_the_snippets_of_the_first_page_and_of_a_method_of_ones_own_run() -> None:
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("index.md", "own-method.md")]
    first, definition, use = (code for page in pages for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    given: dict[str, Any] = {}
    exec(first, given)
    assert given["method"].steps == 10
    try:
        exec(definition, given)
        exec(use, given)
    finally:
        base.KNOWN.pop("margin", None)  # the contract tests take whatever is registered
    assert given["method"].name == "margin" and len(given["out"]) == 64


def test_the_tutorials_have_been_run() -> None:
    notebooks = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
    assert len(notebooks) == 4
    for notebook in notebooks:
        cells = [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), notebook.name
        assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])


def test_there_is_one_version() -> None:
    assert f"\nversion: {driftgate.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    first = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert first is not None and first[1] in {driftgate.__version__, "Unreleased"}
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_links_lead_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https://)([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_make_targets_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for document in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for target in re.findall(r"^make ([\w-]+)", document, flags=re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_examples_run(tmp_path: Path) -> None:
    for example in sorted((ROOT / "examples").glob("*.py")):
        finished = subprocess.run(
            [sys.executable, str(example)], capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path
        )
        assert finished.returncode == 0, finished.stderr
        assert len(example.read_text(encoding="utf-8").splitlines()) <= 60
        if example.name == "rows.py":
            scores = re.findall(r"source-only (0\.\d+), bn-stats 0\.\d+, gmm (0\.\d+)", finished.stdout)
            assert len(scores) == 3 and all(float(gmm) > float(source) + 0.2 for source, gmm in scores)
        if example.name == "margin_entropy.py":
            assert re.search(r"^margin-entropy +\d+\.\d +1$", finished.stdout, flags=re.MULTILINE), finished.stdout
        if example.name == "own_loop_tensorboard.py":
            assert re.search(r"after 60 steps: kl \d\.\d+, contrastive \d\.\d+", finished.stdout), finished.stdout
            assert any((tmp_path / "runs" / "tensorboard").iterdir())
