"""The report in a real browser without a window: tables sort, the theme turns, a phone needs no sideways scrolling.

Skipped where there is no Chromium. A browser started from a command line can only print the document at the end, and
its window cannot be as narrow as a phone: so the page stands in a frame, and tells the page around it what it sees.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import decay_study, sweep, write_runs

from driftgate.lab.report.page import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

PHONE, DESK = 360, 1280

LOOK = """
<script>
window.addEventListener("load", () => {
  const errors = window.driftgateErrors;
  const table = document.querySelector("table.sortable");
  const heads = [...table.tHead.rows].at(-1).cells;
  const place = [...heads].findIndex((head) => head.dataset.kind !== "text");
  const column = () => [...table.tBodies[0].rows].map((row) => row.cells[place].dataset.value ?? "");
  const focused = (element) => { element.focus(); return document.activeElement === element; };
  const button = heads[place].querySelector("button");
  const seen = { focusable: focused(button) };
  button.click();
  seen.falling = column();
  seen.order = heads[place].getAttribute("aria-sort");
  button.click();
  seen.rising = column();
  const before = getComputedStyle(document.body).backgroundColor;
  document.getElementById("theme").click();
  seen.colours = [before, getComputedStyle(document.body).backgroundColor];
  for (const part of document.querySelectorAll("details")) part.open = true;
  seen.width = [document.documentElement.scrollWidth, window.innerWidth];
  const charts = [...document.querySelectorAll(".chart svg")];
  seen.charts = charts.length > 0 && charts.every((chart) => chart.getBoundingClientRect().width > 100);
  seen.errors = errors;
  window.parent.postMessage(JSON.stringify(seen), "*");
});
</script>
"""

AROUND = """<!doctype html><title></title>
<script>window.addEventListener("message", (event) => { document.title = event.data; });</script>
<iframe src="looking.html" style="width: WIDTHpx; height: 800px; border: 0"></iframe>
"""

LISTEN = """<script>
window.driftgateErrors = [];
window.addEventListener("error", (event) => window.driftgateErrors.push(event.message));
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_runs(tmp_path_factory.mktemp("runs"), sweep() + decay_study(), failures=1)
    written = write_report([folder], folder / "report").page
    text = written.read_text(encoding="utf-8")
    looking = written.with_name("looking.html")
    looking.write_text(text.replace("<head>", f"<head>{LISTEN}").replace("</body>", f"{LOOK}</body>"), encoding="utf-8")
    return looking


def looked_at(page: Path, width: int, profile: Path) -> dict[str, Any]:
    """What the page saw of itself on a screen of that width."""
    assert BROWSER is not None
    around = page.with_name(f"around-{width}.html")
    around.write_text(AROUND.replace("WIDTH", str(width)), encoding="utf-8")
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--window-size=1400,900", "--virtual-time-budget=5000", "--dump-dom", around.as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None
    seen: dict[str, Any] = json.loads(unescape(title.group(1)))
    return seen


@pytest.mark.parametrize("width", [PHONE, DESK], ids=["phone", "desk"])
def test_the_page_works(page: Path, width: int, tmp_path: Path) -> None:
    seen = looked_at(page, width, tmp_path / "profile")
    assert seen["errors"] == []
    assert seen["focusable"] and seen["order"] == "descending"
    falling = [float(value) for value in seen["falling"] if value]
    assert len(falling) > 3 and falling == sorted(falling, reverse=True)
    assert [float(value) for value in seen["rising"] if value] == sorted(falling)
    assert seen["colours"][0] != seen["colours"][1]
    assert seen["charts"]
    inside, window = seen["width"]
    assert window == width
    assert inside <= width, "something sticks out on the right"
