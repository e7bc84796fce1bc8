# SPDX-License-Identifier: BSD-3-Clause
"""The site builds without warnings, and reads well in a browser that has no network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import attnscale as at
import pytest
from browser import chromium, opened, violations

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Start page, tables of formulas, another language, code, a notebook, and what autodoc writes.
PAGES = (
    *("index", "reference/laws", "claims", "articles/zh/001", "five-minutes", "tutorials/05_phases"),
    "reference/attention",
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
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
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
