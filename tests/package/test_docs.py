# SPDX-License-Identifier: BSD-3-Clause
"""README examples print what they say, pages name what exists, and the site builds without warnings."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import attnscale as at
import numpy as np
import pytest
from attnscale.cli import build_parser

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)],
)


def page_name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_readme_prints_what_it_says(readme):
    result = doctest.testfile(str(ROOT / readme), module_relative=False, encoding="utf-8")
    assert result.attempted >= 3
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_between_pages_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" in target:
            continue
        # The build copies the notebooks beside the page.
        found = (page.parent / target, ROOT / "notebooks" / Path(target).name)
        assert any(path.exists() for path in found), f"{page_name(page)} links to {target}"


# tests/sweep/test_sweep_cluster.py runs the page that needs a cluster.
HOW_TO = sorted(page for page in (DOCS / "how-to").glob("*.md") if page.stem != "cluster")


@pytest.mark.parametrize("page", HOW_TO, ids=page_name)
def test_how_to_code_runs(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 2, 30, 8))
    names = {"query": query, "key": key, "value": value, "q": query, "n_total": 30, "head_dim": 8}
    names["chunks"] = [(key[:, :10], value[:, :10]), (key[:, 10:], value[:, 10:])]
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    ours = [block for block in blocks if "import attnscale as at" in block]
    assert ours
    for block in ours:
        exec(compile(block, page_name(page), "exec"), names)
    if "state" in names:
        whole = at.attention_entropy(query, key, scale="log_n")
        np.testing.assert_allclose(names["state"].entropy, whole, atol=1e-12)


def test_every_public_name_is_in_the_reference():
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    for name in (*at.__all__, *at.laws.__all__, *at.theory.__all__, *at.variants.__all__):
        if name not in ("__version__",):
            assert re.search(rf"\b{name}\b", text), name


def test_every_command_is_on_its_page():
    text = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    commands = next(action.choices for action in build_parser()._actions if action.choices)
    for command in commands:
        assert f"| `{command}" in text, command


def test_claims_name_notebooks_that_show_them():
    text = (DOCS / "claims.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (T\d+) \|.*\(tutorials/(\w+)\.ipynb\)", text, flags=re.MULTILINE)
    shown = [*range(1, 5), *range(6, 15), 16, *range(18, 27), *range(28, 34)]
    assert [claim for claim, _ in rows] == [f"T{i}" for i in shown]
    for claim, notebook in rows:
        assert claim in (ROOT / "notebooks" / f"{notebook}.py").read_text(encoding="utf-8")


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    for needed in ("sphinx", "myst_nb", "furo", "numpydoc"):
        pytest.importorskip(needed)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    result = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    page = (tmp_path / "html" / "tutorials" / "01_attention_and_entropy.html").read_text(encoding="utf-8")
    assert page.count("<img") >= 5


def test_every_law_has_its_place_on_the_page_of_its_family(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from _law_pages import write_law_pages

    (tmp_path / "of_a_law_that_is_gone.md").write_text("# Gone", encoding="utf-8")
    write_law_pages(tmp_path)
    pages = {page.name: page.read_text(encoding="utf-8") for page in tmp_path.glob("*.md")}
    assert "of_a_law_that_is_gone.md" not in pages
    assert "| multiplier | 1.0000 | 1.3333 | 1.6667 | 1.8889 |" in pages["log_n.md"]
    text = "".join(pages.values())
    for name in at.laws.names():
        law = at.laws._registry.class_of(name)
        if law is not None:
            assert text.count(f"| name | `{name}` |") == 1
            assert law.source in text
