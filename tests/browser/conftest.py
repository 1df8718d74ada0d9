"""A real browser for the page: Debian's chromium, driven by playwright. Without them the tests are skipped, loudly."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
MISSING = "NO BROWSER: the live page is not tested; `apt-get install -y chromium` and the extra `dev` bring one"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield the browser."""
    if CHROMIUM is None:
        pytest.skip(MISSING)
    playwright = pytest.importorskip("playwright.sync_api", reason=MISSING)
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *QUIET])
        yield found
        found.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly that nothing was tested."""
    if CHROMIUM is None:
        terminalreporter.write_line(MISSING, red=True, bold=True)
