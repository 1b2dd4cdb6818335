"""The paper's suites from end to end, on generated trees with the classes and domains of the real data sets.

Here a domain has few pictures of each class; `benchmarks/paper_trees.py` does the same with as many as the real ones.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from lab.cli.commands import answer
from support import load_benchmark

from driftgate.lab.bench.folder import SweepFolder
from driftgate.lab.bench.published import published_suite
from driftgate.lab.bench.suite import read_suite
from driftgate.lab.bench.tables import method_name
from driftgate.lab.data.layouts import RECIPES
from driftgate.shifts import Shift


@pytest.mark.parametrize(
    ("suite", "pair", "target", "per_class", "batch_size"),
    [
        ("visda", "train", "validation", 24, 64),
        ("domainnet", "clipart->sketch", "sketch", 2, 64),
        ("office-home", "real_world", "art+clipart+product", 2, 32),
    ],
)
def test_suite_on_a_generated_tree_up_to_its_report(
    suite: str, pair: str, target: str, per_class: int, batch_size: int, tmp_path: Path
) -> None:
    root, out, recipe = tmp_path / "data", tmp_path / "out", RECIPES[suite]
    load_benchmark("paper_trees").write_tree(root, suite, dict.fromkeys(recipe.domains, per_class * recipe.num_classes))
    command = ["bench", suite, "--root", str(root), "--out", str(out), "--backbone", "cnn", "--limit", "2"]
    command += ["--quick-training", "--seeds", "1", "--pairs", pair]
    done = answer(*command, "--backend", "serial")
    records = SweepFolder(out).all_records()
    splits = {shift.value: split for shift, split in recipe.splits.items()}
    expected = {
        (shift.value, entry.name) for shift in Shift for entry in read_suite(suite).methods if entry.runs_under(shift)
    }
    assert {(record["shift"], record["method"]) for record in records} == expected
    assert done["done"] == len(records) == len(expected)
    for record in records:
        assert record["protocol"]["split"] == splits[record["shift"]] and record["target"] == target
        assert record["protocol"]["batches"] == 2 and record["protocol"]["samples"] == 2 * batch_size
        shared, private, _ = map(int, splits[record["shift"]].split("/"))
        assert len(record["model"]["class_names"]) == shared + private

    facts = answer("report", out)
    page = Path(facts["page"]).read_text(encoding="utf-8")
    text = next(Path(file) for file in facts["files"] if Path(file).name == f"{suite}.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["source"] != "mean"]
    in_table = {(row["shift"], method_of(row["row"], row["shift"])) for row in rows}
    assert in_table == expected
    published = published_suite(suite)
    assert published is not None
    for row in rows:
        assert method_name(row["row"]) in page
        method = method_of(row["row"], row["shift"])
        paper = published.number(method, row["shift"], row["source"], row["target"])
        assert row["published"] == ("" if paper is None else str(paper))
    assert any(row["published"] for row in rows)


def method_of(row: str, shift: str) -> str:
    """The method behind a row of the paper's tables, which have SHOT's two forms in one."""
    return ("shot-p" if shift == "PDA" else "shot-o") if row == "shot-o/p" else row
