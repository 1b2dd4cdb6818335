"""The report of one or more sweeps: a page that needs nothing but itself, and the tables as CSV, Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from driftgate.checkpoint import write_text
from driftgate.lab.bench import findings, palette, table_writers, tables
from driftgate.lab.bench.ablations import STUDIES
from driftgate.lab.bench.charts import Chart, CostPoint, cost_chart, curve_chart, study_chart, study_scores, used_chart
from driftgate.lab.bench.playing import USUAL
from driftgate.lab.bench.published import published_document, published_suite
from driftgate.lab.bench.records import read_results
from driftgate.lab.bench.report_parts import Cost, SettingsPart, StudyPart, SuitePart
from driftgate.lab.bench.report_tables import bytes_text, file_name, p_text, seconds_text, write_tables
from driftgate.lab.bench.runs import Run, SuiteRuns
from driftgate.lab.bench.shares import batches_text, share_sweeps
from driftgate.lab.bench.tables import ResultTable, by_method, by_variant, method_name, shifts_of
from driftgate.lab.bench.tenths import long_streams
from driftgate.metrics import DEFINITIONS
from driftgate.stream import versions

PAGE = "report.html"
DEVELOPMENT = (
    "half of the samples at first, about constant while the thresholds are set, then a steady rise towards 85 %"
)
"""What the supplement says of the samples used for adaptation (VisDA-C OPDA, one run)."""


@dataclass(frozen=True)
class Report:
    """What was written, and the main facts, ready for JSON."""

    page: Path
    files: list[Path]
    facts: dict[str, Any]


def write_report(folders: Sequence[str | Path], out: str | Path) -> Report:
    """Read the runs in ``folders``, and write the page and all tables into the folder ``out``."""
    suites = read_results(folders)
    out = Path(out)
    parts = [suite_part(suite, f"s{place}") for place, suite in enumerate(suites, start=1)]
    page = out / PAGE
    write_text(page, render(parts))
    files = [path for part in parts for path in write_tables(part, out / "tables")]
    return Report(page, files, {"page": str(page), "files": [str(path) for path in files], "suites": _facts(parts)})


def suite_part(suite: SuiteRuns, anchor: str) -> SuitePart:
    """Compute everything the page shows of a suite."""
    runs = suite.main
    costs = method_costs(runs)
    settings, settings_of = _settings(suite.runs)
    order = findings.standings(runs)
    references = [order[0].method] if len(order) > 1 else []
    if findings.OWN_METHOD in [standing.method for standing in order[1:]]:
        references.append(findings.OWN_METHOD)
    return SuitePart(
        suite=suite,
        anchor=anchor,
        facts=_suite_facts(suite),
        sentences=findings.sentences(suite) if runs else [],
        tables=tables.suite_tables(suite),
        notes=findings.protocol_notes(suite),
        comparisons={reference: findings.comparisons(runs, reference) for reference in references},
        shared_models=findings.seeds_share_a_model(runs),
        costs=costs,
        cost_charts=_cost_charts(costs, anchor),
        studies=[_study(suite, study, anchor) for study in suite.studies],
        curves=_curves(runs, anchor),
        tenths=long_streams(runs, anchor),
        sweeps=share_sweeps(suite.swept, anchor),
        used=used_chart(runs, findings.OWN_METHOD, f"{anchor}-used"),
        settings=settings,
        settings_of=settings_of,
        versions=_versions(suite.runs),
    )


def method_costs(runs: Sequence[Run]) -> list[Cost]:
    """Score, state, peak memory and time of every method."""
    scores = {standing.method: standing for standing in findings.standings(runs)}
    found = []
    for method, group in by_method(runs).items():
        standing = scores.get(method)
        found.append(
            Cost(
                method=method,
                name=method_name(method),
                score=standing.score if standing is not None and standing.ranked else None,
                state_bytes=_mean([run.number("state_bytes") for run in group]),
                peak_bytes=_mean([run.peak_bytes for run in group]),
                seconds_per_batch=_mean([run.number("seconds", "median_per_batch") for run in group]),
                source_free=findings.is_source_free(method),
            )
        )
    return found


def render(parts: Sequence[SuitePart]) -> str:
    """The page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "cell_text": table_writers.cell_text,
        "number": table_writers.number,
        "signed": table_writers.signed,
        "bytes": bytes_text,
        "seconds": seconds_text,
        "p": p_text,
        "runs": table_writers.runs_text,
        "svg": lambda chart: Markup(chart.svg),
        "color": lambda method: f"var(--c-{palette.method_color(method).lstrip('#')})",
        "method_name": method_name,
        "notes": table_writers.table_notes,
        "released": table_writers.released_text,
        "recipe": model_recipe,
        "batches": batches_text,
        "share_text": lambda share: str(share).replace("->", " → "),
        "tied": lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%"),
        "flat_head": lambda column: "Mean" if column.shift is None else tables.column_group(column.shift),
        "pair_label": lambda run: tables.pair_label(run.source, run.target),
        "nice": lambda value: json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value,
    }
    style = _asset("report.css").replace("/*light*/", palette.css(0)).replace("/*dark*/", palette.css(1))
    template = environment.from_string(_asset("report.html"))
    return template.render(
        parts=parts,
        style=Markup(style),
        script=Markup(_asset("report.js")),
        definitions=_definitions([run for part in parts for run in part.suite.runs]),
        paper=published_document()["paper"],
        development=DEVELOPMENT,
        uneven=table_writers.UNEVEN,
        counted=table_writers.COUNTED,
        version=versions()["driftgate"].replace("not installed", ""),
        failures=sum(len(part.suite.failures) for part in parts),
        group_starts=_group_starts,
    )


def _asset(name: str) -> str:
    return resources.files("driftgate.lab.bench").joinpath("assets", name).read_text(encoding="utf-8")


def _group_starts(table: ResultTable) -> list[bool]:
    """For each column whether a new block of columns starts with it."""
    shifts = [column.shift for column in table.columns]
    return [place == 0 or shifts[place - 1] != shift for place, shift in enumerate(shifts)]


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _suite_facts(suite: SuiteRuns) -> list[str]:
    runs = suite.main
    counts = [
        (len(suite.runs), "run"),
        (len(by_method(runs)), "method"),
        (len(tables.pairs_of(suite.runs)), "pair"),
        (len(shifts_of(suite.runs)), "shift"),
        (len({run.seed for run in suite.runs}), "seed"),
        (len(suite.studies), "stud"),
        (len(suite.failures), "failure"),
    ]
    ending = {"stud": ("y", "ies")}
    return [
        f"{count} {noun}{ending.get(noun, ('', 's'))[count != 1]}"
        for count, noun in counts
        if count or noun in {"run", "failure"}
    ]


def _cost_charts(costs: Sequence[Cost], anchor: str) -> list[Chart]:
    wanted = (
        ("state", "Score against the state a method carries", "bytes of state", bytes_text),
        ("seconds", "Score against time", "median seconds a batch", seconds_text),
        ("peak", "Score against peak memory", "peak memory of the process", bytes_text),
    )
    charts = []
    for key, title, axis, unit in wanted:
        values = {
            "state": [cost.state_bytes for cost in costs],
            "seconds": [cost.seconds_per_batch for cost in costs],
            "peak": [cost.peak_bytes for cost in costs],
        }[key]
        points = [
            CostPoint(cost.method, value, cost.score, cost.source_free)
            for cost, value in zip(costs, values, strict=True)
            if cost.score is not None and value is not None
        ]
        if len(points) > 1:
            charts.append(cost_chart(points, f"{anchor}-{key}", title, axis, unit))
    return charts


def _curves(runs: Sequence[Run], anchor: str) -> list[Chart]:
    charts: list[Chart] = []
    for source, target in tables.pairs_of(runs):
        for shift in shifts_of(runs):
            chosen = [run for run in runs if run.pair == (source, target) and run.shift == shift]
            title = f"{shift}, {tables.pair_label(source, target)}"
            chart = curve_chart(chosen, f"{anchor}-curve{len(charts)}", title) if chosen else None
            if chart is not None:
                charts.append(chart)
    return charts


def _study(suite: SuiteRuns, study: str, anchor: str) -> StudyPart:
    runs = suite.studies[study]
    default = _default_variant(suite, by_variant(runs))
    chart = study_chart(study_scores(runs), f"{anchor}-{file_name(study)}", tables.study_title(study), default=default)
    known = STUDIES.get(study)
    return StudyPart(
        study, tables.study_title(study), chart, tables.study_table(suite, study), known.paper if known else None
    )


def _default_variant(suite: SuiteRuns, groups: dict[str, list[Run]]) -> str | None:
    """The variant that is the main table's own run: by the digest the runner leaves, or by equal settings."""
    digests = {run.record["digest"] for run in suite.main if "digest" in run.record}
    alike = {(run.method, _fingerprint(run)) for run in suite.main}
    for variant, runs in groups.items():
        if any(run.record.get("digest") in digests or (run.method, _fingerprint(run)) in alike for run in runs):
            return variant
    return None


def _fingerprint(run: Run) -> str:
    protocol = run.record["protocol"]
    return json.dumps([run.settings, protocol.get("batch_size"), protocol.get("class_order")], sort_keys=True)


def _settings(runs: Sequence[Run]) -> tuple[list[SettingsPart], dict[str, str]]:
    """Every set of settings once, and which of them each run used."""
    counted: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        counted.setdefault((run.method, json.dumps(_setup(run), sort_keys=True)), []).append(run)
    order = list(by_method(runs))
    keys = sorted(counted, key=lambda key: (order.index(key[0]) if key[0] in order else -1, -len(counted[key])))
    parts: list[SettingsPart] = []
    settings_of: dict[str, str] = {}
    for place, key in enumerate(keys, start=1):
        group = counted[key]
        shown = {name: _shown(value) for name, value in _setup(group[0]).items()}
        parts.append(SettingsPart(f"S{place}", key[0], len(group), shown))
        settings_of |= {run.id: f"S{place}" for run in group}
    return parts, settings_of


def _setup(run: Run) -> dict[str, Any]:
    """Everything a run depends on but its pair, shift, seed and source model."""
    network, protocol = run.record.get("model", {}), run.protocol
    stream = ("batch_size", "drop_last", "class_order", "preset", *USUAL)
    size = network.get("input_size")
    return {
        **dict(sorted(run.settings.items())),
        "network": network.get("backbone"),
        "input size": "x".join(map(str, size)) if size else None,
        **{name: protocol[name] for name in stream if name in protocol},
        "limit of batches": run.limit,
        **({} if run.unknown_share is None else {"unknown share": run.unknown_share}),
        "versions": ", ".join(f"{name} {version}" for name, version in run.record.get("versions", {}).items()),
    }


def model_recipe(model: dict[str, Any]) -> str:
    """How a source model was trained, in a line."""
    facts = {**(model.get("training") or {}), "images of a class": model.get("per_class")}
    return ", ".join(f"{name} {_shown(value)}" for name, value in facts.items() if value is not None)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def _versions(runs: Sequence[Run]) -> dict[str, str]:
    """Package -> its version, or all of them where runs differ."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, version in run.record.get("versions", {}).items():
            found.setdefault(name, {})[str(version)] = None
    return {name: ", ".join(versions) for name, versions in found.items()}


def _definitions(runs: Sequence[Run]) -> dict[str, str]:
    """The metrics of these runs, as the records define them."""
    found: dict[str, str] = {}
    for run in runs:
        found |= {name: str(text) for name, text in run.record.get("definitions", {}).items() if name not in found}
    return found or dict(DEFINITIONS)


def _facts(parts: Sequence[SuitePart]) -> dict[str, Any]:
    return {
        part.suite.name: {
            "runs": len(part.suite.runs),
            "failures": [failure.id for failure in part.suite.failures],
            "warnings": part.suite.warnings,
            "left_out": sorted(part.suite.left_out),
            "summary": part.sentences,
            "means": {
                standing.method: {"mean": standing.score.mean, "std": standing.score.std, "missing": standing.missing}
                for standing in findings.standings(part.suite.main)
            },
            "comparisons": {
                reference: {row.method: {**row.comparison.as_dict(), "t_p_holm": row.t_p_adjusted} for row in rows}
                for reference, rows in part.comparisons.items()
            },
            "published": published_suite(part.suite.name) is not None,
        }
        for part in parts
    }
