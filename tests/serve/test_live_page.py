"""The live page in a real browser: numbers move, an alarm shows, a way back works, unknowns can be named.

Skipped where there is no Chromium.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect, sync_playwright
from servesupport import running, samples

from driftgate.guard import GuardSettings
from driftgate.serve.engine import EngineSettings
from driftgate.serve.service import Service

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

PHONE, DESK = 360, 1280
GUARD = GuardSettings(warmup=2, past=20, lag=2, look_samples=16, snapshot_every=5)


class Player:
    """Feeds a service batch after batch until it is told to stop; ``trouble`` turns them all into black frames."""

    def __init__(self, service: Service) -> None:
        self.service, self.trouble = service, False
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.play, daemon=True)
        self.thread.start()

    def play(self) -> None:
        seed = 0
        while not self.stop.wait(0.05):
            seed += 1
            batch = samples(16, seed)
            self.service.engine.submit(torch.zeros_like(batch) if self.trouble else batch).result(timeout=60)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Player]]:
    settings: dict[str, Any] = {"engine": EngineSettings(max_delay=0.0), "guard": GUARD}
    with running(tmp_path_factory.mktemp("state"), **settings) as (service, client):
        player = Player(service)
        yield str(client.base_url), player
        player.stop.set()
        player.thread.join()


def opened(browser: Browser, url: str, width: int, scheme: Any = "light") -> tuple[Page, list[str]]:
    page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(url)
    expect(page.locator("#mode")).to_have_text("learning", timeout=30_000)
    return page, errors


@pytest.mark.parametrize("width", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_move_and_nothing_sticks_out(
    browser: Browser, played: tuple[str, Player], width: int, scheme: str
) -> None:
    page, errors = opened(browser, played[0], width, scheme)
    before = page.locator("#facts").inner_text()
    expect(page.locator("#facts")).not_to_have_text(before, timeout=10_000)
    expect(page.locator("#share")).to_contain_text("%", timeout=10_000)
    for chart in ("#share-chart", "#novelty-chart", "#time-chart"):
        # In one look, for the drawing is replaced several times a second.
        size = f"document.querySelector('{chart} svg')?.getBoundingClientRect()"
        page.wait_for_function(f"Math.min({size}?.width, {size}?.height) > 100", timeout=10_000)
    assert page.locator("#classes li").count() == 4
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in paper[4:-1].split(",")) < 200) == (scheme == "dark")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    assert errors == []
    page.context.close()


def test_all_of_it_can_be_done_by_keyboard(browser: Browser, played: tuple[str, Player]) -> None:
    page, errors = opened(browser, played[0], DESK)
    page.locator("#freeze").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#mode")).to_have_text("not learning", timeout=10_000)
    page.keyboard.press("Enter")
    expect(page.locator("#mode")).to_have_text("learning", timeout=10_000)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the snapshot
    button = page.get_by_role("button", name="Go back to snapshot").first
    expect(button).to_be_visible(timeout=10_000)
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#question")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#question")).to_be_hidden()
    assert errors == []
    page.context.close()


def test_unknowns_get_a_name_that_is_never_markup(browser: Browser, played: tuple[str, Player]) -> None:
    page, errors = opened(browser, played[0], DESK)
    gallery = played[1].service.gallery
    assert gallery is not None
    expect(page.locator("#groups img").first).to_be_visible(timeout=20_000)
    field = page.locator(".group input").first
    expect(field).to_be_visible(timeout=20_000)
    field.fill("<img src=x onerror=alert(1)>")
    field.press("Enter")
    expect(page.locator(".group p").first).to_contain_text("<img src=x", timeout=20_000)
    with page.expect_download() as download:
        page.locator("#download").click()
    assert download.value.suggested_filename == "unknowns.zip"
    assert errors == []
    page.context.close()


def test_an_alarm_shows_and_a_way_back_works(browser: Browser, played: tuple[str, Player]) -> None:
    url, player = played
    page, errors = opened(browser, url, PHONE)
    deadline = time.monotonic() + 60
    while player.service.engine.health.look < 40 and time.monotonic() < deadline:
        time.sleep(0.1)
    player.trouble = True
    expect(page.locator("#mode")).to_have_text("stopped by an alarm", timeout=60_000)
    expect(page.locator("#banner")).to_contain_text("Alarm")
    expect(page.locator("#events .alarm").first).to_be_visible()
    player.trouble = False
    version = player.service.engine.version
    page.get_by_role("button", name="Go back to snapshot 0").click()
    page.get_by_role("button", name="Go back", exact=True).last.click()
    expect(page.locator("#events .rollback").first).to_contain_text("asked for on the page", timeout=10_000)
    assert player.service.engine.version.partition(".")[0] > version.partition(".")[0]
    # From there it learns again by itself, slowly at first, once the stream is calm.
    expect(page.locator("#mode")).to_have_text(re.compile("^learning"), timeout=30_000)
    assert errors == []
    page.context.close()


def test_with_a_key_the_page_asks_for_it(browser: Browser, tmp_path: Path) -> None:
    key = "0123456789abcdef0123"
    with running(tmp_path, keys=(key.encode(),)) as (_, client):
        page = browser.new_context().new_page()
        page.goto(str(client.base_url))
        expect(page.locator("#key")).to_be_visible(timeout=10_000)
        page.locator("#key").fill(key)
        page.keyboard.press("Enter")
        expect(page.locator("#mode")).to_have_text("learning", timeout=10_000)
        page.context.close()
