# SPDX-License-Identifier: BSD-3-Clause
"""The page of a report in a real browser: its figures move, its keys work, its files are what it shows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attnscale as at
import numpy as np
import pytest
from attnscale._report.curves import interpolate
from browser import chromium, opened, violations

pytestmark = [pytest.mark.maintainer, pytest.mark.slow]

SIZES = ({"width": 1280, "height": 900}, {"width": 800, "height": 900}, {"width": 400, "height": 900})


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def minilm() -> at.Report:
    data = at.datasets.minilm_qk()
    places = zip(data.layers.tolist(), data.heads.tolist(), strict=True)
    about = {"model": "MiniLM <b>& others</b>", "text": "</script><script>alert(1)</script>"}
    return at.report(data.query, data.key, lengths=[64, 256], labels=places, about=about, laws=["log_n"])


@pytest.fixture(scope="module")
def causal() -> at.Report:
    data = at.datasets.causal_qk()
    places = zip(data.layers.tolist(), data.heads.tolist(), strict=True)
    options: dict[str, Any] = {"lengths": [128, 1024], "laws": ["log_n"], "is_causal": True}
    return at.report(data.query, data.key, labels=places, **options)


@pytest.fixture(scope="module")
def folder(minilm: at.Report, causal: at.Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of both models, and of one before and after its scale was changed."""
    folder = tmp_path_factory.mktemp("pages")
    minilm.save(folder / "minilm.html")
    causal.save(folder / "causal.html")
    data = at.datasets.minilm_qk()
    places = list(zip(minilm.layers.tolist(), minilm.heads.tolist(), strict=True))
    q = (1.5 * data.query.astype(np.float32)).astype(np.float32)
    sharper = at.report(q, data.key, lengths=[64, 256], labels=places, laws=["log_n"])
    minilm.beside(sharper, ("as it is", "sharper")).save(folder / "pair.html")
    return folder


def slide(page: Any, name: str, value: float) -> None:
    """Move a slider as a hand does: the value, and the event of the browser."""
    page.locator(f"#{name}").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", value
    )


def entropies(page: Any) -> list[float]:
    """The column of the table of all heads."""
    cells = page.locator("#table-scroll tbody tr td:nth-child(3)").all_inner_texts()
    return [float(text.replace("\u2212", "-")) for text in cells]


def download(page: Any, button: Any) -> str:
    with page.expect_download() as waiting:
        button.click()
    return Path(waiting.value.path()).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["minilm", "causal", "pair"])
def test_a_page_needs_no_network_and_the_console_is_empty(browser: Any, folder: Path, name: str) -> None:
    with opened(browser, folder / f"{name}.html") as page:
        slide(page, "length", 0)
        slide(page, "multiple", 1)
        page.locator("#colour").select_option("growth")
        page.locator("#scatter-x").select_option("beta")
        page.locator("#filter-layer").select_option("0")
        page.locator("#filter-value").fill("1")
        page.locator("#maps [role=gridcell]").first.click()
        assert page.asked == [(folder / f"{name}.html").as_uri()]
        assert page.said == []
        assert page.locator("#maps svg").count() == (3 if name == "pair" else 1)
        assert page.locator("#head-panels svg[role=img]").count() == (8 if name == "pair" else 4)


def test_the_sliders_move_the_entropy_of_every_head(browser: Any, folder: Path, minilm: at.Report) -> None:
    with opened(browser, folder / "minilm.html") as page:
        np.testing.assert_allclose(entropies(page), minilm.entropy[:, 1, 0], rtol=6e-3, atol=1e-4)
        slide(page, "length", 0)
        np.testing.assert_allclose(entropies(page), minilm.entropy[:, 0, 0], rtol=6e-3, atol=1e-4)
        assert page.locator("#length-out").inner_text() == "64 tokens"
        for place in (0.8125, -2, 2):
            slide(page, "multiple", place)
            expected = interpolate(minilm.curve[:, 0], [2.0**place])[:, 0]
            np.testing.assert_allclose(entropies(page), expected, rtol=6e-3, atol=1e-4)
        page.locator("#reset").click()
        np.testing.assert_allclose(entropies(page), minilm.entropy[:, 0, 0], rtol=6e-3, atol=1e-4)


@pytest.mark.parametrize("place", [-1.9375, 0.4375, 1.9375])  # between two multiples
def test_what_is_saved_as_csv_is_what_the_table_shows(
    browser: Any, folder: Path, minilm: at.Report, place: float
) -> None:
    with opened(browser, folder / "minilm.html") as page:
        slide(page, "multiple", place)
        page.locator("#filter-layer").select_option("2")
        page.get_by_role("button", name="entropy (nats)", exact=True).click()
        rows = list(csv.DictReader(io.StringIO(download(page, page.locator("#export-csv")))))
    inside = np.flatnonzero(minilm.layers == 2)
    exact = interpolate(minilm.curve[inside, 1], [2.0**place])[:, 0]
    order = np.argsort(-exact)
    assert [int(row["head"]) for row in rows] == minilm.heads[inside][order].tolist()
    assert {row["layer"] for row in rows} == {"2"}
    # The page has its curves to six digits, and its cubic is that of Python.
    found = [float(row["entropy (nats)"]) for row in rows]
    np.testing.assert_allclose(found, exact[order], rtol=2e-5)
    np.testing.assert_allclose([float(row["effective keys"]) for row in rows], np.exp(found), rtol=1e-12)
    assert {float(row["multiple"]) for row in rows} == {2.0**place}


def test_a_figure_is_saved_with_its_colours(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "minilm.html") as page:
        for which in ("#maps", "#scatters", "#head-panels"):
            text = download(page, page.locator(f"{which} figcaption button").first)
            root = ElementTree.fromstring(text)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert "fill: rgb" in text
            assert "class=" not in text
            assert "var(" not in text


def test_heads_open_by_mouse(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "causal.html") as page:
        page.locator("#maps [role=gridcell]").nth(5).click()
        assert page.locator("#head-title").inner_text() == "Head: layer 2, head 1"
        page.locator("#scatters circle").first.dispatch_event("click")
        assert page.locator("#head-title").inner_text() == "Head: layer 0, head 0"
        page.get_by_role("button", name="layer 3, head 1").click()
        assert page.locator("#head-title").inner_text() == "Head: layer 3, head 1"
        assert "layer 3, head 1" in page.locator("#head-panels svg").first.get_attribute("aria-label")


def test_axes_name_the_lengths(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "causal.html") as page:
        said = page.locator("#head-panels svg").first.locator("text").all_text_contents()
        assert said[:2] == ["128", "1024"]


def test_heads_open_by_keyboard(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "causal.html") as page:
        focused = "document.activeElement.getAttribute('aria-label') || document.activeElement.id"
        page.locator("#maps [role=gridcell]").first.click()
        page.locator("#reset").focus()
        page.keyboard.press("Tab")
        assert page.evaluate(focused).startswith("layer 0, head 0: ")  # the open head
        for key, expected in (
            *(("ArrowRight", "layer 0, head 1"), ("ArrowRight", "layer 0, head 1")),
            *(("ArrowDown", "layer 1, head 1"), ("Home", "layer 1, head 0"), ("End", "layer 1, head 1")),
            *(
                ("ArrowUp", "layer 0, head 1"),
                ("ArrowUp", "layer 0, head 1"),
                ("ArrowLeft", "layer 0, head 0"),
            ),
            ("ArrowDown", "layer 1, head 0"),
        ):
            page.keyboard.press(key)
            assert page.evaluate(focused).startswith(f"{expected}: "), key
        assert page.locator("#hint").inner_text().startswith("layer 1, head 0: ")
        frame = page.locator("#maps .ring.focus")
        assert frame.is_visible()
        cell = page.locator("#maps [role=gridcell]:focus")
        assert [frame.get_attribute(x) for x in "xy"] == [cell.get_attribute(x) for x in "xy"]
        page.keyboard.press("Enter")
        assert page.locator("#head-title").inner_text() == "Head: layer 1, head 0"
        assert page.evaluate(focused) == "head-title"
        assert not frame.is_visible()


def test_text_of_the_report_is_no_markup(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "minilm.html") as page:
        assert "MiniLM <b>& others</b>" in page.locator("h1").inner_text()
        assert "</script><script>alert(1)</script>" in page.locator("#about").inner_text()
        assert page.locator("header b").count() == 0


@pytest.mark.parametrize(
    ("name", "scheme"), [("minilm", "light"), ("minilm", "dark"), ("causal", "light"), ("pair", "dark")]
)
def test_axe_finds_nothing(browser: Any, folder: Path, name: str, scheme: str) -> None:
    with opened(browser, folder / f"{name}.html", color_scheme=scheme) as page:
        assert violations(page) == []


@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size["width"]))
def test_nothing_is_wider_than_the_window(browser: Any, folder: Path, size: dict[str, int]) -> None:
    with opened(browser, folder / "pair.html", viewport=size) as page:
        widths = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]")
        assert max(widths) <= size["width"]


def test_the_print_has_no_controls_and_all_heads(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "minilm.html", color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert not page.locator("#export-csv").is_visible()
        assert not page.locator("#length").is_visible()
        assert page.locator("#length-out").is_visible()
        assert page.locator("#table-scroll").evaluate("box => box.scrollHeight - box.clientHeight") == 0
        assert page.locator("tbody th").first.inner_text() == "layer 0, head 0"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
