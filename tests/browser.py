# SPDX-License-Identifier: BSD-3-Clause
"""A browser without a window and without a network, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def chromium() -> Iterator[Any]:
    """A running Chromium; without one the test fails, since nothing else looks at the pages."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program, f"no browser: none of {', '.join(NAMES)} is there (Debian: apt-get install chromium)"
    with sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def opened(browser: Any, path: Path, **options: Any) -> Iterator[Any]:
    """The page of a file, offline; `asked` are the addresses that it loaded, `said` what the console had."""
    context = browser.new_context(offline=True, **options)
    page = context.new_page()
    page.asked, page.said = [], []
    page.on("request", lambda asked: page.asked.append(asked.url))
    page.on("console", lambda said: page.said.append(f"{said.type}: {said.text}"))
    page.on("pageerror", lambda error: page.said.append(f"error: {error}"))
    page.goto(path.as_uri())
    yield page
    context.close()


class Violation(NamedTuple):
    """A rule of axe-core that an element of a page breaks."""

    rule: str
    impact: str  # minor, moderate, serious or critical
    element: str
    failure: str


def slide(page: Any, name: str, value: float) -> None:
    """Move a slider of a page: set its value and send the browser's event."""
    move = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }"
    page.locator(f"#{name}").evaluate(move, value)


def violations(page: Any, *, exclude: Sequence[str] = (), **options: Any) -> list[Violation]:
    """What axe-core has to complain of, outside of the elements that the selectors `exclude` name."""
    from axe_playwright_python.sync_playwright import Axe

    context = {"exclude": list(exclude)} if exclude else None
    found = Axe().run(page, context=context, options={"resultTypes": ["violations"], **options})
    return [
        Violation(rule["id"], rule["impact"], node["html"][:200], node["failureSummary"])
        for rule in found.response["violations"]
        for node in rule["nodes"]
    ]
