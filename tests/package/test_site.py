# SPDX-License-Identifier: BSD-3-Clause
"""The site builds without warnings, and reads well in a browser that has no network."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import attnscale as at
import pytest
from browser import chromium, opened, violations

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Start page, tables of formulas, another language, code, a notebook, what autodoc writes, and what computes.
PAGES = (
    *("index", "reference/laws", "claims", "articles/zh/001", "five-minutes", "tutorials/05_phases"),
    *("reference/attention", "playground"),
)
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 900}

pytestmark = [pytest.mark.maintainer, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    for needed in ("sphinx", "myst_nb", "furo", "numpydoc", "sphinx_design"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    result = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), str(DOCS), str(folder / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return folder / "html"


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module", params=PAGES)
def page(site, browser, request):
    """One page, opened from disk in a browser that is offline, with its formulas set."""
    path = site / f"{request.param}.html"
    with opened(browser, path, viewport=WIDE, color_scheme="light") as shown:
        shown.evaluate("window.MathJax?.startup?.promise.then(() => null)")
        for box in shown.locator(".try").all():
            box.locator("figure").wait_for()
        yield shown


def test_notebooks_have_their_pictures(site):
    text = (site / "tutorials" / "01_attention_and_entropy.html").read_text(encoding="utf-8")
    assert text.count("<img") >= 5


#: Scripts, styles, images and fonts that a page loads; links to other sites are none of them.
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source|video|object|embed)\b[^>]*?(?:src|href|data)=\"([^\"]+)\""
)
IMPORTED = re.compile(r"url\(\s*['\"]?([^)'\"]+)|@import\s+['\"]([^'\"]+)")


def test_no_page_loads_anything_from_a_network(site):
    found = []
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        loaded = LOADED.findall(text) if path.suffix == ".html" else []
        loaded += ["".join(each) for each in IMPORTED.findall(text)] if path.suffix == ".css" else []
        found += [(path.name, each) for each in loaded if re.match(r"(https?:)?//", each)]
    assert len(list(site.rglob("*.html"))) > 50
    assert found == []


def test_a_page_is_whole_without_a_network(page):
    """Every formula is set, nothing is missing, and the browser has nothing to complain of."""
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.said == []
    formulas, drawn = (page.locator(each).count() for each in (".math", "mjx-container:has(svg)"))
    assert drawn == formulas
    assert page.locator("mjx-container :is([data-mml-node=merror], [fill=red])").count() == 0
    text = page.evaluate(VISIBLE)
    assert re.findall(r"\\\(|\\\[|\\[a-z]{3,}\b|\$[^$\n]+\$", text) == []
    pictures = page.evaluate("[...document.images].filter(each => !each.naturalWidth).map(each => each.src)")
    assert pictures == []


#: What a reader sees, without code, in which backslashes and dollars are meant.
VISIBLE = """() => {
  const copy = document.querySelector("article").cloneNode(true);
  copy.querySelectorAll("pre, code, mjx-container, script, style").forEach(each => each.remove());
  return copy.textContent;
}"""


def serious(page, options):
    """What axe-core finds, without the inside of formulas, which are pictures with MathML beside them."""
    found = violations(page, exclude=["mjx-container"], **options)
    return [each for each in found if each.impact in ("serious", "critical")]


def test_axe_finds_nothing_serious_in_the_light(page):
    assert serious(page, {}) == []


def test_axe_finds_nothing_serious_in_the_dark(page):
    """Colours alone differ."""
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert serious(page, {"runOnly": ["color-contrast"]}) == []


#: What can be scrolled sideways, but for boxes that may: the theme lets the whole text scroll in one.
SCROLLING = """() => [...document.querySelectorAll("*")].filter(each =>
  each.scrollWidth > each.clientWidth + 1
  && ["auto", "scroll"].includes(getComputedStyle(each).overflowX)
  && !each.matches("pre, .table-wrapper, div.math")
).map(each => `${each.tagName} ${each.className} ${each.scrollWidth}`)"""


def test_a_page_is_no_wider_than_a_phone(page):
    """Only code, tables and formulas scroll sideways, and the keyboard reaches these."""
    page.set_viewport_size(NARROW)
    width = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]")
    assert max(width) <= NARROW["width"]
    assert page.evaluate(SCROLLING) == []
    assert serious(page, {"runOnly": ["scrollable-region-focusable"]}) == []


@pytest.fixture
def shown(site, browser):
    """Opens a page by its name, with its formulas set and its tables prepared."""
    with ExitStack() as stack:

        def open_page(name, **options):
            path = site / f"{name}.html"
            page = stack.enter_context(opened(browser, path, color_scheme="light", **options))
            page.evaluate("window.MathJax?.startup?.promise.then(() => null)")
            page.wait_for_timeout(100)  # what follows the formulas
            return page

        yield open_page


#: Boxes whose contents are cut at their edge.
CUT = """selector => [...document.querySelectorAll(selector)].filter(each =>
  each.scrollWidth > each.clientWidth + 1).map(each => [each.clientWidth, each.scrollWidth])"""


def test_nothing_is_cut_where_margins_were_empty(shown):
    assert shown("reference/laws", viewport=WIDE).evaluate(CUT, ".table-wrapper:has(.law-curve)") == []
    page = shown("tutorials/05_phases", viewport=WIDE)
    assert page.locator(".cell_input pre").count() > 5
    assert page.evaluate(CUT, ".cell_input pre") == []


@pytest.mark.parametrize("name", ["reference/laws", "explanation/training-evidence"])
def test_the_contents_of_a_long_page_stay_and_follow(shown, name):
    """Wherever the reader is, the entry of that section is in sight."""
    page = shown(name, viewport=WIDE)
    for part in (0.3, 0.6, 0.9):
        page.evaluate("part => scrollTo({top: part * document.body.scrollHeight, behavior: 'instant'})", part)
        page.wait_for_selector(".toc-tree .scroll-current > a")
        entry = page.locator(".toc-tree .scroll-current > a").last.bounding_box()
        assert 0 <= entry["x"] < entry["x"] + entry["width"] <= WIDE["width"]
        assert 0 <= entry["y"] < entry["y"] + entry["height"] <= WIDE["height"]


SECOND_CELLS = {"claims": "verdict: random keys", "reference/laws": "scale of", "i-have": "I run: at."}


@pytest.mark.parametrize("name", SECOND_CELLS)
def test_rows_with_sentences_are_cards_on_a_phone(shown, name):
    """A column of its own would have 88 pixels for a sentence; a table of numbers stays one."""
    page = shown(name, viewport=NARROW)
    widths = page.evaluate("[...document.querySelectorAll('.cards td')].map(each => each.clientWidth)")
    assert len(widths) > 30
    assert min(width for width in widths if width) >= 250
    assert page.evaluate(CUT, ".table-wrapper:has(.cards)") == []
    cell = page.locator(".cards td:nth-child(2)").first
    assert cell.inner_text().startswith(SECOND_CELLS[name])
    page.set_viewport_size(WIDE)
    assert not cell.locator(".heading-of-cell").is_visible()


def test_a_heading_takes_at_most_three_lines_on_a_phone(shown):
    page = shown("tutorials/03_entropy_invariance", viewport=NARROW)
    lines = "each => each.offsetHeight / parseFloat(getComputedStyle(each).lineHeight)"
    assert page.locator("h1").evaluate(lines) < 3.5


def test_a_figure_in_the_dark_is_a_card(shown):
    page = shown("tutorials/05_phases", viewport=WIDE)
    style = """each => [getComputedStyle(each)].map(
      style => [style.filter, style.borderRadius, style.padding, style.backgroundColor])[0]"""
    figure = page.locator("article .cell_output img").first
    assert figure.evaluate(style)[0] == "brightness(1)"
    page.emulate_media(color_scheme="dark")
    assert figure.evaluate(style) == ["brightness(0.85)", "8px", "9.6px", "rgb(255, 255, 255)"]


def test_the_table_of_laws_has_them_all(site):
    text = (site / "reference" / "laws.html").read_text(encoding="utf-8")
    table, after = text.split("<table", 1)[1].split("</table>", 1)
    rows = re.findall(r"<tr class=.*?</tr>", table.split("<tbody>")[1], flags=re.DOTALL)
    assert len(rows) == len(at.laws.names())
    for row, name in zip(rows, at.laws.names(), strict=True):
        target, anchor = re.search(r'href="../laws/(\w+\.html)#([\w-]+)"', row).groups()
        assert f'<span class="pre">{name}</span>' in row
        assert f'id="{anchor}"' in (site / "laws" / target).read_text(encoding="utf-8")
        assert row.count('class="math') >= 1
        assert row.count("<polyline") == 1
        assert re.search(rf'role="img" aria-label="{name}: [\d.]+ to [\d.]+', row)
    assert "attnscale.laws.get" in after
    assert "attnscale.laws.get" not in table
