"""Pictures of the live page for docs/serve.md: starts the demo, waits for an alarm, looks at it with Chromium.

    python benchmarks/serve_page.py [STATE]

Needs the extras `lab`, `serve` and `dev`, and a Chromium. Takes some two minutes, and the source training once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

DOCS = Path(__file__).parents[1] / "docs"
URL = "http://127.0.0.1:8765"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def look(browser: Browser, width: int, height: int, scheme: str) -> Image.Image:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(URL)
    page.wait_for_selector("#groups img", timeout=60_000)
    page.wait_for_timeout(2000)
    picture = Image.open(BytesIO(page.screenshot(full_page=True))).convert("RGB")
    context.close()
    return picture


def save(picture: Image.Image, name: str) -> None:
    picture.quantize(128, dither=Image.Dither.NONE).save(DOCS / f"serve-{name}.png", optimize=True)


def side_by_side(pictures: list[Image.Image], gap: int = 16) -> Image.Image:
    height = max(picture.height for picture in pictures)
    sheet = Image.new("RGB", (sum(picture.width + gap for picture in pictures) - gap, height), "white")
    left = 0
    for picture in pictures:
        sheet.paste(picture, (left, 0))
        left += picture.width + gap
    return sheet


def wait_for(mode: str, batches: int = 0) -> None:
    for _ in range(9000):
        try:
            state = httpx.get(f"{URL}/v1/state").json()
        except httpx.TransportError:
            state = {"mode": "", "totals": {"batches": 0}}
        if state["mode"] == mode and state["totals"]["batches"] >= batches:
            return
        time.sleep(0.1)
    raise SystemExit(f"waited too long for {mode}")


def main() -> None:
    state = sys.argv[1] if len(sys.argv) > 1 else "runs/serve-demo"
    command = [sys.executable, "-m", "driftgate", "serve", "--demo", "--port", "8765", "--state", state]
    service = subprocess.Popen(command)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            wait_for("learning", batches=70)
            save(look(browser, 1280, 800, "light"), "light")
            phones = [look(browser, 360, 740, "light").crop((0, 0, 360, 1500))]
            wait_for("stopped")
            save(look(browser, 1280, 800, "dark"), "dark")
            alarm = look(browser, 360, 740, "dark")
            phones += [alarm.crop((0, 0, 360, 1500)), alarm.crop((0, 1500, 360, 3000))]
            save(side_by_side(phones), "phone")
            browser.close()
    finally:
        service.terminate()
        service.wait(timeout=60)


if __name__ == "__main__":
    main()
