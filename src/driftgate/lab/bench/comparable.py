"""Which runs may stand in one table: those of one network, one stream and one set of settings.

A folder may hold more than one sweep: another input size, a limit, a changed setting. Of what does not fit together the
largest part is kept (of equal parts the newest), and the rest is named, so that no run replaces another unseen.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from driftgate.lab.bench.plan import AS_EVER, DIGITS
from driftgate.lab.bench.studies import STUDIES
from driftgate.lab.data.orders import USUAL

Facts = dict[str, Any]
LONGEST_LIST = 4
"""Differences named in a note; a network with another recipe differs in a dozen ways."""


def choose(runs: pd.DataFrame, models: Mapping[str, Facts]) -> tuple[pd.DataFrame, list[str]]:
    """The runs of a table (or of a study) that fit together, and a note for each group that was left out.

    Args:
        runs: of one suite, and of one study or none; either all or none with an unknown share that was asked for.
        models: id of a source model -> its facts, as far as they are known.
    """
    if runs.empty:
        return runs, []
    study = STUDIES.get(runs.study.iloc[0] or "")
    variants = () if study is None else study.variants
    varied = {name for variant in variants for name in variant.settings}
    varied |= {"batch size" for variant in variants if variant.batch_size}
    varied |= {"class order" for variant in variants if variant.class_order}
    recipes = {name[-DIGITS:]: _recipe(model) for name, model in models.items() if model.get("training")}
    one_shift = bool(runs.study.iloc[0])  # a study is held to one base under all shifts
    steps: tuple[tuple[Callable[[Any], Any], Callable[[Any], Facts], set[str]], ...] = (
        (lambda run: None, lambda run: {**stream_facts(run), **recipes.get(run.model, {})}, varied),
        # Without unknown samples a stream has another split, and another score.
        (lambda run: (run.shift, run.metric), lambda run: _known(shift=run.shift, split=run.protocol.split), set()),
        (_model_place, lambda run: _known(place=str(_model_place(run)), **{"source model": run.model}), set()),
        (lambda run: (run.method, one_shift or run.shift), _settings, varied),
        (lambda run: (run.method, run.variant, run.shift), _settings, set()),
        (
            lambda run: (run.method, run.variant, run.shift, run.source, run.target, run.seed, run.unknown_share),
            lambda run: {"run": run.id},
            set(),
        ),
    )
    kept, notes = runs, []
    for place, facts, free in steps:
        rows = {run.Index: run for run in kept.itertuples()}
        told = {key: {name: v for name, v in facts(run).items() if name not in free} for key, run in rows.items()}
        where = pd.Series([str(place(run)) for run in rows.values()], index=kept.index)
        kept, found = _keep_one(kept, where, _completed(told))
        notes += found
    return kept, notes


def _model_place(run: Any) -> tuple[str, str, str]:
    """Where one source model is expected."""
    return run.source, run.shift, _own_seed(run.model_id)


def _settings(run: Any) -> Facts:
    return {"method": run.method, **_whole(run.settings)}


def _whole(settings: Facts) -> Facts:
    """A record from before a setting existed says by its absence what every version did then."""
    return {**AS_EVER, **settings}


def mixed_runs(runs: pd.DataFrame) -> list[str]:
    """Say what may still differ between the runs of a table: settings from shift to shift, lengths of the stream."""
    if runs.empty:
        return []
    kinds = runs.settings.map(_whole).map(_text).groupby(runs.method, sort=False).nunique()
    warnings = [f"{method} has different settings under different shifts" for method in kinds.index[kinds > 1]]
    if (runs.groupby(["source", "target", "shift"]).samples.nunique(dropna=False) > 1).any():
        warnings.append("runs over streams of different lengths share a column of the table")
    return warnings


def _keep_one(runs: pd.DataFrame, place: pd.Series[str], facts: Mapping[Any, Facts]) -> tuple[pd.DataFrame, list[str]]:
    """At every place the runs with the same facts: of the groups there the one with most runs anywhere, or the newest.

    By the size anywhere, so that places agree where they can.
    """
    text = pd.Series([_text(facts[key]) for key in runs.index], index=runs.index)
    groups = pd.DataFrame({"place": place, "text": text, "size": text.groupby(text).transform("size")})
    groups["newest"] = runs.written.groupby(text).transform("max")
    best = groups.sort_values(["size", "newest", "text"]).drop_duplicates("place", keep="last").set_index("place").text
    winner = place.map(best)
    examples = {name: facts[key] for key, name in reversed(list(text.items()))}
    left: dict[str, list[Any]] = {}
    for key in runs.index[text != winner]:
        left.setdefault(differences(facts[key], examples[winner[key]]), []).append(key)
    return runs[text == winner], [_note(runs.loc[keys], reason) for reason, keys in left.items()]


def _completed(facts: Mapping[Any, Facts]) -> dict[Any, Facts]:
    """Run -> its facts and, where some are not known, those of the most runs that it agrees with otherwise.

    A record of another version, or a model whose file is lost, must not hide a run.
    """
    texts = {key: _text(known) for key, known in facts.items()}
    counts = Counter(texts.values())
    groups = [json.loads(text) for text in counts]
    groups.sort(key=lambda group: (len(group), counts[_text(group)]), reverse=True)
    whole = {
        text: next((group for group in groups if known.items() <= group.items()), known)
        for text, known in ((text, json.loads(text)) for text in counts)
    }
    return {key: whole[text] for key, text in texts.items()}


def _known(**facts: str | None) -> Facts:
    return {name: value for name, value in facts.items() if value}


def stream_facts(run: Any) -> Facts:
    """What all runs of a table must share, whatever their method, pair, shift and seed, as far as the record tells."""
    protocol, found = run.protocol, _known(network=run.network, **{"input size": run.input_size})
    found |= _known(**{"batch size": protocol.batch_size, "class order": protocol.class_order})
    if protocol.model_fields_set & {"limit", "limit_batches"}:
        found["limit of batches"] = protocol.limit_batches or protocol.limit
    if protocol.drop_last is not None:
        found["drop_last"] = protocol.drop_last
    for name, usual in USUAL.items():  # older versions knew no other way
        given = getattr(protocol, name)
        found["passes" if name == "repeat" else name] = usual if given is None else given
    if run.model_id:
        found["a source model for each seed"] = bool(_own_seed(run.model_id))
    return found


def _own_seed(model_id: str) -> str:
    """``seed0`` where a source model belongs to one seed, as its id says."""
    found = re.search(r"-(seed\d+)-", model_id)
    return found[1] if found else ""


def _recipe(model: Facts) -> Facts:
    """How a source model was trained, but for the seed."""
    recipe = {f"training {name}": value for name, value in model["training"].items() if name != "seed"}
    return {**recipe, "training images of a class": model.get("per_class")}


def differences(facts: Facts, kept: Facts) -> str:
    """``input size 64x64 instead of 112x112``: what of ``facts`` differs from what was kept."""
    names = [name for name in {**facts, **kept} if facts.get(name) != kept.get(name)]
    told = [f"{name} {shown(facts.get(name))} instead of {shown(kept.get(name))}" for name in names[:LONGEST_LIST]]
    more = len(names) - len(told)
    return ", ".join([*told, *([f"and {more} more"] if more else [])])


def shown(value: Any) -> str:
    """A setting as people read it."""
    return "none" if value is None else value if isinstance(value, str) else _text(value)


def _note(runs: pd.DataFrame, reason: str) -> str:
    first = runs.iloc[0]
    kind = f" of the study {first.study}" if first.study else ""
    kind += " with an unknown share" if first.unknown_share is not None else ""
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    methods = ", ".join(runs.method.unique())
    return f"{count}{kind} ({methods}) left out of tables and statistics: {reason}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
