"""The card of a source model: what it is, what it was trained on and how well it does, in a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftgate.files import write_text
from driftgate.models.source_model import SourceModel

MANY = 40
"""More class names than this are cut."""


def card_path(model_file: str | Path) -> Path:
    """``source.safetensors`` -> ``source.safetensors.md``, beside it."""
    path = Path(model_file)
    return path.with_name(f"{path.name}.md")


def write_card(model: SourceModel, model_file: str | Path, facts: Mapping[str, Any], recipe: Mapping[str, Any]) -> Path:
    """Write the card beside the model file; ``facts`` and ``recipe`` become rows of its two tables."""
    path = card_path(model_file)
    write_text(path, model_card(model, Path(model_file).name, facts, recipe))
    return path


def model_card(model: SourceModel, name: str, facts: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """The text of the card."""
    spec = model.spec
    parameters = sum(parameter.numel() for parameter in model.parameters())
    statistics = "" if model.statistics is None else ", ".join(model.statistics.tensors())
    about = {
        "network": f"{spec.backbone}, {parameters:,} parameters, {spec.feature_dim} features",
        "input": f"{' x '.join(str(size) for size in spec.shape)}, mean {_list(spec.mean)}, std {_list(spec.std)}",
        "classes": f"{len(spec.class_names)}: {_names(spec.class_names)}",
        "source statistics": statistics or "none",
        **facts,
    }
    parts = [
        f"# {name}",
        "A source model of driftgate: a classifier to be adapted to streams that look unlike its training data.",
        _table(about),
    ]
    if recipe:
        parts += ["## Training", _table(recipe)]
    parts += [
        "## Use and limits",
        f'`driftgate adapt --model {name} ...`, or `driftgate.SourceModel.load("{name}")` in Python. Accuracy is that '
        "on its own domain; on another one it is lower, and by itself the model has no answer for classes beyond those "
        "above. What it learned from the data, their bias included, it passes on to what is adapted from it.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {key} | {_cell(value)} |" for key, value in rows.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values[:3]) + (", ..." if len(values) > 3 else "")


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:MANY]) + (f" and {len(names) - MANY} more" if len(names) > MANY else "")
