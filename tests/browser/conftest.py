"""A headless Chromium for the tests of the page, one a process, and pages written for it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit"))  # the sample run of the reports' tests

from devtools import Browser, Open, Page

from capmatrix import store
from capmatrix.report.page import render


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser; without one the test is skipped, but fails where CI is set."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        reason = "Chromium is not installed (apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}, and CI must have it")
        pytest.skip(reason)
    made = Browser(program, tmp_path_factory.mktemp("browser") / "profile", timeout=40)
    yield made
    made.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """``opened(run, ..., at="#hash", **of Browser.page)``: their page in a tab of its own, ready and without a problem.

    At the end nothing may have been thrown, refused by the policy or asked of a network.
    """
    tabs: list[Page] = []

    def open_page(*runs: store.Run, at: str = "", **how: object) -> Page:
        path = tmp_path / f"page{len(tabs)}.html"
        path.write_text(render.render([(f"run{i}", run) for i, run in enumerate(runs)]), encoding="utf-8")
        tab = browser.page(path.as_uri() + at, **how)  # type: ignore[arg-type]
        tabs.append(tab)
        tab.until("document.documentElement?.dataset.ready === 'true'")
        return tab

    yield open_page
    for tab in tabs:
        problems = tab.problems()
        tab.close()
        assert problems == []
