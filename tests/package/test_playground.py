# SPDX-License-Identifier: BSD-3-Clause
"""The playground of the site: numbers are Python's, and errors are one line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import attnscale as at
import numpy as np
import pytest
from browser import chromium, opened

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "_ext"))

import _playground_page

pytestmark = [pytest.mark.maintainer, pytest.mark.slow]
NAMES = ("entropy", "projection", "keys")


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The three things without the text around them; test_site.py sees the whole page."""
    assert _playground_page.has_core(), "`make wasm` builds what the page computes with"
    boxes = "".join(f'<div class="try" id="try-{name}"></div>' for name in NAMES)
    path = tmp_path_factory.mktemp("playground") / "playground.html"
    path.write_text(
        f"<!doctype html><title>x</title>{boxes}{_playground_page.playground()}", encoding="utf-8"
    )
    return path


@pytest.fixture
def page(browser, path):
    """The page with everything computed once; it must make no request and log no message."""
    with opened(browser, path, viewport={"width": 400, "height": 900}) as shown:
        shown.set_default_timeout(120_000)
        for name in NAMES:
            ready(shown, name)
        yield shown
        assert shown.said == []
        assert [url for url in shown.asked if not url.startswith("blob:")] == [path.as_uri()]
        assert "NaN" not in shown.evaluate("document.body.innerText")


def ready(page, name):
    page.wait_for_function(
        "id => document.querySelector(`${id} figure`) && document.querySelector(`${id} progress`).hidden",
        arg=f"#try-{name}",
    )


def fill(page, name, **form):
    """Change the form, and wait for what follows from it."""
    page.locator(f"#try-{name}").evaluate(
        """(box, values) => {
          box.querySelector(".output").replaceChildren();
          for (const [field, value] of Object.entries(values))
            document.getElementById(`${box.id}-${field}`).value = value;
          box.querySelector("form").dispatchEvent(new Event("input"));
        }""",
        form,
    )
    ready(page, name)


def cells(page, name):
    """The table of numbers, by row and column; of "1.5 ± 0.1, exact 1.6" the three numbers."""
    rows = page.evaluate(
        """id => [...document.querySelectorAll(`${id} tbody tr`)].map(
          row => [...row.cells].map(each => each.textContent))""",
        f"#try-{name}",
    )
    return {first: [list(map(float, re.findall(r"[\d.]+", each))) for each in rest] for first, *rest in rows}


@pytest.mark.parametrize(("d", "law"), [(64, "1.37"), (8, "llama4_temperature(floor=16)"), (20, "lssa")])
def test_entropies_agree_with_python(page, d, law):
    fill(page, "entropy", head_dim=d, law=law, to=1000, samples=50)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    call = page.locator("#try-entropy .python").text_content()
    want = eval(call, {"at": at})
    exact = want.exact()["entropy"]
    found = cells(page, "entropy")
    assert list(found) == [str(n) for n in want.axes["n"]]
    assert law.split("(")[0] in call
    for row, value, error, expected in zip(
        found.values(), want.value, want.standard_error, exact, strict=True
    ):
        np.testing.assert_allclose(np.transpose(row), [value, error, expected], atol=1.1e-4, rtol=1e-5)


def test_other_keys_come_from_the_next_seed(page):
    before = cells(page, "entropy")
    page.locator("#try-entropy .output").evaluate("box => box.replaceChildren()")
    page.get_by_text("Other keys").click()
    ready(page, "entropy")
    assert cells(page, "entropy") != before
    assert "rng=1)" in page.locator("#try-entropy .python").text_content()


def test_distortions_agree_with_python(page):
    """The kernels draw other matrices under a seed: means agree within their errors."""
    fill(page, "projection", n=60, most=64, samples=40)
    thumb = at.theory.jl_rule_of_thumb(60)
    said = page.locator("#try-projection .output > p").inner_text()
    assert f"In {round(thumb)} dimensions" in said
    assert f"asks for {at.theory.jl_min_dim(60, eps=0.5)} dimensions" in said
    found = cells(page, "projection")
    want = eval(page.locator("#try-projection .python").text_content(), {"at": at, "np": np})
    assert list(found) == [str(k) for k in want.axes["k"]]
    value, error = np.array([row[0] for row in found.values()]).T
    assert (error > 0).all()
    assert (abs(value - want.value) < 5 * np.hypot(error, want.standard_error)).all()


RULES = {"softmax": "softmax", "entmax15": "entmax-1.5", "sparsemax": "sparsemax"}
SCORES = ([2, 1.2, 0.6, 0, -0.8, -1.5], [4, 4, 4, 4, 4, 4], [4, -4, 4, -4, 3.9, 3], [0.1, 0, 0.1, 0, 0.1, 0])


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("scale", [0, 0.35, 1, 4])
def test_weights_of_six_keys_agree_with_python(page, scores, scale):
    fill(page, "keys", **{f"score{i}": each for i, each in enumerate(scores)}, scale=scale)
    found = [np.array(row).ravel() for row in cells(page, "keys").values()]
    for r, rule in enumerate(RULES):
        key, query = np.array(scores, float)[:, None], np.ones((1, 1))
        options = {"scale": scale, "normalizer": rule}
        weights = at.attention_weights(query, key, **options)[0]
        entropy = at.attention_entropy(query, key, **options)[0]
        shown = [row[r] for row in found]
        np.testing.assert_allclose(shown[:6], weights, atol=5.1e-5)
        np.testing.assert_allclose(shown[6:], [entropy, np.exp(entropy), (weights > 0).sum()], atol=6e-3)


HOSTILE = [
    ("entropy", {"to": "1e12"}, "n to must be an integer from 17 to 65536, got 1e12."),
    ("entropy", {"head_dim": "0"}, "d must be an integer from 2 to 4096, got 0."),
    ("entropy", {"samples": ""}, "Rows a point must be an integer from 2 to 10000, got nothing."),
    ("entropy", {"law": "logn"}, "There is no law logn; did you mean log_n?"),
    ("entropy", {"law": "log_n(base=0)"}, "Base must be"),
    ("entropy", {"law": "-1"}, "The multiple must be at least 0, got -1."),
    ("entropy", {"law": "1e999"}, "Beta must be finite"),
    ("entropy", {"law": "norm_softmax"}, "Law norm_softmax has no scale for random keys of a length"),
    ("projection", {"n": "1e12"}, "Points must be an integer from 3 to 1000, got 1e12."),
    ("projection", {"most": "20.5"}, "k to must be an integer from 16 to 1024, got 20.5."),
]


@pytest.mark.parametrize(("name", "form", "said"), HOSTILE, ids=lambda each: str(each))
def test_errors_are_one_line(page, name, form, said):
    before = {field: page.locator(f"#try-{name}-{field}").input_value() for field in form}
    for field, value in form.items():
        page.locator(f"#try-{name}-{field}").fill(value)
    page.wait_for_function(
        "([id, said]) => document.querySelector(`${id} [role=status]`).textContent.startsWith(said)",
        arg=[f"#try-{name}", said],
    )
    assert page.locator(f"#try-{name} figure").count() == 0
    fill(page, name, **before)
    assert page.locator(f"#try-{name} [role=status]").inner_text() == ""


def test_a_long_computation_stops(page):
    page.locator("#try-entropy-to").fill("65536")
    page.locator("#try-entropy-samples").fill("10000")
    page.locator("#try-entropy").get_by_role("button", name="Stop").click()
    page.wait_for_function(
        "() => document.querySelector('#try-entropy [role=status]').textContent === 'Stopped.'"
    )
    assert page.locator("#try-entropy figure").count() == 1
    fill(page, "entropy", to=100, samples=20)


def test_the_keyboard_moves_a_score(page):
    first = cells(page, "keys")["1"]
    page.locator("#try-keys-score0").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('#try-keys output').textContent === '1.9'")
    page.wait_for_function(
        "was => document.querySelector('#try-keys td').textContent < was", arg=str(first[0][0])
    )
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "try-keys-score1"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_site_without_the_core_says_so(monkeypatch):
    monkeypatch.setattr(_playground_page, "has_core", lambda: False)
    text = _playground_page.playground()
    assert "make docs" in text
    assert "<script" not in text
