"""Which runs may stand in one table: those of one network, one stream and one set of settings.

A folder may hold more than one sweep: another input size, a limit, a changed setting. Of what does not fit together the
largest part is kept (of equal parts the newest), and the rest is named, so that no run replaces another unseen.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from driftgate.lab.bench.ablations import STUDIES
from driftgate.lab.bench.playing import USUAL
from driftgate.lab.bench.runs import DIGITS, Run

Facts = dict[str, Any]
LONGEST_LIST = 4
"""Differences named in a note; a network with another recipe differs in a dozen ways."""


def choose(runs: Sequence[Run], models: Mapping[str, Facts]) -> tuple[list[Run], list[str]]:
    """The runs of a table (or of a study) that fit together, and a note for each group that was left out.

    Args:
        runs: of one suite, and of one study or none; either all or none with an unknown share that was asked for.
        models: id of a source model -> its facts, as far as they are known.
    """
    study = STUDIES.get(runs[0].study or "") if runs else None
    variants = () if study is None else study.variants
    varied = {name for variant in variants for name in variant.settings}
    stream = {
        name
        for name, values in (
            ("batch size", [variant.batch_size for variant in variants]),
            ("class order", [variant.class_order for variant in variants]),
        )
        if any(value is not None for value in values)
    }
    recipes = {name[-DIGITS:]: _recipe(model) for name, model in models.items() if model.get("training")}
    conditions = _completed(
        {run.id: _without(_stream(run) | recipes.get(run.model_digits, {}), stream) for run in runs}
    )
    splits = _completed({run.id: _known(shift=run.shift, split=run.protocol.get("split")) for run in runs})
    sources = _completed(
        {run.id: _known(place=_model_place(run), **{"source model": run.model_digits}) for run in runs}
    )

    def settings(run: Run) -> Facts:
        return {"method": run.method, **run.settings}

    def base(run: Run) -> Facts:
        return _without(settings(run), varied)

    notes: list[str] = []
    steps: tuple[tuple[Callable[[Run], Hashable], Callable[[Run], Facts]], ...] = (
        (lambda run: None, lambda run: conditions[run.id]),
        # Without unknown samples a stream has another split, and another score.
        (lambda run: (run.shift, run.record["score"]), lambda run: splits[run.id]),
        (_model_place, lambda run: sources[run.id]),
        (lambda run: (run.method, None if run.study else run.shift), base),
        (lambda run: (run.method, run.variant, run.shift), settings),
        (lambda run: (run.method, run.variant, run.unit, run.unknown_share), lambda run: {"run": run.id}),
    )
    chosen = list(runs)
    for place, facts in steps:
        chosen, found = _keep_one(chosen, place, facts)
        notes += found
    return chosen, notes


def mixed_runs(runs: Sequence[Run]) -> list[str]:
    """Say what may still differ between the runs of a table: settings from shift to shift, lengths of the stream."""
    settings: dict[str, set[str]] = {}
    lengths: dict[tuple[str, ...], set[int]] = {}
    for run in runs:
        settings.setdefault(run.method, set()).add(_text(run.settings))
        lengths.setdefault((*run.pair, run.shift), set()).add(int(run.number("protocol", "samples") or 0))
    warnings = [
        f"{method} has different settings under different shifts"
        for method, found in settings.items()
        if len(found) > 1
    ]
    if any(len(found) > 1 for found in lengths.values()):
        warnings.append("runs over streams of different lengths share a column of the table")
    return warnings


def _keep_one(
    runs: Sequence[Run], place: Callable[[Run], Hashable], facts: Callable[[Run], Facts]
) -> tuple[list[Run], list[str]]:
    """At every place the runs with the same facts: of the groups there the one with most runs anywhere, or the newest.

    By the size anywhere, so that places agree where they can.
    """
    groups: dict[str, list[Run]] = {}
    names = {run.id: _text(facts(run)) for run in runs}
    for run in runs:
        groups.setdefault(names[run.id], []).append(run)
    sizes = {name: (len(group), max(run.written for run in group), name) for name, group in groups.items()}
    best: dict[Hashable, str] = {}
    for run in runs:
        where, name = place(run), names[run.id]
        if where not in best or sizes[name] > sizes[best[where]]:
            best[where] = name
    left: dict[str, list[Run]] = {}
    for run in runs:
        winner = best[place(run)]
        if names[run.id] != winner:
            left.setdefault(differences(facts(run), facts(groups[winner][0])), []).append(run)
    kept = [run for run in runs if names[run.id] == best[place(run)]]
    return kept, [_note(group, reason) for reason, group in left.items()]


def _completed(facts: Mapping[str, Facts]) -> dict[str, Facts]:
    """Run -> its facts and, where some are not known, those of the most runs that it agrees with otherwise.

    A record of another version, or a model whose file is lost, must not hide a run.
    """
    counts = Counter(map(_text, facts.values()))
    groups = [json.loads(text) for text in counts]
    groups.sort(key=lambda group: (len(group), counts[_text(group)]), reverse=True)
    return {
        name: next((group for group in groups if known.items() <= group.items()), known)
        for name, known in facts.items()
    }


def _without(facts: Facts, names: set[str]) -> Facts:
    return {name: value for name, value in facts.items() if name not in names}


def _known(**facts: str | None) -> Facts:
    return {name: value for name, value in facts.items() if value}


def _stream(run: Run) -> Facts:
    """What all runs of a table must share, whatever their method, pair, shift and seed, as far as the record tells."""
    model, protocol = run.record.get("model", {}), run.protocol
    given = {
        "network": model.get("backbone"),
        "input size": "x".join(map(str, model.get("input_size") or ())),
        "batch size": protocol.get("batch_size"),
        "class order": protocol.get("class_order"),
    }
    found = {name: value for name, value in given.items() if value}
    if "limit" in protocol or "limit_batches" in protocol:
        found["limit of batches"] = run.limit
    if protocol.get("drop_last") is not None:
        found["drop_last"] = protocol["drop_last"]
    for name, usual in USUAL.items():  # older versions knew no other way
        found["passes" if name == "repeat" else name] = usual if protocol.get(name) is None else protocol[name]
    if run.model_id:
        found["a source model for each seed"] = bool(_own_seed(run))
    return found


def _model_place(run: Run) -> str:
    """Where all runs must start from the same source model."""
    return " ".join((run.source, run.shift, _own_seed(run)))


def _own_seed(run: Run) -> str:
    """``seed0`` where a source model belongs to one seed, as its id says."""
    found = re.search(r"-(seed\d+)-", run.model_id)
    return found[1] if found else ""


def _recipe(model: Facts) -> Facts:
    """How a source model was trained, but for the seed."""
    recipe = {f"training {name}": value for name, value in model["training"].items() if name != "seed"}
    return {**recipe, "training images of a class": model.get("per_class")}


def differences(facts: Facts, kept: Facts) -> str:
    """``input size 64x64 instead of 112x112``: what of ``facts`` differs from what was kept."""
    names = [name for name in {**facts, **kept} if facts.get(name) != kept.get(name)]
    shown = [f"{name} {_word(facts.get(name))} instead of {_word(kept.get(name))}" for name in names[:LONGEST_LIST]]
    more = len(names) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


def _word(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else _text(value)


def _note(runs: Sequence[Run], reason: str) -> str:
    methods = ", ".join(dict.fromkeys(run.method for run in runs))
    kind = f" of the study {runs[0].study}" if runs[0].study else ""
    kind += " with an unknown share" if runs[0].unknown_share is not None else ""
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return f"{count}{kind} ({methods}) left out of tables and statistics: {reason}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
