"""The report of one or more sweeps: a page that needs nothing but itself, and its tables and figures as files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from driftgate.files import write_text
from driftgate.lab import figures
from driftgate.lab.bench.comparable import shown, stream_facts
from driftgate.lab.bench.names import OWN_METHOD, method_color, method_name
from driftgate.lab.bench.parts import STUDIES
from driftgate.lab.bench.published import published_document, published_suite
from driftgate.lab.bench.results import Results, read_results
from driftgate.lab.bench.table_writers import file_name, write_tables
from driftgate.lab.bench.tables import (
    Table,
    by_method,
    by_variant,
    pairs_of,
    shifts_of,
    study_table,
    study_title,
    suite_tables,
)
from driftgate.lab.figures.style import color_variables, describe, save_figure, to_svg
from driftgate.lab.report import details, findings
from driftgate.metrics import DEFINITIONS
from driftgate.stream import versions
from driftgate.types import DriftgateError

PAGE = "report.html"
FIGURE_KINDS = ("pdf", "svg", "png")
WORDS = json.loads(resources.files("driftgate.lab.report").joinpath("words.json").read_text(encoding="utf-8"))
"""What stands above and below the parts of a page."""


class Drawing(NamedTuple):
    """A figure of the page: its name, itself, and what is said below it."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of a suite's report: words, drawings, tables.

    ``closed`` tables are shown when asked for, ``files`` are too long for the page and only written beside it.
    """

    name: str
    title: str
    intro: str = ""
    drawings: list[Drawing] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    closed: list[Table] = field(default_factory=list)
    outro: str = ""
    files: list[Table] = field(default_factory=list)


@dataclass(frozen=True)
class SuitePart:
    """Everything the page shows of one suite; ``settings`` is label -> method, runs, settings."""

    suite: Results
    anchor: str
    facts: list[str]
    sentences: list[str]
    sections: list[Section]
    settings: dict[str, tuple[str, int, dict[str, str]]]
    versions: dict[str, str]


class Report(NamedTuple):
    """What was written, and the main facts, ready for JSON."""

    page: Path
    files: list[Path]
    facts: dict[str, Any]


def write_report(folders: Sequence[str | Path], out: str | Path, figure_kind: str | None = None) -> Report:
    """Read the runs in ``folders``, and write the page and all tables into the folder ``out``.

    ``figure_kind`` (pdf, svg or png) also writes every figure as a file.
    """
    if figure_kind not in (None, *FIGURE_KINDS):
        raise DriftgateError(
            f"Expected figures as {', '.join(FIGURE_KINDS)} but got {figure_kind!r}; name one of them."
        )
    out, suites = Path(out), read_results(folders)
    parts = [suite_part(suite, f"s{place}") for place, suite in enumerate(suites, start=1)]
    write_text(out / PAGE, render(parts))
    files = []
    for section in (section for part in parts for section in part.sections):
        files += write_tables([*section.tables, *section.closed, *section.files], out / "tables")
        for drawing in section.drawings if figure_kind else ():
            files.append(out / "figures" / f"{drawing.name}.{figure_kind}")
            files[-1].parent.mkdir(exist_ok=True)
            save_figure(drawing.figure, files[-1])
    facts = {"page": str(out / PAGE), "files": [str(path) for path in files], "suites": _facts(parts)}
    return Report(out / PAGE, files, facts)


def suite_part(suite: Results, anchor: str) -> SuitePart:
    """Compute everything the page shows of a suite."""
    settings, settings_of = _settings(suite.frame)
    runs = suite.main
    everything = [
        *([_results(suite), _comparison(suite), _costs(suite), _stream(suite), _classes(suite)] if len(runs) else []),
        _studies(suite),
        _shares(suite),
        Section(
            "runs", "Runs", closed=[details.run_table(suite, settings_of), *filter(None, [details.model_table(suite)])]
        ),
    ]
    sections = [s for s in everything if s is not None and (s.tables or s.closed or s.drawings or s.files)]
    names = sorted({name for row in suite.frame.versions for name in row})
    return SuitePart(
        suite,
        anchor,
        _suite_facts(suite),
        findings.sentences(suite) if len(runs) else [],
        sections,
        settings,
        {n: ", ".join(dict.fromkeys(str(row[n]) for row in suite.frame.versions if n in row)) for n in names},
    )


def _results(suite: Results) -> Section:
    tables = suite_tables(suite)
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    words = [WORDS["results"], *notes, WORDS["intervals"][_units(suite.main)]]
    if any(table.below is not None for table in tables):
        words += [WORDS["paper"], *findings.protocol_notes(suite)]
    further = [details.metrics_table(suite), details.ranks_table(suite)]
    intervals = [details.interval_table(table) for table in tables]
    return Section("tables", "Results", "", [], [*tables, *filter(None, further)], intervals, " ".join(words))


def _comparison(suite: Results) -> Section | None:
    runs = suite.main
    table = findings.standings(runs)
    ranked = list(table.index[table.ranked])
    if len(ranked) < 2:
        return None
    references = dict.fromkeys([ranked[0], *([OWN_METHOD] if OWN_METHOD in ranked else [])])
    tables = [details.comparison_table(suite, reference) for reference in references]
    intro = f"{WORDS['comparison']} {WORDS['units'][_units(runs)]} {WORDS['tests']}"
    return Section("pairs", "Paired comparison", intro, [], list(filter(None, tables)))


def _units(runs: pd.DataFrame) -> str:
    """What seeds there are: one, several that share a source model, several with their own."""
    return "one" if runs.seed.nunique() == 1 else "shared" if findings.seeds_share_a_model(runs) else "own"


def _costs(suite: Results) -> Section:
    costs = details.method_costs(suite.main)
    wanted = (
        ("state_bytes", "Score against the state a method carries", "bytes of state", details.bytes_text),
        ("seconds", "Score against time", "median seconds a batch", details.seconds_text),
        ("peak_bytes", "Score against peak memory", "peak memory of the process", details.bytes_text),
    )
    drawings = [
        Drawing(f"{file_name(suite.name)}-{key}", figures.cost(costs, key, title, axis, unit), WORDS["cost"])
        for key, title, axis, unit in wanted
        if (costs.score.notna() & costs[key].notna()).sum() > 1
    ]
    return Section("cost", "Memory and time", "", drawings, [details.cost_table(suite, costs)], outro=WORDS["costs"])


def _stream(suite: Results) -> Section:
    """Along the stream: running curves, samples used, the tenths of long streams."""
    runs, name = suite.main, file_name(suite.name)
    drawings = []
    for place, ((source, target), shift) in enumerate((p, s) for p in pairs_of(runs) for s in shifts_of(runs)):
        chosen = runs[(runs.source == source) & (runs.target == target) & (runs["shift"] == shift)]
        if len(chosen) and figures.curves_in(chosen):
            drawings.append(Drawing(f"{name}-curve{place}", figures.curves(chosen), ""))
    if figures.curves_in(runs[runs.method == OWN_METHOD], "used_share"):
        drawings.append(Drawing(f"{name}-used", figures.samples_used(runs), WORDS["used"]))
    long = details.long_streams(runs)
    tables = []
    for shift in shifts_of(long):
        chosen = long[long["shift"] == shift]
        drawings.append(Drawing(f"{name}-tenths-{shift}", figures.tenths(chosen), WORDS["tenths"]))
        tables.append(details.tenths_table(suite, shift, chosen))
    return Section("curves", "Along the stream", WORDS["stream"], drawings, tables)


def _classes(suite: Results) -> Section:
    tables = details.class_tables(suite)
    small = [table for table in tables if len(table.text) <= details.MOST_CLASSES]
    large = [table for table in tables if len(table.text) > details.MOST_CLASSES]
    intro = WORDS["classes"] + (" There are too many for this page: see the tables beside it." if large else "")
    return Section("classes", "Classes", intro if tables else "", [], [], small, files=large)


def _studies(suite: Results) -> Section | None:
    drawings, tables = [], []
    for study, runs in suite.studies.items():
        title = study_title(study)
        figure = figures.study(runs, title, _default_variant(suite, runs))
        known = STUDIES.get(study)
        paper = "The paper has no figure of this."
        paper = f"The paper, on VisDA-C OPDA: {known.paper}" if known and known.paper else paper
        drawings.append(Drawing(f"{file_name(suite.name)}-{file_name(study)}", figure, f"{WORDS['study']} {paper}"))
        tables.append(study_table(suite, study))
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return Section("studies", "Ablations", "", drawings, tables, outro=" ".join(notes)) if tables else None


def _default_variant(suite: Results, runs: pd.DataFrame) -> str | None:
    """The variant that is the main table's own run: by the digest the runner leaves, or by equal settings."""
    main = suite.main
    digests = set(main.digest.dropna())

    def setup(run: Any) -> str:
        facts = [run.method, run.settings, run.protocol.batch_size, run.protocol.class_order]
        return json.dumps(facts, sort_keys=True, default=str)

    alike = {setup(run) for run in main.itertuples()}
    for variant, group in by_variant(runs).items():
        if any(run.digest in digests or setup(run) in alike for run in group.itertuples()):
            return variant
    return None


def _shares(suite: Results) -> Section | None:
    swept, name = suite.swept, file_name(suite.name)
    drawings, tables = [], []
    for shift in shifts_of(swept):
        runs = swept[swept["shift"] == shift]
        points = details.share_points(runs)
        steady = {share for share in points.share if not share.changes}
        for value in ("score", "rejected") if len(steady) > 1 else ():
            drawings.append(
                Drawing(f"{name}-share-{value}-{shift}", figures.shares(points, value), WORDS[f"share {value}"])
            )
        for share in dict.fromkeys(share for share in points.share if share.changes):
            chosen = runs[runs.unknown_share == str(share)]
            title = f"{shift}, share from {100 * share.start:g} to {100 * share.end:g} %"
            stem = f"{name}-{file_name(f'{share}')}-{shift}"
            if chosen.tenths.map(lambda scores: any(map(math.isfinite, scores))).any():
                drawings.append(Drawing(f"{stem}-tenths", figures.tenths(chosen, f"{title}: score"), WORDS["tenths"]))
            if figures.curves_in(chosen, "rejected_share"):
                drawings.append(Drawing(f"{stem}-along", figures.along(chosen, f"{title}: rejected"), WORDS["along"]))
        tables.append(details.share_table(suite, points))
    return Section("shares", "Share of unknown samples", WORDS["shares"], drawings, tables) if tables else None


def _settings(runs: pd.DataFrame) -> tuple[dict[str, tuple[str, int, dict[str, str]]], dict[str, str]]:
    """Every set of settings once, and which of them each run used."""
    setups = pd.Series([_setup(run) for run in runs.itertuples()], index=runs.index, dtype=object)
    texts = setups.map(lambda setup: json.dumps(setup, sort_keys=True, default=str))
    found: dict[str, tuple[str, int, dict[str, str]]] = {}
    settings_of: dict[str, str] = {}
    for method, group in by_method(runs).items():
        for _, same in group.groupby(texts[group.index], sort=False):
            label = f"S{len(found) + 1}"
            facts = {name: shown(value) for name, value in setups[same.index[0]].items()}
            found[label] = (method, len(same), facts)
            settings_of |= dict.fromkeys(same.id, label)
    return found, settings_of


def _setup(run: Any) -> dict[str, Any]:
    """Everything a run depends on but its pair, shift, seed and source model."""
    more = {"preset": run.protocol.preset, "unknown share": run.unknown_share}
    return {
        **dict(sorted(run.settings.items())),
        **stream_facts(run),
        **{name: value for name, value in more.items() if value is not None},
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }


def _suite_facts(suite: Results) -> list[str]:
    frame = suite.frame
    counts = [
        (len(frame), "run"),
        (len(by_method(suite.main)), "method"),
        (len(pairs_of(frame)), "pair"),
        (len(shifts_of(frame)), "shift"),
        (frame.seed.nunique(), "seed"),
        (len(suite.studies), "ablation"),
        (len(suite.failures), "failure"),
    ]
    return [findings.count(number, noun) for number, noun in counts if number or noun in {"run", "failure"}]


def render(parts: Sequence[SuitePart]) -> str:
    """The page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "svg": lambda drawing, anchor: Markup(to_svg(drawing.figure, f"{anchor}-{drawing.name}")),
        "describe": lambda drawing: describe(drawing.figure),
        "color": lambda method: f"var(--c-{method_color(method).lstrip('#')})",
        "method_name": method_name,
        "tied": lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%"),
        "nice": shown,
        "heads": _heads,
        "rows": _rows,
        "methods": lambda part: list(by_method(part.suite.main)),
    }
    style = _asset("report.css")
    for ground, mark in enumerate(("/*light*/", "/*dark*/")):
        style = style.replace(mark, "".join(f"--c-{name}:{pair[ground]};" for name, pair in color_variables().items()))
    definitions = {name: text for part in parts for name, text in part.suite.definitions.items()}
    return environment.from_string(_asset("report.html")).render(
        parts=parts,
        style=Markup(style),
        script=Markup(_asset("report.js")),
        definitions=definitions or dict(DEFINITIONS),
        paper=published_document()["paper"],
        version=versions()["driftgate"].replace("not installed", ""),
    )


def _asset(name: str) -> str:
    return resources.files("driftgate.lab.report").joinpath("assets", name).read_text(encoding="utf-8")


def _heads(table: Table) -> tuple[list[tuple[str, int]], list[tuple[str, bool]]]:
    """The groups of columns with their widths, and each column with whether its values are numbers."""
    columns = list(table.text.columns)
    groups: dict[str, int] = {}
    if columns and not isinstance(columns[0], str):
        for group, _ in columns:
            groups[group] = groups.get(group, 0) + 1
    numbers = [pd.api.types.is_numeric_dtype(table.value.iloc[:, place]) for place in range(len(columns))]
    labels = [head if isinstance(head, str) else head[1] for head in columns]
    return list(groups.items()), list(zip(labels, numbers, strict=True))


def _rows(table: Table) -> Iterator[tuple[str, bool, list[tuple[str, str, str, str]]]]:
    """The rows of a table: name, whether a block begins with it, and its cells.

    A cell is what is printed, what it sorts by, its mark, and the line below.
    """
    words = {1.0: "best", 2.0: "second"}
    for place, (name, texts) in enumerate(zip(table.text.index, table.text.to_numpy(), strict=True)):
        values = table.value.iloc[place]
        ranks: Iterable[Any] = [math.nan] * len(texts) if table.rank is None else table.rank.iloc[place]
        below = [""] * len(texts) if table.below is None else table.below.iloc[place]
        found = [
            (text, "" if pd.isna(value) else str(value), words.get(rank, ""), second)
            for text, value, rank, second in zip(texts, values, ranks, below, strict=True)
        ]
        yield str(name), place in table.starts, found


def _facts(parts: Sequence[SuitePart]) -> dict[str, Any]:
    found = {}
    for part in parts:
        suite = part.suite
        table, ground = findings.standings(suite.main), findings.common_ground(suite.main)
        found[suite.name] = {
            "runs": len(suite.frame),
            "failures": [failure.id for failure in suite.failures],
            "warnings": suite.warnings,
            "left_out": sorted(suite.frame.id[~suite.frame.kept]),
            "summary": part.sentences,
            "means": json.loads(table[["mean", "std", "missing", "ranked"]].to_json(orient="index")),
            "comparisons": {
                best: json.loads(findings.comparisons(ground, best).to_json(orient="index"))
                for best in table.index[table.ranked][:1]
            },
            "published": published_suite(suite.name) is not None,
        }
    return found
