from __future__ import annotations

import pytest
import torch

from driftgate.lab.data.datasets import DIGIT_SPLITS
from driftgate.lab.data.layouts import RECIPES
from driftgate.shifts import ClassOrder, ClassSplit, Shift
from driftgate.types import UNKNOWN, DriftgateError

# Shared, source-private, target-private: the paper's table, and the for PACS and digits.
TABLE = {
    "domainnet": (345, {"PDA": (200, 145, 0), "ODA": (200, 0, 145), "OPDA": (150, 50, 145)}),
    "visda": (12, {"PDA": (6, 6, 0), "ODA": (6, 0, 6), "OPDA": (6, 3, 3)}),
    "office-home": (65, {"PDA": (25, 40, 0), "ODA": (25, 0, 40), "OPDA": (10, 5, 50)}),
    "pacs": (7, {"PDA": (4, 3, 0), "ODA": (4, 0, 3), "OPDA": (3, 2, 2)}),
    "digits": (10, {"PDA": (6, 4, 0), "ODA": (6, 0, 4), "OPDA": (4, 3, 3)}),
}
ROWS = [(name, shift, counts) for name, (_, row) in TABLE.items() for shift, counts in row.items()]
BUILT_IN = {name: recipe.splits for name, recipe in RECIPES.items()} | {"digits": DIGIT_SPLITS}
VISDA_VALIDATION = (3646, 3475, 4690, 10401, 4691, 2075, 5796, 4000, 4549, 2281, 4236, 5548)
ORDERS: list[ClassOrder] = ["shared-first", "paper"]


def test_the_table_covers_every_data_set_with_a_split() -> None:
    assert set(TABLE) == set(BUILT_IN)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "shift", "counts"), ROWS)
def test_built_in_splits_are_those_of_the_table(
    name: str, shift: str, counts: tuple[int, int, int], order: ClassOrder
) -> None:
    split = ClassSplit.parse(BUILT_IN[name][Shift(shift)], order)
    assert (split.shared, split.source_private, split.target_private) == counts
    assert split.shift is Shift(shift)
    assert split.num_classes == sum(counts) == TABLE[name][0]
    assert split.num_source == counts[0] + counts[1]


@pytest.mark.parametrize(("name", "shift", "counts"), ROWS)
def test_class_axis_in_both_orders(name: str, shift: str, counts: tuple[int, int, int]) -> None:
    """shared-first: [shared | source-private | target-private]; paper: the last |Y_t| of all classes are the target."""
    shared, source_private, target_private = counts
    for order in ORDERS:
        split = ClassSplit(*counts, order)
        axis = (
            ["both"] * shared + ["source"] * source_private
            if order == "shared-first"
            else ["source"] * source_private + ["both"] * shared
        ) + ["target"] * target_private
        assert list(split.source_classes) == [i for i, side in enumerate(axis) if side != "target"]
        assert list(split.target_classes) == [i for i, side in enumerate(axis) if side != "source"]
        assert list(split.shared_classes) == [i for i, side in enumerate(axis) if side == "both"]
    paper = ClassSplit(*counts, "paper")
    assert list(paper.target_classes) == list(range(sum(counts)))[-(shared + target_private) :]


@pytest.mark.parametrize(
    ("shift", "order", "expected"),
    [
        ("PDA", "shared-first", 28_978),
        ("PDA", "paper", 26_410),
        ("ODA", "shared-first", 55_388),
        ("ODA", "paper", 55_388),
        ("OPDA", "shared-first", 41_043),
        ("OPDA", "paper", 43_577),
    ],
)
def test_visda_target_sizes(shift: str, order: ClassOrder, expected: int) -> None:
    split = ClassSplit.parse(BUILT_IN["visda"][Shift(shift)], order)
    assert sum(VISDA_VALIDATION[label] for label in split.target_classes) == expected


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "shift", "counts"), ROWS)
def test_labels_for_evaluation(name: str, shift: str, counts: tuple[int, int, int], order: ClassOrder) -> None:
    split = ClassSplit(*counts, order)
    labels = split.target_labels(torch.tensor(split.target_classes)).tolist()
    assert labels == [*split.shared_classes] + [UNKNOWN] * counts[2]


def test_oda_is_the_same_in_both_orders_and_the_others_are_not() -> None:
    for name, (_, row) in TABLE.items():
        for shift, counts in row.items():
            first, paper = ClassSplit(*counts, "shared-first"), ClassSplit(*counts, "paper")
            assert (first.target_classes == paper.target_classes) == (shift == "ODA"), name
            assert first.source_classes == paper.source_classes


@pytest.mark.parametrize("text", ["", "10", "10/5", "10/5/50/1", "a/b/c", "-1/2/3", "1.5/2/3", "0/5/5"])
def test_a_split_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DriftgateError, match="10/5/50"):
        ClassSplit.parse(text)


def test_a_split_is_written_as_it_is_read() -> None:
    assert str(ClassSplit.parse(" 10 / 5 / 50 ")) == "10/5/50"
    assert ClassSplit.parse("10/5/50").order == "shared-first"
