# SPDX-License-Identifier: BSD-3-Clause
"""The page of a report in a browser: figures move, keys work, exported files match the page."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attnscale as at
import numpy as np
import pytest
from attnscale._report import make, measure
from attnscale.calibration.fit import Length
from browser import chromium, opened, slide, violations

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
    tokens = [*data.tokens[:4], "</script><b>x</b>", "\n", "", *data.tokens[7:256]]
    text: dict[str, Any] = {"tokens": tokens, "spans": {"<i>title</i>": (1, 4), "rest": (4, 256)}}
    options: dict[str, Any] = {"labels": places, "about": about, "laws": ["log_n"]}
    return at.report(data.query, data.key, lengths=[64, 256], **options, **text)


@pytest.fixture(scope="module")
def causal() -> at.Report:
    data = at.datasets.causal_qk()
    places = zip(data.layers.tolist(), data.heads.tolist(), strict=True)
    options: dict[str, Any] = {"lengths": [128, 1024], "laws": ["log_n"], "is_causal": True}
    return at.report(data.query, data.key, labels=places, **options)


@pytest.fixture(scope="module")
def folder(minilm: at.Report, causal: at.Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of both models, and of one before and after a change of its scale."""
    folder = tmp_path_factory.mktemp("pages")
    minilm.save(folder / "minilm.html")
    causal.save(folder / "causal.html")
    data = at.datasets.minilm_qk()
    places = list(zip(minilm.layers.tolist(), minilm.heads.tolist(), strict=True))
    q = (1.5 * data.query.astype(np.float32)).astype(np.float32)
    sharper = at.report(q, data.key, lengths=[64, 256], labels=places, laws=["log_n"])
    minilm.beside(sharper, ("as it is", "sharper")).save(folder / "pair.html")
    return folder


def entropies(page: Any) -> list[float]:
    """The column of the table of all heads."""
    cells = page.locator("#table-scroll tbody tr td:nth-child(3)").all_inner_texts()
    return [float(text.replace("\u2212", "-")) for text in cells]


def saved_rows(page: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(download(page, page.locator("#export-csv")))))


def download(page: Any, button: Any) -> str:
    with page.expect_download() as waiting:
        button.click()
    return Path(waiting.value.path()).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["minilm", "causal", "pair"])
def test_a_page_needs_no_network_and_the_console_is_empty(browser: Any, folder: Path, name: str) -> None:
    with opened(browser, folder / f"{name}.html") as page:
        slide(page, "length", 0)
        slide(page, "multiple", measure.OWN + 4)
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
        for m in (11, 0, 16):
            slide(page, "multiple", m)
            np.testing.assert_allclose(entropies(page), minilm.curve[:, 0, m], rtol=6e-3, atol=1e-4)
        page.locator("#reset").click()
        np.testing.assert_allclose(entropies(page), minilm.entropy[:, 0, 0], rtol=6e-3, atol=1e-4)


def test_what_is_saved_as_csv_is_what_the_table_shows(browser: Any, folder: Path, minilm: at.Report) -> None:
    with opened(browser, folder / "minilm.html") as page:
        slide(page, "multiple", 15)
        page.locator("#filter-layer").select_option("2")
        page.get_by_role("button", name="entropy (nats)", exact=True).click()
        rows = saved_rows(page)
    inside = np.flatnonzero(minilm.layers == 2)
    exact = minilm.curve[inside, 1, 15]
    order = np.argsort(-exact)
    assert [int(row["head"]) for row in rows] == minilm.heads[inside][order].tolist()
    assert {row["layer"] for row in rows} == {"2"}
    found = [float(row["entropy (nats)"]) for row in rows]
    np.testing.assert_allclose(found, exact[order], rtol=2e-5)


def test_a_table_of_many_heads_shows_the_first_until_asked_for_all(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 250, 16, 4), np.float32)
    labels = [divmod(head, 50) for head in range(250)]
    found = at.report(q, k, lengths=[8, 16], laws=[], labels=labels)
    found.save(tmp_path / "many.html")
    with opened(browser, tmp_path / "many.html") as page:
        rows = page.locator("#table-scroll tbody tr")
        page.get_by_role("button", name="entropy (nats)", exact=True).click()
        assert rows.count() == 200
        assert (
            "250 of 250 heads at 16 tokens, the first 200 of them below."
            in page.locator("#table-note").inner_text()
        )
        assert len(saved_rows(page)) == 250
        assert page.locator("#maps .cell").count() == page.locator("#scatters .dot").count() == 250
        page.get_by_role("button", name="Show all").click()
        assert rows.count() == 250
        assert page.locator("#table-all").is_hidden()
        expected = np.sort(found.entropy[:, 1, 0])[::-1]
        np.testing.assert_allclose(entropies(page), expected, rtol=6e-3, atol=1e-4)


def test_towers_are_parts_of_the_map(browser: Any, tmp_path: Path) -> None:
    """Each tower has its name above its layers; heads are named by their module, in the map and the CSV."""
    data = at.datasets.minilm_qk()
    q, k = (x.astype(np.float32) for x in (data.query, data.key))
    options = {"causal": None, "enable_gqa": False, "num_threads": None}
    rows = {n: Length(q[:2, :n], k[:2, :n], options) for n in (64, 256)}
    parts = [("decoder.0.attn", "decoder"), ("encoder.0.attn", "encoder"), ("decoder.1.attn", "decoder")]
    groups = [make.Group(rows, [(i, 0), (i, 1)], *part) for i, part in enumerate(parts)]
    make.report_of(groups, ["log_n"], {}).save(tmp_path / "towers.html")
    with opened(browser, tmp_path / "towers.html") as page:
        assert page.said == []
        assert page.locator("#maps text.group").all_text_contents() == ["decoder", "encoder"]
        cells = page.locator("#maps rect.cell")
        names = [cell.get_attribute("aria-label").partition(":")[0] for cell in cells.all()]
        modules = ("decoder.0.attn", "decoder.1.attn", "encoder.0.attn")
        assert names == [f"head {head} of {module}" for module in modules for head in (0, 1)]
        tops = [float(text.get_attribute("y")) for text in page.locator("#maps text.group").all()]
        where = [float(cell.get_attribute("y")) for cell in cells.all()]
        assert tops[0] < where[0] < where[2] < tops[1] < where[4]
        page.locator("#filter-layer").select_option("1")
        assert {row["module"] for row in saved_rows(page)} == {"encoder.0.attn"}


@pytest.mark.parametrize("m", [0, 5, measure.OWN, 13, 16])
@pytest.mark.parametrize("length", [0, 1])
def test_every_column_of_the_csv_belongs_to_its_multiple(
    browser: Any, folder: Path, minilm: at.Report, m: int, length: int
) -> None:
    """A heading names columns that belong to multiple 1; no row contradicts itself."""
    with opened(browser, folder / "minilm.html") as page:
        slide(page, "length", length)
        slide(page, "multiple", m)
        rows = saved_rows(page)
    assert list(rows[0])[:4] == ["layer", "head", "length", "multiple"]
    assert {float(row["multiple"]) for row in rows} == {float(f"{measure.MULTIPLES[m]:.6g}")}
    curve = minilm.curve[:, :, m]
    expected = {
        "effective keys": np.exp(curve[:, length]),
        "entropy (nats)": curve[:, length],
        "growth (nats a doubling)": (curve[:, 1] - curve[:, 0]) / 2,
        "weight of the first key": minilm.first_key_curve[:, length, m],
        "largest weight of a row": minilm.max_weight_curve[:, length, m],
        "most weight on one key": minilm.received_curve[:, length, m],
        "entropy less random keys\u2019 (nats)": (minilm.curve - minilm.random_curve)[:, length, m],
        "scale factor that keeps the entropy, at x 1": minilm.beta[:, length],
        "best law misses by (nats), at x 1": minilm.best_misses,
    }
    assert list(rows[0])[4:] == [*expected, "best law, at x 1"]
    for name, exact in expected.items():
        found = [float(row[name]) if row[name] else np.nan for row in rows]
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5, err_msg=name)
    for row in rows:
        assert float(row["largest weight of a row"]) * float(row["effective keys"]) > 1 - 3e-6


def test_the_panel_of_a_head_belongs_to_the_multiple(browser: Any, folder: Path, minilm: at.Report) -> None:
    with opened(browser, folder / "minilm.html") as page:
        slide(page, "multiple", 15)
        names = page.locator("#head-facts dt").all_inner_texts()
        texts = dict(zip(names, page.locator("#head-facts dd").all_inner_texts(), strict=True))
        captions = page.locator("#head-panels figcaption span").all_inner_texts()
    i = int(np.argmax(minilm.growth))  # the head that is open first
    entropy, weight = minilm.curve[i, 1, 15], minilm.max_weight_curve[i, 1, 15]
    assert texts["At 256 tokens, at 3.36 \u00d7 the scale"].startswith(f"{entropy:.3g} nats")
    assert float(texts["Largest weight of a row"].split()[0]) == pytest.approx(100 * weight, rel=5e-3)
    random = float(texts["Random keys, same length and scale"].split()[0])
    assert random == pytest.approx(minilm.random_curve[i, 1, 15], rel=5e-3)
    growth = float(texts["Growth"].split()[0].replace("\u2212", "-"))
    assert growth == pytest.approx((entropy - minilm.curve[i, 0, 15]) / 2, rel=0.05)
    assert {"Keeps its entropy of 64, at \u00d7 1", "Law that keeps it best, at \u00d7 1"} <= set(texts)
    figures = ("rows by entropy", "along the text")
    assert captions[2:] == [f"{each} at 256 tokens, at \u00d7 1" for each in figures]


def test_a_link_opens_the_page_as_it_was_left(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "causal.html") as page:
        slide(page, "multiple", 4)
        slide(page, "length", 0)
        page.locator("#maps [role=gridcell]").nth(5).click()
        page.get_by_role("button", name="entropy (nats)", exact=True).click()
        page.locator("#random").check()
        page.wait_for_url(re.compile("random=true"))
        address = page.url
        assert address.split("#")[1] == "length=128&scale=0.5&head=2.1&sort=entropy&down=true&random=true"
        parts = ("#controls", "#scatters", "#head", "#table-scroll")
        left = [page.locator(part).inner_text() for part in parts]
        page.goto("about:blank")
        page.goto(address)
        assert [page.locator(part).inner_text() for part in parts] == left
        assert page.locator("#multiple").input_value() == "4"
        page.evaluate("location.hash = '#scale=2&head=9.9&sort=nothing'")  # as a reader may type it
        page.locator("#multiple-out", has_text="2.00").wait_for()
        assert page.locator("#length-out").inner_text() == "1024 tokens"
        page.locator(".skip").focus()
        page.keyboard.press("Enter")
        assert page.locator("#multiple-out").inner_text() == "2.00 \u00d7"
        assert page.said == []


def test_a_notebook_has_the_page_without_an_address(browser: Any, minilm: at.Report, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(minilm._repr_html_(), encoding="utf-8")
    with opened(browser, notebook) as page:
        slide(page.frame_locator("iframe"), "multiple", measure.OWN + 4)
        assert page.frame_locator("iframe").locator("#multiple-out").inner_text() == "2.00 \u00d7"
        # The timer of the address is shorter than this one, so it has run by then.
        wait = "() => new Promise(done => setTimeout(done, 250))"
        page.frame_locator("iframe").locator("body").evaluate(wait)
        assert page.said == []


def test_random_keys_under_every_law_are_drawn_where_they_are_wanted(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "minilm.html") as page:
        figure = page.locator("#head-panels figure").first
        assert figure.locator(":scope > svg path.random").count() == 1
        assert "random keys" in figure.locator(".keys").inner_text()  # in the figure that it belongs to
        page.locator("#random").check()
        assert figure.locator(":scope > svg path.random").count() == 2
        last = figure.locator(":scope > svg path").last
        assert "head" in last.get_attribute("class")  # nothing hides it


def test_the_open_field_is_seen_on_every_colour(browser: Any, folder: Path) -> None:
    """A frame in the text colour within one in the background colour: one of them differs from the field."""
    with opened(browser, folder / "minilm.html") as page:
        slide(page, "multiple", 16)
        halo, frame = page.locator("#maps .ring:not(.focus)").all()
        stroke = "each => getComputedStyle(each).stroke"
        assert halo.evaluate(stroke) == "rgb(255, 255, 255)"
        assert frame.evaluate(stroke) == "rgb(27, 31, 36)"


def test_headings_show_that_they_sort(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "minilm.html") as page:
        arrows = page.locator("thead .arrow").all_inner_texts()
        assert arrows == ["\u2195"] * 10
        page.get_by_role("button", name="effective keys", exact=True).click()
        assert page.locator("thead .arrow").all_inner_texts() == ["\u2193", *arrows[1:]]


def test_two_reports_are_side_by_side_on_one_axis(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "pair.html") as page:
        page.locator("header summary").click()
        assert page.locator("#about tbody tr:has(th:text-is('lengths')) td").count() == 1  # once for both
        figures = page.locator("#head-panels figure").all()
        for left, right in zip(figures[::2], figures[1::2], strict=True):
            places = [each.bounding_box() for each in (left, right)]
            assert places[0]["y"] == places[1]["y"]
            ticks = [each.locator("text[text-anchor=end]").all_text_contents() for each in (left, right)]
            assert ticks[0] == ticks[1]
        names = page.locator("#table-scroll tbody tr:nth-child(-n+2) td.word:nth-of-type(1)")
        assert names.all_inner_texts()[:2] == ["as it is", "sharper"]
        page.locator("#sort-of").select_option("2")
        page.get_by_role("button", name="entropy (nats)", exact=True).click()
        names = ("sharper", "as it is")
        pairs = ([float(row[f"entropy (nats) ({name})"]) for name in names] for row in saved_rows(page))
        less = [sharper - plain for sharper, plain in pairs]
        assert less == sorted(less, reverse=True)


@pytest.mark.parametrize("name", ["minilm", "pair"])
def test_what_is_below_each_other_ends_at_one_edge(browser: Any, folder: Path, name: str) -> None:
    with opened(browser, folder / f"{name}.html", viewport=SIZES[0]) as page:
        edge = "each => Math.round(each.getBoundingClientRect().right)"
        found = {
            where: page.locator(where).last.evaluate(edge)
            for where in ("#controls", "#scatters figure", "#head-panels figure", "#table-scroll")
        }
        assert len(set(found.values())) == 1, found
        wide = page.locator("#table-scroll").evaluate("box => box.scrollWidth - box.clientWidth")
        assert wide == 0
        assert page.locator("#said-title").bounding_box()["y"] < 150  # metadata are folded away


def test_the_sliders_stay_in_a_narrow_window(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "minilm.html", viewport=SIZES[2]) as page:
        page.locator("#table-note").scroll_into_view_if_needed()
        page.evaluate("window.scrollTo(0, document.body.scrollHeight / 2)")
        box = page.locator("#controls").bounding_box()
        assert box["y"] == 0
        assert box["height"] < 150
        head = page.locator("thead").bounding_box()
        assert head["height"] < 60
        count = "all => all.filter(each => each.getBoundingClientRect().right < 400).length"
        assert page.locator("thead th").evaluate_all(count) >= 5


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
            *(("ArrowUp", "layer 0, head 1"), ("ArrowUp", "layer 0, head 1")),
            *(("ArrowLeft", "layer 0, head 0"), ("ArrowDown", "layer 1, head 0")),
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


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of heads whose weights are nearly equal: on all keys, in a window, and beside nearly the same."""
    folder = tmp_path_factory.mktemp("flat")
    q, k = 0.02 * np.random.default_rng(0).standard_normal((2, 3, 128, 32))
    found = at.report(q, k, lengths=[64, 128], laws=["log_n"])
    found.save(folder / "all.html")
    found.beside(at.report(1.0001 * q, k, lengths=[64, 128], laws=["log_n"])).save(folder / "pair.html")
    options: dict[str, Any] = {"causal": "bottom_right", "enable_gqa": False, "num_threads": None}
    rows = {n: Length(q[:, :n], k[:, :n], {**options, "window": (7, 0)}) for n in (64, 96, 128)}
    group = make.Group(rows, [(0, head) for head in range(3)])
    make.report_of([group], ["log_n"], {}).save(folder / "window.html")
    return folder


def test_numbers_that_are_nearly_equal_look_so(browser: Any, flat: Path) -> None:
    """Dots lie on one point, ticks differ, and no law is judged."""
    with opened(browser, flat / "all.html") as page:
        for quantity in ("growth", "entropy", "keys", "received"):
            page.locator("#scatter-x").select_option(quantity)
            ticks = page.locator("#scatters svg text[text-anchor=middle]").all_text_contents()[:-2]
            assert len(set(ticks)) == len(ticks) >= 2, quantity
            x = [float(dot.get_attribute("cx")) for dot in page.locator("#scatters circle").all()]
            assert max(x) - min(x) < 60, quantity
        facts = page.locator("#head-facts").inner_text()
        assert "weights nearly equal: no law is judged by them" in facts
        assert "weights nearly equal: no scale is judged by them" in facts
        assert {row["best law, at x 1"] for row in saved_rows(page)} == {""}


def test_the_names_of_lengths_do_not_touch(browser: Any, flat: Path) -> None:
    with opened(browser, flat / "window.html") as page:
        svg = page.locator("#head-panels svg[role=img]").nth(1)
        names = [svg.locator(f"text:text-is('{n}')").bounding_box() for n in (64, 96, 128)]
        names.sort(key=lambda box: box["y"])
        for above, below in itertools.pairwise(names):
            assert below["y"] - above["y"] >= 11.5
        assert "8 effective keys of 8" in page.locator("#head-facts").inner_text().replace("8.00", "8")


def test_equal_reports_have_no_colours_between_them(browser: Any, flat: Path) -> None:
    with opened(browser, flat / "pair.html") as page:
        legend = page.locator("#legend svg").last
        ticks = legend.locator("text").all_text_contents()[:-1]
        assert (ticks[0], ticks[-1]) == ("\u22121", "1")  # keys, not thousandths of one
        cells = page.locator("#maps svg").last.locator("rect.cell")
        assert cells.evaluate_all(
            "all => all.every(each => getComputedStyle(each).stroke !== 'rgb(255, 255, 255)')"
        )
        said = page.locator("#head-facts tbody").inner_text()
        assert said.count("both: ") >= 6
        page.locator("#colour").select_option("entropy")
        ticks = legend.locator("text").all_text_contents()[:-1]
        assert "\u22120" not in ticks
    assert "-0.0" not in (flat / "pair.html").read_text(encoding="utf-8").split('"differences":')[1]


def weights(page: Any, part: str) -> list[float]:
    return [float(text.split(" %")[0]) for text in page.locator(f".row-keys {part} li").all_inner_texts()]


def test_the_text_shows_what_each_row_attends_to(browser: Any, folder: Path, minilm: at.Report) -> None:
    text = minilm.text
    assert text is not None
    with opened(browser, folder / "minilm.html") as page:
        page.locator("#maps [role=gridcell]").nth(3).click()
        tokens = page.locator("#text [role=option]")
        assert tokens.count() == 256
        assert tokens.all_inner_texts()[4:7] == ["</script><b>x</b>", "\u21b5", "\u2205"]
        assert page.locator("#text b").count() == 0
        tokens.nth(20).hover()
        said = page.locator(".row-keys p").first.inner_text()
        nats = float(said.partition(": ")[2].split()[0])
        assert said.startswith(f"Row 20 \u201c{text.tokens[20]}\u201d: ")
        assert nats == pytest.approx(text.entropy[3, 20], abs=0.06)
        np.testing.assert_allclose(weights(page, "ol"), 100 * text.top_weights[3, 20], atol=0.6)
        rest = float(page.locator(".row-keys .rest").inner_text().split(" % on the rest")[0])
        assert sum(weights(page, "ol")) + rest == pytest.approx(100, abs=3)  # each is rounded
        np.testing.assert_allclose(weights(page, "ul"), 100 * text.span_weights[3, 20], atol=0.6)
        marked = page.locator(".token.key").evaluate_all("all => all.map(each => Number(each.dataset.row))")
        assert sorted(marked) == sorted(text.top_keys[3, 20])
        colours = tokens.evaluate_all("all => all.map(each => each.style.background)")
        assert colours[20] != colours[int(np.argmin(text.entropy[3]))]
        assert page.locator("#text .row-keys").inner_text().count("<i>title</i>, tokens 1 to 3") == 1
        page.mouse.move(0, 0)
        assert page.locator(".row-keys p").first.inner_text().startswith("Row 0 ")  # where the keyboard is


def test_the_text_is_read_by_keyboard(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "minilm.html") as page:
        assert page.locator("#text [tabindex='0']").count() == 1
        page.locator("#text [tabindex='0']").focus()
        row = page.locator(".row-keys p").first
        keys = (("ArrowRight", 1), ("PageDown", 21), ("ArrowLeft", 20), ("End", 255), ("ArrowDown", 255))
        for key, there in keys:
            page.keyboard.press(key)
            assert row.inner_text().startswith(f"Row {there} "), key
        assert page.locator("#text [aria-selected=true]").get_attribute("data-row") == "255"
        assert page.locator("#text [tabindex='0']").count() == 1
        page.locator("#maps [role=gridcell]").nth(2).click()
        assert row.inner_text().startswith("Row 255 ")
    with opened(browser, folder / "causal.html") as page:
        assert not page.locator("#text").is_visible()


def test_text_of_the_report_is_no_markup(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "minilm.html") as page:
        assert "MiniLM <b>& others</b>" in page.locator("h1").inner_text()
        page.locator("header summary").click()
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
        assert page.locator("#text").is_visible()
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
