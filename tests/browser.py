"""A page in a real browser, and what is drawn in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from calibrant import Predictions
from calibrant.metrics import reliability_bins

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which `make browser` installs")
# Loaded where it is used only, as it takes a while.
sync_api = pytest.importorskip("playwright.sync_api") if CHROMIUM else None
# Loading a page on a busy machine may take long; nothing here waits that long unless it is broken.
PATIENCE_MS = 300_000


@contextmanager
def launched_browser() -> Iterator[Any]:
    """A browser without windows."""
    # It has a limit of its own, of five seconds.
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    with sync_api.sync_playwright() as playwright:
        # In containers the shared memory is often too small for a page.
        args = ["--no-sandbox", "--disable-dev-shm-usage"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=args, timeout=PATIENCE_MS)
        yield launched
        launched.close()


@contextmanager
def opened_page(browser: Any, file: Path) -> Iterator[Any]:
    """A page in a window of its own; at the end nothing may have been complained about or asked of the network."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.locator("html[data-ready=yes]").wait_for(state="attached")
    yield page
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {file.as_uri()}
    context.close()


def parts_without_numbers(page: Any) -> list[str]:
    """Drawn parts that a value went into which is no number."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("svg :not(image)")].filter((part) => {
            const texts = [part.textContent, ...[...part.attributes].map((each) => each.value)];
            return texts.some((text) => /NaN|undefined|Infinity/.test(text));
        }).map((part) => part.outerHTML)"""
    )
    return found


def drawn_accuracies(page: Any, chart: str) -> dict[int, float]:
    """What the heights of the bars say, by bin."""
    found = page.evaluate(
        """id => {
            const group = document.querySelector(`#${id} g.bars`);
            return [...group.querySelectorAll("rect.accuracy")].map((bar) =>
                [bar.dataset.bin, bar.getAttribute("height") / group.dataset.height]);
        }""",
        chart,
    )
    return {int(index): float(share) for index, share in found}


def expected_accuracies(predictions: Predictions, n_bins: int) -> dict[int, float]:
    """What they should say."""
    bins = reliability_bins(predictions.probs, predictions.labels, n_bins=n_bins)
    return {m: float(bins.accuracy[m]) for m in range(n_bins) if bins.count[m] > 0}


def percent(value: object) -> str:
    """As the page writes a share."""
    return f"{100 * float(str(value)):.2f}%"
