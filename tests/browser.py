# SPDX-License-Identifier: BSD-3-Clause
"""A browser without a window and without a network, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def violations(page: Any, **options: Any) -> list[tuple[str, str, list[str]]]:
    """What axe-core has to complain of: rule, weight, the elements."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [(each["id"], each["impact"], [node["html"][:200] for node in each["nodes"]]) for each in found]
