"""The paper's own numbers: every result table of the paper and its supplement, from ``published.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any, NamedTuple

REST = "rest"
"""The target that is the mix of all domains but the source (Office-Home)."""


class PublishedSuite(NamedTuple):
    """The paper's numbers for one suite, in per cent: its network, and (method, shift, source, target) -> number.

    The average of a shift has no source and no target.
    """

    backbone: str
    numbers: dict[tuple[str, str, str, str], float]

    def number(self, method: str, shift: str, source: str, target: str) -> float | None:
        """What the paper prints for a cell, if it does; a mix of targets must be all domains but the source."""
        domains = {key[2] for key in self.numbers if key[3] == REST}
        is_rest = "+" in target and set(target.split("+")) == domains - {source}
        return self.numbers.get((method, shift, source, REST if is_rest else target))

    def average(self, row: str, cells: Sequence[tuple[str, str, str]]) -> float | None:
        """The paper's number for a row and some cells (shift, source, target); None where it lacks one of them.

        For all pairs of a shift it is the mean that the paper prints, which has two decimals and comes from numbers
        with more than its cells show, else the average of its cells; over shifts the average of these.
        """
        means = []
        for shift, group in groupby(cells, key=lambda cell: cell[0]):
            method = ("shot-p" if shift == "PDA" else "shot-o") if row == "shot-o/p" else row
            pairs = [self.number(method, *cell) for cell in group]
            known = [pair for pair in pairs if pair is not None]
            if len(known) < len(pairs) or not known:
                return None
            whole = len(known) == sum(key[:2] == (method, shift) and bool(key[2]) for key in self.numbers) > 1
            printed = self.numbers.get((method, shift, "", "")) if whole else None
            means.append(sum(known) / len(known) if printed is None else printed)
        return sum(means) / len(means)


@cache
def published_document() -> dict[str, Any]:
    """``published.json`` as it is."""
    text = resources.files("driftgate.lab.bench").joinpath("published.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def published_suite(name: str) -> PublishedSuite | None:
    """The paper's numbers for a suite; None for a suite the paper does not have.

    A suite at another size has the numbers of the one at the paper's: ``office-home-160`` those of ``office-home``.
    """
    known = re.sub(r"-\d+$", "", name)
    tables = [table for table in published_document()["tables"] if table["suite"] == known]
    if not tables:
        return None
    numbers = {
        (row["method"], column["shift"], column.get("source", ""), column.get("target", "")): value
        for table in tables
        for row in table["rows"]
        for column, value in zip(table["columns"], row["values"], strict=True)
    }
    return PublishedSuite(tables[0]["backbone"], numbers)
