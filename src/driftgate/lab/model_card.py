"""The card of a source model: what it is, what it was trained on and how well it does, in a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment

from driftgate.files import write_text
from driftgate.models.source_model import SourceModel


def write_card(model: SourceModel, model_file: str | Path, facts: Mapping[str, Any], recipe: Mapping[str, Any]) -> Path:
    """Write ``source.safetensors.md`` beside the model file; ``facts`` and ``recipe`` become rows of its two tables."""
    path = Path(model_file)
    card = path.with_name(f"{path.name}.md")
    write_text(card, model_card(model, path.name, facts, recipe))
    return card


def model_card(model: SourceModel, name: str, facts: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """The text of the card."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"cell": _cell, "numbers": _numbers}
    template = resources.files("driftgate.lab").joinpath("model_card.md.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        name=name,
        spec=model.spec,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        statistics=[] if model.statistics is None else list(model.statistics.tensors()),
        facts=facts,
        recipe=recipe,
    )


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values[:3]) + (", ..." if len(values) > 3 else "")
