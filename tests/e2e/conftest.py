"""The browser of the tests that look at pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser import launched_browser

    with launched_browser() as launched:
        yield launched


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Any]:
    """The page that the module's own fixture `report` wrote."""
    from browser import opened_page

    with opened_page(browser, report) as page:
        yield page
