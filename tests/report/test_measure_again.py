# SPDX-License-Identifier: BSD-3-Clause
"""A page that measures heads again: its numbers are Python's, and it follows the page's controls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale._report import page as pages
from browser import chromium, opened, violations

pytestmark = [pytest.mark.maintainer, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def heads() -> tuple[Any, Any]:
    """Causal heads with the precision of the page."""
    data = at.datasets.causal_qk()
    return tuple(x[:2, :300].astype(np.float16).astype(np.float32) for x in (data.query, data.key))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def path(heads: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert pages.has_core(), "`make wasm` builds what the page computes with"
    options: dict[str, Any] = {"lengths": [64, 300], "laws": ["log_n"], "is_causal": True}
    return at.report(*heads, **options, with_heads=True).save(tmp_path_factory.mktemp("page") / "heads.html")


def measured(page: Any, **form: str) -> list[float]:
    """Fill in the form: entropy in nats, largest weight and weight of the first key in percent."""
    page.locator("#measure-panels").evaluate("box => box.replaceChildren()")
    for name, value in form.items():
        page.locator(f"#measure-{name}").fill(value)
    page.locator("#measure-go").click()
    page.wait_for_selector("#measure-panels dd")
    return [float(text.split()[0]) for text in page.locator("#measure-panels dd").all_inner_texts()]


def wait_for_title(page: Any, begin: str) -> None:
    page.wait_for_function(
        "text => document.querySelector('#measure-panels dt')?.textContent.startsWith(text)", arg=begin
    )


def expected(q: Any, k: Any, rows: int, **options: Any) -> list[float]:
    """Entropy and weights of the last rows by Python."""
    n = q.shape[-2]
    first = np.zeros((n, 1), np.float32)
    first[0] = 1
    names = ("entropy", "max_weight")
    found = at.attention_statistics(q, k, first, statistics=names, **options)
    assert found.entropy is not None
    assert found.max_weight is not None
    assert found.output is not None
    means = [x[-rows:].mean() for x in (found.entropy, found.max_weight, found.output[:, 0])]
    return [float(means[0]), *(100 * float(x) for x in means[1:])]


def check(found: list[float], wanted: list[float]) -> None:
    """Compare to the shown digits: four of the entropy, two or three of weights."""
    np.testing.assert_allclose(found[0], wanted[0], rtol=6e-4)
    np.testing.assert_allclose(found[1:], wanted[1:], rtol=5e-2)


@pytest.mark.parametrize("law", ["1", "1.37", "log_n(base=64)", "llama4_temperature(floor=16)"])
@pytest.mark.parametrize("n", [300, 101])
def test_numbers_are_those_of_python(browser: Any, path: Path, heads: Any, law: str, n: int) -> None:
    with opened(browser, path) as page:
        page.locator("#maps [role=gridcell]").nth(1).click()
        found = measured(page, law=law, length=str(n))
        shown = page.locator("#measure-panels dt").first.inner_text()
        page.wait_for_selector("#measure-keys li")
        row = page.locator("#measure-keys li").first.inner_text()
        assert page.said == []
        assert [each for each in page.asked if not each.startswith("blob:")] == [path.as_uri()]
    assert shown == f"layer 0, head 1 at {n} tokens, scale {law}"
    q, k = (x[1, :n] for x in heads)
    scale = law if "(" in law else float(law) / np.sqrt(q.shape[-1])
    options: dict[str, Any] = {"scale": scale, "is_causal": True}
    check(found, expected(q, k, max(n // 8, 1), **options))
    weights = at.attention_weights(q, k, **options)[-1]
    weight, key = row.split(" % on key ")
    assert int(key) == weights.argmax()
    assert float(weight) == pytest.approx(100 * weights.max(), rel=5e-2)


def test_what_cannot_be_measured_is_one_line(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        for form, said in (
            ({"law": "logn"}, "There is no law logn; did you mean log_n?"),
            ({"law": ""}, "The scale must be a number or a law, such as 1.5 or log_n."),
            ({"law": "log_n(base=0)"}, "Base must be"),
            ({"law": "1", "length": "301"}, "The length must be an integer from 2 to 300, got 301."),
        ):
            for name, value in form.items():
                page.locator(f"#measure-{name}").fill(value)
            page.locator("#measure-go").click()
            page.wait_for_function(
                "said => document.getElementById('measure-status').textContent.startsWith(said)", arg=said
            )
        assert measured(page, length="300")[0] > 0
        assert page.locator("#measure-status").inner_text() == ""
        assert page.said == []


def test_it_follows_the_page(browser: Any, path: Path, heads: Any) -> None:
    """A measurement follows the head of the map, and the length and multiple of the sliders."""
    slide = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }"
    with opened(browser, path) as page:
        page.locator("#maps [role=gridcell]").nth(1).click()
        measured(page)
        page.locator("#multiple").evaluate(slide, 10)
        wait_for_title(page, "layer 0, head 1 at 300 tokens, scale 1.41421")
        page.locator("#length").evaluate(slide, 0)
        wait_for_title(page, "layer 0, head 1 at 64 tokens, scale 1.41421")
        page.locator("#maps [role=gridcell]").nth(0).click()
        wait_for_title(page, "layer 0, head 0 at 64 tokens, scale 1.41421")
        shown = page.locator("#measure-panels dd").all_inner_texts()
        facts = page.locator("#head-facts dd").all_inner_texts()
        assert page.said == []
    assert float(shown[0].split()[0]) == pytest.approx(float(facts[0].split()[0]), abs=5e-3)
    q, k = (x[0, :64] for x in heads)
    check([float(x.split()[0]) for x in shown], expected(q, k, 8, scale=2**0.5 / 32**0.5, is_causal=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, path: Path, scheme: str) -> None:
    with opened(browser, path, color_scheme=scheme) as page:
        measured(page)
        page.wait_for_selector("#measure-keys li")
        assert violations(page) == []


def test_a_page_without_heads_has_none_of_it(browser: Any, heads: Any, tmp_path: Path) -> None:
    made = at.report(*heads, lengths=[64], laws=[], is_causal=True).save(tmp_path / "plain.html")
    assert made.stat().st_size < 150_000
    with opened(browser, made) as page:
        assert page.locator("#measure, #file").count() == 0
        assert "wasm" not in page.locator("meta[http-equiv]").get_attribute("content")
