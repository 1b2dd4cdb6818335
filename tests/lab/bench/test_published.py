"""The paper's numbers: every one of them against the paper itself, where it is at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from driftgate.lab.bench.published import published_document, published_suite

PAPER = Path(__file__).parents[4] / "shared" / "paper.tex"
SHIFTS = ("PDA", "ODA", "OPDA")


def test_known_numbers() -> None:
    visda, office, vit = (published_suite(name) for name in ("visda", "office-home", "visda-vit"))
    domainnet = published_suite("domainnet")
    assert visda is not None and office is not None and vit is not None and domainnet is not None
    assert visda.number("gmm", "OPDA", "train", "validation") == 60.3
    assert office.number("shot-p", "PDA", "art", "clipart+product+real_world") == 50.0
    assert office.number("shot-o", "ODA", "art", "clipart+product+real_world") == 63.3
    assert office.number("shot-o", "PDA", "art", "clipart+product+real_world") is None
    assert vit.number("owttt", "ODA", "train", "validation") == 54.1
    assert domainnet.number("comet-p", "PDA", "painting", "real") == 51.3
    cells = [("OPDA", key[2], key[3]) for key in domainnet.numbers if key[:2] == ("gmm", "OPDA") and key[2]]
    assert domainnet.average("gmm", cells) == 50.56 and len(cells) == 12
    assert domainnet.average("gmm", cells[:2]) == sum(domainnet.number("gmm", *cell) or 0 for cell in cells[:2]) / 2


def test_only_all_other_domains_are_the_papers_mix() -> None:
    office = published_suite("office-home")
    assert office is not None
    for target in ("clipart", "clipart+product", "art+clipart+product", "clipart+product+real_world+sketch"):
        assert office.number("gmm", "PDA", "art", target) is None, target
    assert office.number("gmm", "PDA", "art", "real_world+product+clipart") is not None


def test_a_suite_of_nobodys() -> None:
    assert published_suite("digits") is None
    assert published_suite("office-home-mine") is None


def test_a_suite_at_another_size_has_the_same_numbers() -> None:
    assert published_suite("office-home-160") == published_suite("office-home") is not None


def test_the_printed_averages_follow_from_the_cells() -> None:
    """Within what rounding of twelve cells to one decimal allows: a number typed wrong would show here."""
    domainnet = published_suite("domainnet")
    assert domainnet is not None
    for (method, shift, source, _), mean in domainnet.numbers.items():
        if source:
            continue
        cells = [value for key, value in domainnet.numbers.items() if key[:2] == (method, shift) and key[2]]
        assert len(cells) == 12
        assert mean == pytest.approx(sum(cells) / 12, abs=0.051)


def test_every_table_is_complete() -> None:
    tables = published_document()["tables"]
    assert {table["suite"] for table in tables} == {"domainnet", "visda", "office-home", "visda-vit"}
    assert len(tables) == 12
    assert all(len(table["rows"]) == 9 for table in tables)
    assert sum(len(row["values"]) for table in tables for row in table["rows"]) == 513


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not at hand")
def test_every_number_is_the_papers() -> None:
    text = PAPER.read_text(encoding="utf-8")
    for label in {table["label"] for table in published_document()["tables"]}:
        printed = _printed_rows(text, label)
        tables = [table for table in published_document()["tables"] if table["label"] == label]
        for name, numbers in printed.items():
            ours = [
                value for table in tables for row in table["rows"] if row["printed"] == name for value in row["values"]
            ]
            assert ours == numbers, (label, name)
        assert {row["printed"] for table in tables for row in table["rows"]} == set(printed)


def _printed_rows(text: str, label: str) -> dict[str, list[float]]:
    """Row name -> its numbers from left to right, all of a table's shifts and suites in the order of the columns."""
    start = text.index(rf"\label{{{label}}}")
    table = text[start : text.index(r"\bottomrule", start)]
    rows = {}
    for line in table.splitlines():
        found = re.findall(r"\$(?:\\color\{\w+\})?([\d.]+)\$", line)
        if found:
            rows[re.sub(r"\\cite\{[^}]*\}", "", line.split("&")[0]).strip()] = [float(number) for number in found]
    return rows
