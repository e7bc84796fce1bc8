# SPDX-License-Identifier: BSD-3-Clause
"""The file of a report: one document without network access, written whole or not at all."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale._report import page


@pytest.fixture(scope="module")
def found() -> at.Report:
    data = at.datasets.minilm_qk()
    about = {"model": "a </script> & <b>", "text": "one\u2028two"}
    return at.report(data.query[:3], data.key[:3], lengths=[32, 64], laws=["log_n"], about=about)


def data_of(text: str) -> Any:
    """Content that the scripts of a page read."""
    begin = '<script type="application/json" id="report-data">'
    return json.loads(text.split(begin)[1].split("</script>")[0])


def test_the_numbers_of_the_page_are_those_of_the_report(found: at.Report) -> None:
    assert data_of(found.to_html()) == found.to_dict()
    pair = found.beside(found)
    assert data_of(pair.to_html()) == pair.to_dict()


def test_heads_that_nothing_can_measure_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installation without kernels for pages leaves heads out of the page; the report keeps them."""
    monkeypatch.setattr(page, "_MODULE", tmp_path)
    q, k = np.random.default_rng(0).standard_normal((2, 2, 64, 8))
    options: dict[str, Any] = {"lengths": [32, 64], "laws": ["log_n"]}
    found = at.report(q, k, **options, with_heads=True)
    with pytest.warns(UserWarning, match="this installation has no kernels for pages"):
        text = found.to_html()
    assert found.to_dict()["kept"] is not None
    assert data_of(text) == at.report(q, k, **options).to_dict() | {"provenance": found.provenance.to_dict()}
    with pytest.warns(UserWarning, match="a page of two reports cannot measure again"):
        pair = data_of(found.beside(found).to_html())
    assert [each["kept"] for each in pair["pair"]] == [None, None]


def test_a_page_refers_to_nothing_outside_of_it(found: at.Report) -> None:
    text = found.to_html()
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG's elements, which nobody loads
    assert not re.search(r"<(link|img|iframe|source|object|embed)\b|\bsrc=|@import|url\(", text)
    assert "fetch(" not in text
    assert "XMLHttpRequest" not in text
    assert "default-src 'none'" in text
    assert "{{" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_144_heads_at_four_lengths_are_less_than_a_megabyte(found: at.Report) -> None:
    rng = np.random.default_rng(0)
    many: dict[str, Any] = {}
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        if isinstance(value, np.ndarray) and field.name not in ("lengths", "multiples"):
            shape = (144, 4, *value.shape[2:]) if value.ndim > 1 else (144,)
            whole = field.name in ("layers", "heads", "best", "received_by", "histogram")
            many[field.name] = rng.integers(0, 2, shape) if whole else rng.random(shape)
    laws = (at.laws.get("standard"), *(at.laws.LogN(base=b) for b in (2.0, 3.0, 4.0, 5.0)))
    many["entropy"] = many["random_entropy"] = rng.random((144, 4, 5))
    many |= {
        "lengths": np.array([64, 128, 256, 512]),
        "laws": laws,
        "histogram": rng.integers(0, 99, (144, 4, 20)),
    }
    places = np.divmod(np.arange(144), 12)
    large = dataclasses.replace(found, **{**many, "layers": places[0], "heads": places[1]})
    size = len(large.to_html().encode())
    assert 300_000 < size < 1_000_000


def test_a_file_that_is_there_is_kept(found: at.Report, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match=r"report\.html is there already; overwrite=True replaces it"):
        found.save(path)
    assert path.read_text(encoding="utf-8") == "mine"
    assert found.save(path, overwrite=True) == path
    assert path.read_text(encoding="utf-8") == found.to_html()
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_name_without_a_suffix_gets_one(found: at.Report, tmp_path: Path) -> None:
    assert found.save(tmp_path / "heads") == tmp_path / "heads.html"
    assert (tmp_path / "heads.html").stat().st_mode & 0o444 == 0o444  # as the files that others may read


def test_nothing_is_left_where_writing_fails(
    found: at.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "report.html"
    path.write_text("mine", encoding="utf-8")
    monkeypatch.setattr(page.os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        found.save(path, overwrite=True)
    assert os.listdir(tmp_path) == ["report.html"]
    assert path.read_text(encoding="utf-8") == "mine"


def test_places_that_cannot_be_written_are_refused(
    found: at.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent.a\.html: there is no folder .*absent"):
        found.save(tmp_path / "absent" / "a.html")
    with pytest.raises(IsADirectoryError, match="is a folder, not a file"):
        found.save(tmp_path / "")  # a folder's name
    with pytest.raises(ValueError, match=r"a\.pdf must end in \.html, which is what a page is, got \.pdf$"):
        found.save(tmp_path / "a.pdf")
    monkeypatch.setattr(page.os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=r"a\.html cannot be written here"):
        found.save(tmp_path / "a.html")


def test_a_notebook_shows_the_page_in_a_frame(found: at.Report) -> None:
    for shown in (found, found.beside(found)):
        form = r'<iframe title="[^"]+" srcdoc="([^"]*)" style="[^"]+"></iframe>'
        frame = re.fullmatch(form, shown._repr_html_())
        assert frame is not None
        assert html.unescape(frame[1]) == shown.to_html()


def rgb(stops: list[str]) -> np.ndarray:
    return np.array([[int(stop[k : k + 2], 16) for k in (1, 3, 5)] for stop in stops]) / 255


@pytest.mark.parametrize(("name", "published"), [("numbers", "cividis"), ("differences", "PuOr_r")])
def test_the_colours_are_the_published_ones(name: str, published: str) -> None:
    """Colours match also between the stops, where the page interpolates."""
    colormaps = pytest.importorskip("matplotlib").colormaps
    stops, places = rgb(page.COLOURS[name]), np.linspace(0, 1, 256)
    mixed = np.stack([np.interp(places, np.linspace(0, 1, len(stops)), part) for part in stops.T], axis=-1)
    np.testing.assert_allclose(mixed, colormaps[published](places)[:, :3], atol=0.025)


def lightness(colours: np.ndarray) -> np.ndarray:
    """L* of CIELAB for sRGB."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126, 0.7152, 0.0722]
    return np.asarray(116 * np.where(y > 0.008856, np.cbrt(y), 7.787 * y + 16 / 116) - 16)


#: Vision without one kind of cones, in linear RGB (Machado, Oliveira & Fernandes 2009, severity 1).
MISSING_CONES = {
    "red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


@pytest.mark.parametrize("cones", [None, *MISSING_CONES])
def test_even_steps_of_the_colours_are_even_steps_of_lightness(cones: str | None) -> None:
    colours = rgb(page.COLOURS["numbers"])
    if cones is not None:
        linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
        seen = (linear @ np.transpose(MISSING_CONES[cones])).clip(0, 1)
        colours = np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)
    steps = np.diff(lightness(colours))
    assert steps.min() > 0.9  # of the 3 that each would have
    assert steps.max() < 3.6


def test_differences_grow_darker_to_both_sides() -> None:
    light = lightness(rgb(page.COLOURS["differences"]))
    assert light.argmax() == 5
    assert (np.diff(light[:6]) > 0).all()
    assert (np.diff(light[5:]) < 0).all()
