"""The card beside a model file says what the model is."""

from __future__ import annotations

from pathlib import Path

from driftgate.lab.model_card import model_card, write_card
from driftgate.models import SourceModel


def test_the_card_lies_beside_the_model(tmp_path: Path) -> None:
    model = SourceModel.build("cnn", ["ape", "bee"], seed=0)
    path = write_card(model, tmp_path / "zoo.safetensors", {"trained on": "folder: day"}, {"epochs": 2, "lr": 0.01})
    assert path == tmp_path / "zoo.safetensors.md"
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# zoo.safetensors\n")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for row in (
        f"| network | cnn, {parameters:,} parameters, 256 features |",
        "| classes | 2: ape, bee |",
        "| source statistics | none |",
        "| trained on | folder: day |",
        "| epochs | 2 |",
        "| lr | 0.01 |",
    ):
        assert row in text.splitlines(), row


def test_names_do_not_break_the_table() -> None:
    names = [f"a|b {number}" for number in range(42)]
    text = model_card(SourceModel.build("cnn", names, seed=0), "many.safetensors", {}, {})
    (row,) = [line for line in text.splitlines() if line.startswith("| classes")]
    assert row.count("\\|") == 40 and row.endswith("and 2 more |")
    assert "## Training" not in text  # nothing is known about it
