"""The report of one or more sweeps: a page that needs nothing but itself, and its tables and figures as files."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from driftgate.files import write_text
from driftgate.lab import figures
from driftgate.lab.bench import standings
from driftgate.lab.bench.comparable import shown, stream_facts
from driftgate.lab.bench.names import OWN_METHOD, method_color, method_name
from driftgate.lab.bench.published import published_document, published_suite
from driftgate.lab.bench.results import Results, read_results
from driftgate.lab.bench.studies import STUDIES
from driftgate.lab.bench.table_writers import file_name, write_tables
from driftgate.lab.bench.tables import Table, by_method, pairs_of, shifts_of, study_table, study_title, suite_tables
from driftgate.lab.figures.style import color_variables, describe, save_figure, to_svg
from driftgate.lab.report import details
from driftgate.lab.report.details import WORDS
from driftgate.metrics import DEFINITIONS
from driftgate.stream import versions
from driftgate.types import DriftgateError

PAGE = "report.html"
FIGURE_KINDS = ("pdf", "svg", "png")


class Drawing(NamedTuple):
    """A figure of the page: its name, itself, and what is said below it."""

    name: str
    figure: Figure
    caption: str = ""


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


class Setting(NamedTuple):
    """A set of settings, of so many runs of a method."""

    method: str
    runs: int
    facts: dict[str, str]


class SuitePart(NamedTuple):
    """Everything the page shows of one suite."""

    suite: Results
    anchor: str
    facts: dict[str, int]
    sections: list[Section]
    settings: list[Setting]
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
    out = Path(out)
    parts = [suite_part(suite, f"s{place}") for place, suite in enumerate(read_results(folders), start=1)]
    write_text(out / PAGE, render(parts))
    files = []
    for section in (section for part in parts for section in part.sections):
        files += write_tables([*section.tables, *section.closed, *section.files], out / "tables")
        for drawing in section.drawings if figure_kind else ():
            files.append(out / "figures" / f"{drawing.name}.{figure_kind}")
            files[-1].parent.mkdir(exist_ok=True)
            save_figure(drawing.figure, files[-1])
    suites = {part.suite.name: _suite_facts(part.suite) for part in parts}
    return Report(out / PAGE, files, {"page": str(out / PAGE), "files": list(map(str, files)), "suites": suites})


def suite_part(suite: Results, anchor: str) -> SuitePart:
    """Compute everything the page shows of a suite."""
    runs, frame = suite.main, suite.frame
    everything = (
        [_results(suite), _comparison(suite), _costs(suite), _stream(suite), _classes(suite)] if len(runs) else []
    )
    models = details.model_table(suite)
    everything += [_studies(suite), _shares(suite)]
    everything.append(Section("runs", "Runs", closed=[details.run_table(suite), *([models] if models else [])]))
    sections = [s for s in everything if s.tables or s.closed or s.drawings or s.files]
    names = sorted({name for row in frame.versions for name in row})
    counts = {"runs": len(frame), "methods": len(by_method(runs)), "pairs": len(pairs_of(frame))}
    counts |= {"shifts": len(shifts_of(frame)), "seeds": int(frame.seed.nunique()), "failures": len(suite.failures)}
    used = {n: ", ".join(dict.fromkeys(str(row[n]) for row in frame.versions if n in row)) for n in names}
    return SuitePart(suite, anchor, counts, sections, _settings(frame), used)


def _results(suite: Results) -> Section:
    tables = suite_tables(suite)
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    words = [WORDS["results"], *notes, WORDS["intervals"][_units(suite.main)]]
    if any(table.below is not None for table in tables):
        words += [WORDS["paper"], standings.against_paper(suite)]
    further = [details.standings_table(suite), *tables, details.metrics_table(suite), details.ranks_table(suite)]
    return Section("tables", "Results", tables=[table for table in further if table], outro=" ".join(words))


def _comparison(suite: Results) -> Section:
    runs = suite.main
    table = standings.standings(runs)
    ranked = list(table.index[table.ranked])
    references = dict.fromkeys([*ranked[:1], *([OWN_METHOD] if OWN_METHOD in ranked else [])])
    tables = [details.comparison_table(suite, reference) for reference in references if len(ranked) > 1]
    intro = f"{WORDS['comparison']} {WORDS['units'][_units(runs)]} {WORDS['tests']}"
    return Section("pairs", "Paired comparison", intro, tables=[table for table in tables if table])


def _units(runs: pd.DataFrame) -> str:
    """What seeds there are: one, several that share a source model, several with their own."""
    return "one" if runs.seed.nunique() == 1 else "shared" if standings.seeds_share_a_model(runs) else "own"


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
    for place, (_, chosen) in enumerate(runs.groupby(["source", "target", "shift"], sort=False)):
        if figures.curves_in(chosen):
            drawings.append(Drawing(f"{name}-curve{place}", figures.curves(chosen)))
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
    large = [table for table in tables if len(table.text) > details.MOST_CLASSES]
    small = [table for table in tables if len(table.text) <= details.MOST_CLASSES]
    intro = WORDS["classes"] + (" There are too many for this page: see the tables beside it." if large else "")
    return Section("classes", "Classes", intro, closed=small, files=large)


def _studies(suite: Results) -> Section:
    drawings, tables, ours = [], [], set(suite.main.digest.dropna())
    for study, runs in suite.studies.items():
        same = runs[runs.digest.isin(ours)].variant  # the variant that is the main table's own run
        figure = figures.study(runs, study_title(study), None if same.empty else same.iloc[0])
        found = STUDIES[study].paper if study in STUDIES else None
        paper = f"The paper, on VisDA-C OPDA: {found}" if found else "The paper has no figure of this."
        drawings.append(Drawing(f"{file_name(suite.name)}-{file_name(study)}", figure, f"{WORDS['study']} {paper}"))
        tables.append(study_table(suite, study))
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return Section("studies", "Ablations", "", drawings, tables, outro=" ".join(notes))


def _shares(suite: Results) -> Section:
    swept, name = suite.swept, file_name(suite.name)
    drawings, tables = [], []
    for shift in shifts_of(swept):
        runs = swept[swept["shift"] == shift]
        points = details.share_points(runs)
        for value in ("score", "rejected") if len({share for share in points.share if not share.changes}) > 1 else ():
            figure = figures.shares(points, value)
            drawings.append(Drawing(f"{name}-share-{value}-{shift}", figure, WORDS[f"share {value}"]))
        for share in dict.fromkeys(share for share in points.share if share.changes):
            chosen = runs[runs.unknown_share == str(share)]
            title = f"{shift}, share from {100 * share.start:g} to {100 * share.end:g} %"
            stem = f"{name}-{file_name(f'{share}')}-{shift}"
            if chosen.tenths.map(lambda scores: any(map(math.isfinite, scores))).any():
                drawings.append(Drawing(f"{stem}-tenths", figures.tenths(chosen, f"{title}: score"), WORDS["tenths"]))
            if figures.curves_in(chosen, "rejected_share"):
                figure = figures.curves(chosen, "rejected_share", f"{title}: rejected")
                drawings.append(Drawing(f"{stem}-along", figure, WORDS["along"]))
        tables.append(details.share_table(suite, points))
    return Section("shares", "Share of unknown samples", WORDS["shares"], drawings, tables)


def _settings(runs: pd.DataFrame) -> list[Setting]:
    """Every set of settings once: all a run depends on but its pair, shift, seed and source model."""
    counts: dict[tuple[str, str], int] = {}
    for method, group in by_method(runs).items():
        for run in group.itertuples():
            more = {"preset": run.protocol.preset, "unknown share": run.unknown_share}
            setup = {
                **dict(sorted(run.settings.items())),
                **stream_facts(run),
                **{name: value for name, value in more.items() if value is not None},
                "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
            }
            key = method, json.dumps({name: shown(value) for name, value in setup.items()})
            counts[key] = counts.get(key, 0) + 1
    return [Setting(method, count, json.loads(text)) for (method, text), count in counts.items()]


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
        "blocks": lambda heads: [(name, len(list(some))) for name, some in groupby(heads, key=lambda head: head[0])],
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


def _suite_facts(suite: Results) -> dict[str, Any]:
    table, ground = standings.standings(suite.main), standings.common_ground(suite.main)
    best = table.index[table.ranked][:1]
    return {
        "runs": len(suite.frame),
        "failures": [failure.id for failure in suite.failures],
        "warnings": suite.warnings,
        "left_out": sorted(suite.frame.id[~suite.frame.kept]),
        "means": json.loads(table[["mean", "std", "n", "missing", "ranked", "rank"]].to_json(orient="index")),
        "comparisons": {m: json.loads(standings.comparisons(ground, m).to_json(orient="index")) for m in best},
        "published": published_suite(suite.name) is not None,
    }
