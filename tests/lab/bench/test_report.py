"""The report as a reader, a screen reader and a browser without network get it."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import METHODS, decay_study, novelty_study, record, sweep, write_runs
from typer.testing import CliRunner

from driftgate.lab.bench import palette
from driftgate.lab.bench.chart_layout import spread
from driftgate.lab.bench.charts import CostPoint, interval_ends, pareto
from driftgate.lab.bench.findings import comparisons, difference_words, p_words, sentences
from driftgate.lab.bench.records import read_results
from driftgate.lab.bench.report import bytes_text, seconds_text, suite_part, write_report
from driftgate.lab.bench.statistics import summarise
from driftgate.lab.bench.table_writers import EMPTY, MINUS
from driftgate.lab.bench.tables import suite_tables
from driftgate.lab.cli import app

VOID = {"meta", "br", "img", "input", "link", "path", "use", "rect"}


class Page(HTMLParser):
    """A strict reading of a page: every element is closed where it must be, every id is there once."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = sweep() + decay_study() + novelty_study(seeds=2)
    return write_runs(tmp_path_factory.mktemp("runs"), runs, failures=2)


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return write_report([folder], folder / "report").page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_needs_no_network(html: str, page: Page) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
    assert "@import" not in html and not re.search(r"url\((?!#)", html)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|import\(", html)


def test_ids_are_there_once_and_links_lead_somewhere(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("href", "xlink:href", "clip-path"):
            target = re.search(r"#([^)]+)", attributes.get(name) or "")
            assert target is None or target[1] in ids, target


def test_the_parts_are_there(page: Page) -> None:
    for heading in (
        "Summary",
        "Results",
        "Paired comparison",
        "Memory and time",
        "Ablations",
        "Running curves",
        "Runs, settings, versions",
        "Failures",
        "Metric definitions",
    ):
        assert heading in page.text
    assert "GMM leads with" in page.text
    assert f"{14 * 9 + 5 * 9 + 4 * 2} runs" in page.text
    assert "torch" in page.text and "2.13.0" in page.text and "what accuracy means" in page.text
    assert "Slightly better from 1 down to 0.99" in page.text  # what the paper says of the study


def test_what_comes_from_outside_is_text(html: str, page: Page) -> None:
    assert "out of <memory>" in page.text and "out of <memory>" not in html


def test_tables_can_be_sorted_and_scrolled_by_keyboard(html: str, page: Page) -> None:
    kinds = [attributes.get("data-kind") for attributes in page.all("th") if attributes.get("data-kind")]
    sortable = re.findall(r'<th scope="col"[^>]*><button type="button">', html)
    assert len(sortable) == len(kinds) > 30
    boxes = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(boxes) == len(page.all("table"))
    assert all(box["role"] == "region" and box["tabindex"] == "0" and box["aria-label"] for box in boxes)
    assert "aria-sort" in html and 'class="skip" href="#content"' in html and ":focus-visible" in html


def test_every_row_has_as_many_cells_as_its_header(html: str) -> None:
    for table in re.findall(r"<table.*?</table>", html, flags=re.DOTALL):
        width = table.split("</thead>")[0].count('<th scope="col"')
        body = table.split("<tbody>")[1]
        for row in re.findall(r"<tr.*?</tr>", body, flags=re.DOTALL):
            assert len(re.findall(r"<t[dh][ >]", row)) == width


def test_charts_speak_and_take_the_pages_colours(html: str, page: Page) -> None:
    charts = [attributes for attributes in page.all("div") if attributes.get("class") == "chart"]
    assert len(charts) == 3 + 3 + 2 + 1  # costs, curves, studies, samples used
    assert all(chart["role"] == "img" and len(chart["aria-label"] or "") > 40 for chart in charts)
    drawings = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    assert len(drawings) == len(charts)
    for drawing in drawings:
        assert not re.search(r"#[0-9a-f]{6}\b", drawing), "a colour that stays as it is in the dark"
        assert "var(--c-" in drawing and "<text" in drawing
    used = set(re.findall(r"var\(--c-([\w-]+)\)", html))
    assert used <= set(palette.variables())
    assert {attributes.get("data-method") for _, attributes in page.elements} >= set(METHODS)


def test_light_and_dark_have_every_colour(html: str) -> None:
    for name, (light, dark) in palette.variables().items():
        assert html.count(f"--c-{name}:{light};") == 2  # screen and print
        assert html.count(f"--c-{name}:{dark};") == 2  # the system's choice and the reader's


def test_colours_can_be_told_from_the_ground() -> None:
    grounds = palette.variables()["ground"]
    for name, pair in palette.variables().items():
        if name not in {"ground", "line", "faint"}:
            for color, ground in zip(pair, grounds, strict=True):
                assert contrast(color, ground) > 2.8, (name, color)
    for place in (0, 1):
        assert contrast(palette.variables()["soft"][place], grounds[place]) > 4.5


def contrast(first: str, second: str) -> float:
    """WCAG's ratio of luminances."""

    def luminance(color: str) -> float:
        parts = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_the_same_runs_give_the_same_page(folder: Path, html: str, tmp_path: Path) -> None:
    assert write_report([folder], tmp_path).page.read_text(encoding="utf-8") == html


def test_one_single_record(tmp_path: Path) -> None:
    page = Page(write_report([write_runs(tmp_path, [record()])], tmp_path / "out").page.read_text())
    assert "there is no other method to compare it with" in page.text
    assert "Paired comparison" not in page.text and "Score against" not in page.text


def test_partial_results(tmp_path: Path) -> None:
    runs = [run for place, run in enumerate(sweep()) if place % 5][:-11]
    report = write_report([write_runs(tmp_path, runs)], tmp_path / "out")
    page = Page(report.page.read_text())
    assert "Of the methods that can be ranked COMET-P leads" in page.text
    assert re.search(r"Not ranked, because cells or common seeds are missing: [^.]*GMM", page.text)


def told(folder: Path, runs: list[dict[str, Any]]) -> str:
    """The summary of some runs."""
    (suite,) = read_results([write_runs(folder, runs)])
    return " ".join(sentences(suite))


def test_where_all_lack_cells_nobody_leads(tmp_path: Path) -> None:
    text = told(tmp_path, [record("gmm", "PDA", score=90.0), record("glc", "ODA", score=20.0)])
    assert "Every method still lacks cells" in text and "leads" not in text


def test_methods_are_ranked_by_the_seeds_they_share(tmp_path: Path) -> None:
    """Over its three seeds gmm has 50 %, but under the only seed of glc it has 70 %."""
    runs = [record("gmm", seed=seed, score=score) for seed, score in enumerate((70.0, 40.0, 40.0))]
    text = told(tmp_path, [*runs, record("glc", score=60.0)])
    assert "GMM leads with 70.0 % under OPDA (1 pair, 1 seed that all have)" in text
    assert "Next is GLC with 60.0 %: GMM is 10.0 points higher in the one run both have" in text


def test_equal_methods_are_called_equal(tmp_path: Path) -> None:
    runs = [record(method, shift, score=0.0) for method in ("source-only", "glc", "gmm") for shift in ("PDA", "ODA")]
    text = told(tmp_path / "all", runs)
    assert "Source-only, GLC and GMM are equal with 0.0 % on average" in text
    assert "lead" not in text and "number" not in text and "Against" not in text
    runs = [record(name, score=score) for name, score in (("gmm", 50.0), ("glc", 50.0), ("source-only", 50.0 - 9.0))]
    text = told(tmp_path / "two", runs)
    assert "GLC and GMM lead together with 50.0 %" in text and "Next is Source-only with 41.0 %" in text
    runs = [record(name, seed=seed, score=50.0) for name in ("gmm", "glc") for seed in (0, 1)]
    (suite,) = read_results([write_runs(tmp_path / "row", runs)])
    assert difference_words(comparisons(suite.main, "gmm")[0], "GMM") == "GMM is equal in 2 runs."


def test_seeds_of_one_source_model_are_one_unit(tmp_path: Path) -> None:
    """Six runs, but two streams on one model each: more seeds do not make the evidence three times as strong."""
    scores = {"gmm": {"PDA": (60, 61, 62), "ODA": (70, 72, 74)}, "glc": {"PDA": (50, 51, 52), "ODA": (66, 66, 66)}}

    def runs(model: str) -> list[dict[str, Any]]:
        return [
            record(method, shift, seed, score=score, protocol={"model_id": model.format(shift=shift, seed=seed)})
            for method, shifts in scores.items()
            for shift, values in shifts.items()
            for seed, score in enumerate(values)
        ]

    (suite,) = read_results([write_runs(tmp_path / "one", runs("rendered-{shift}-1c7557f4"))])
    (row,) = comparisons(suite.main, "gmm")
    assert row.averaged and (row.comparison.difference.n, row.comparison.difference.mean) == (2, pytest.approx(8.0))
    assert "over 2 paired means over seeds" in " ".join(sentences(suite))
    (suite,) = read_results([write_runs(tmp_path / "each", runs("rendered-{shift}-seed{seed}-{seed}c7557f4"))])
    (row,) = comparisons(suite.main, "gmm")
    assert not row.averaged and row.comparison.difference.n == 6


def test_only_seeds_that_both_have_are_averaged(tmp_path: Path) -> None:
    model = {"model_id": "rendered-OPDA-1c7557f4"}
    runs = [record("gmm", seed=seed, score=score, protocol=model) for seed, score in enumerate((70.0, 10.0))]
    (suite,) = read_results([write_runs(tmp_path, [*runs, record("glc", score=60.0, protocol=model)])])
    assert comparisons(suite.main, "gmm")[0].comparison.difference.mean == pytest.approx(10.0)


def test_words_and_table_have_the_same_p_value(tmp_path: Path) -> None:
    scores = {"gmm": (60, 61, 62), "glc": (58, 58, 60), "lead": (20, 50, 50)}
    runs = [record(name, seed=seed, score=score) for name, row in scores.items() for seed, score in enumerate(row)]
    (suite,) = read_results([write_runs(tmp_path, runs)])
    row = next(row for row in comparisons(suite.main, "gmm") if row.method == "glc")
    assert row.t_p_adjusted is not None and row.comparison.t_p is not None
    assert row.t_p_adjusted > row.comparison.t_p
    assert f"Holm's correction {p_words(row.t_p_adjusted)}" in sentences(suite)[1]


def test_only_failures(tmp_path: Path) -> None:
    page = Page(write_report([write_runs(tmp_path, [], failures=2)], tmp_path / "out").page.read_text())
    assert "2 runs failed" in page.text


def test_only_a_study(tmp_path: Path) -> None:
    page = Page(write_report([write_runs(tmp_path, decay_study(seeds=1))], tmp_path / "out").page.read_text())
    assert "Ablations" in page.text and "Results" not in page.text


def test_records_with_gaps(tmp_path: Path) -> None:
    """Of an older or a newer version: no series, no costs, no versions, no score."""
    bare = record("gmm")
    for key in ("series", "seconds", "state_bytes", "peak_memory_bytes", "versions", "definitions", "halves", "model"):
        del bare[key]
    scoreless = record("glc")
    scoreless["metrics"]["h_score"] = None
    scoreless["series"]["running_score"] = [None] * 40
    page = Page(write_report([write_runs(tmp_path, [bare, scoreless])], tmp_path / "out").page.read_text())
    assert "GMM reaches" in page.text


def test_the_default_of_a_study_is_marked(folder: Path) -> None:
    (suite,) = read_results([folder])
    study = next(study for study in suite_part(suite, "s1").studies if study.name == "decay")
    assert "Grey: the setting of the main table" in study.chart.caption


def test_sentences_do_not_claim_what_chance_explains(tmp_path: Path) -> None:
    noise = {"gmm": (60, 52, 58), "glc": (55, 57, 57)}
    runs = [record(method, seed=seed, score=value) for method, row in noise.items() for seed, value in enumerate(row)]
    (suite,) = read_results([write_runs(tmp_path, runs)])
    assert any("cannot be told apart" in sentence for sentence in sentences(suite))


def test_a_leader_with_source_statistics_is_told(tmp_path: Path) -> None:
    runs = [record("comet-p", score=70), record("gmm", score=60), record("source-only", score=40)]
    (suite,) = read_results([write_runs(tmp_path, runs)])
    text = " ".join(sentences(suite))
    assert "COMET-P leads with 70.0 %" in text and "of the methods that do neither, GMM leads with 60.0 %" in text
    assert "GMM is number 2 of 3" in text


def test_what_differs_from_the_papers_setting_is_told(tmp_path: Path) -> None:
    run = record("gmm", "OPDA", suite="visda", source="train", target="validation", score=50.0)
    run["protocol"]["limit_batches"] = 2
    info = {"name": "visda", "title": "VisDA-C", "data": "visda"}
    (suite,) = read_results([write_runs(tmp_path, [run], suite=info)])
    text = sentences(suite)[-1]
    assert f"{MINUS}10.3 points on average" in text
    assert "The paper used ResNet-50, these runs cnn." in text and "only the beginning" in text and "1 seed" in text
    assert "The paper's pictures have 224 x 224 pixels, these 28 x 28." in text


def test_comparisons_are_corrected_for_their_number(folder: Path) -> None:
    (suite,) = read_results([folder])
    rows = comparisons(suite.main, "gmm")
    assert len(rows) == 13 and all(row.comparison.difference.n == 9 for row in rows)
    assert all((row.t_p_adjusted or 0) >= (row.comparison.t_p or 0) for row in rows)


def test_pareto() -> None:
    points = [
        CostPoint(name, cost, summarise([score]), True)
        for name, cost, score in (("a", 0, 50), ("b", 9, 40), ("c", 9, 60), ("d", 20, 60))
    ]
    assert [point.method for point in pareto(points)] == ["a", "c"]


def test_labels_keep_their_distance_and_order() -> None:
    placed = spread([50.0, 50.1, 99.0, 50.2], 5.0, 0.0, 100.0)
    order = sorted(placed)
    assert all(above - below > 4.5 for below, above in pairwise(order))
    assert placed[0] < placed[1] < placed[3] < placed[2] <= 100.0
    assert spread([], 5.0, 0.0, 100.0) == []


def test_units() -> None:
    assert [bytes_text(value) for value in (0, 512, 1024, 77_184, 2**30)] == [
        "0",
        "512 B",
        "1 KiB",
        "75.4 KiB",
        "1 GiB",
    ]
    assert [seconds_text(value) for value in (0.0204, 1.5)] == ["20.4 ms", "1.5 s"]


def test_comparisons_and_costs_are_written_too(folder: Path, tmp_path: Path) -> None:
    write_report([folder], tmp_path)
    (suite,) = read_results([folder])
    lines = list(csv.DictReader((tmp_path / "tables" / "digits-comparisons.csv").open()))
    row = comparisons(suite.main, "gmm")[0]
    assert len(lines) == 13 and lines[0]["method"] == row.method
    assert float(lines[0]["difference"]) == row.comparison.difference.mean
    assert float(lines[0]["t_p_holm"]) == row.t_p_adjusted
    costs = list(csv.DictReader((tmp_path / "tables" / "digits-costs.csv").open()))
    assert [line["method"] for line in costs] == list(METHODS) and float(costs[-1]["state_bytes"]) == 75_000
    for name in ("comparisons", "costs"):
        markdown = (tmp_path / "tables" / f"digits-{name}.md").read_text().splitlines()
        assert len({line.count("|") for line in markdown[2:]}) == 1 and any("GMM" in line for line in markdown)
        latex = (tmp_path / "tables" / f"digits-{name}.tex").read_text()
        assert len({line.count(" & ") for line in latex.splitlines() if line.endswith(r"\\")}) == 1
        assert latex.count("{") == latex.count("}") and not {"±", "<", MINUS, EMPTY} & set(latex.replace("$<$", ""))


def test_intervals_need_no_pointer(folder: Path, page: Page) -> None:
    (suite,) = read_results([folder])
    summary = suite_tables(suite)[0].rows[0].cells[0].summary
    assert summary is not None and f"{summary.low:.1f} to {summary.high:.1f}" in page.text
    assert not any("interval" in (attributes.get("title") or "") for attributes in page.all("td"))


def test_every_run_tells_what_it_was(tmp_path: Path) -> None:
    protocol = {"model_id": "rendered-OPDA-1c7557f4", "limit_batches": 7, "drop_last": True, "preset": "paper"}
    write_runs(tmp_path, [record(protocol=protocol), record(seed=1, tag="zzz", protocol={"limit_batches": 9})])
    facts = {"held_out_accuracy": 0.9, "backbone": "cnn", "training": {"epochs": 12}, "per_class": 40}
    (tmp_path / "models" / "rendered-OPDA-1c7557f4.json").write_text(json.dumps(facts))
    page = Page(write_report([tmp_path], tmp_path / "out").page.read_text())
    for words in (
        "rendered-OPDA-1c7557f4",
        "networkcnn",
        "input size28x28",
        "limit of batches7",
        "drop_lasttrue",
        "presetpaper",
        "versionspython 3.11.2, driftgate 0.1.0, torch 2.13.0",
        "epochs 12, images of a class 40",
        "left out",
    ):
        assert words in page.text, words


# The command


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_command_writes_page_and_tables(tmp_path: Path) -> None:
    write_runs(tmp_path / "a", sweep(("gmm", "glc"), seeds=2))
    office = {"name": "office-home", "title": "Office-Home", "data": "office-home"}
    where = {"suite": "office-home", "source": "art", "target": "clipart+product"}
    write_runs(tmp_path / "b", sweep(("gmm", "glc"), seeds=1, **where), suite=office)
    result = run("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert set(facts["suites"]) == {"digits", "office-home"}
    assert facts["suites"]["digits"]["means"]["gmm"]["missing"] == 0
    names = {path.name for path in (tmp_path / "out" / "tables").iterdir()}
    assert names == {
        f"{suite}{part}.{kind}"
        for suite in ("digits", "office-home")
        for part in ("", "-comparisons", "-costs")
        for kind in ("csv", "md", "tex")
    }
    assert "Office-Home" in Page((tmp_path / "out" / "report.html").read_text()).text


def test_command_without_out_writes_into_the_folder(tmp_path: Path) -> None:
    write_runs(tmp_path, [record()])
    result = run("report", tmp_path)
    assert result.exit_code == 0 and "GMM reaches" in result.stdout
    assert (tmp_path / "report" / "report.html").exists()


def test_command_names_a_folder_that_is_not_there(tmp_path: Path) -> None:
    result = run("report", tmp_path / "nothing")
    assert result.exit_code == 2 and "there is no such folder" in result.stderr
    assert not (tmp_path / "nothing").exists()


def test_axes_reach_as_far_as_the_intervals() -> None:
    wide, single = summarise([20.0, 50.0, 90.0]), summarise([40.0])
    assert interval_ends(wide) == (0.0, 100.0) and interval_ends(single) == (40.0, 40.0)
    low, high = interval_ends(summarise([50.0, 52.0, 54.0]))
    assert 45.0 < low < 50.0 and 54.0 < high < 59.0


def test_peaks_of_the_old_kind_are_not_shown(tmp_path: Path) -> None:
    """In format 1 it was the peak of the whole process, with whatever earlier runs had left."""
    old, new = {**record("gmm", seed=0), "format": 1}, record("gmm", seed=1)
    facts = write_report([write_runs(tmp_path / "runs", [old, new])], tmp_path / "out").facts
    (cost,) = csv.DictReader((tmp_path / "out" / "tables" / "digits-costs.csv").read_text().splitlines())
    assert facts["suites"] and float(cost["peak_memory_bytes"]) == new["peak_memory_bytes"]
