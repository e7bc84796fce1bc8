# SPDX-License-Identifier: BSD-3-Clause
"""README examples print what they say, and pages name what exists."""

from __future__ import annotations

import ast
import doctest
import re
import tomllib
from functools import cache
from pathlib import Path

import attnscale as at
import numpy as np
import pytest
from attnscale.cli import build_parser
from pages import with_lists

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)],
)


def page_name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "docs/five-minutes.md"])
def test_a_first_look_prints_what_it_says(page):
    result = doctest.testfile(str(ROOT / page), module_relative=False, encoding="utf-8")
    assert result.attempted >= 3
    assert result.failed == 0


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_what_is_here_has_eight_lines_with_a_link_each(page):
    rows = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("| ")][
        1:
    ]
    assert [row.count("](") for row in rows] == [1] * 8


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_between_pages_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" in target:
            continue
        # The build copies the notebooks beside the page.
        found = (page.parent / target, ROOT / "notebooks" / Path(target).name)
        assert any(path.exists() for path in found), f"{page_name(page)} links to {target}"


# Run by tests/sweep/test_sweep_cluster.py, test_i_have.py, tests/comparison/test_two_engines_page.py and
# tests/models/test_does_not_fit_page.py.
ELSEWHERE = ("cluster", "long-context", "two-engines", "does-not-fit")
HOW_TO = sorted(page for page in (DOCS / "how-to").glob("*.md") if page.stem not in ELSEWHERE)


@pytest.mark.jax
def test_the_page_of_jax_prints_what_it_says():
    pytest.importorskip("jax")
    result = doctest.testfile(str(DOCS / "reference" / "jax.md"), module_relative=False, encoding="utf-8")
    assert result.attempted >= 5
    assert result.failed == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # of nn.Transformer with padding
@pytest.mark.parametrize("page", HOW_TO, ids=page_name)
def test_how_to_code_runs(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 2, 30, 8))
    names = {"query": query, "key": key, "value": value, "q": query, "n_total": 30, "head_dim": 8}
    names["engine"] = lambda q, k, v: (at.attention(q, k, v), at.attention_statistics(q, k).lse / np.log(2))
    names["chunks"] = [(key[:, :10], value[:, :10]), (key[:, 10:], value[:, 10:])]
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    ours = [block for block in blocks if "import attnscale as at" in block]
    assert ours
    for block in ours:
        exec(compile(block, page_name(page), "exec"), names)
    if "state" in names:
        whole = at.attention_entropy(query, key, scale="log_n")
        np.testing.assert_allclose(names["state"].entropy, whole, atol=1e-12)


MODULES = (
    *("audit", "conformance", "conformance.engines", "datasets", "experiments", "jax", "laws", "montecarlo"),
    *("normalizers", "plot", "probe", "reference", "theory", "torch", "torch.nn", "variants"),
    "variants.score_functions",
)


def names_of(path):
    """``__all__``, read from the file: torch and matplotlib need not be installed."""
    folder = ROOT / "python" / "attnscale" / path.replace(".", "/")
    source = (folder / "__init__.py") if folder.is_dir() else folder.with_suffix(".py")
    listed = re.search(r"^__all__ = (\[.*?\])", source.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return ast.literal_eval(listed[1])


@cache
def documented():
    """Full names of what autodoc is told to show, on any page of the reference."""
    found = set()
    for page in (DOCS / "reference").glob("*.md"):
        module, text = "", with_lists(page)
        directives = re.findall(r"^\.\. (\w+):: ([\w.]+)$", text, flags=re.MULTILINE)
        for directive, name in directives:
            if directive in ("currentmodule", "automodule"):
                module = name
                found.add(name)
            elif directive.startswith("auto") and not name.startswith("studies."):
                found.add(name if name.startswith("attnscale.") else f"{module}.{name}")
    return found


def public_names():
    """``attnscale.name`` and ``attnscale.module.name`` of every ``__all__``."""
    names = [f"attnscale.{name}" for name in at.__all__ if name != "__version__"]
    return names + [f"attnscale.{path}.{name}" for path in MODULES for name in names_of(path)]


def test_every_public_module_is_looked_through():
    submodules = at._SUBMODULES
    root = ROOT / "python" / "attnscale"
    public = [(path, name) for path in submodules for name in names_of(path)]
    nested = {
        f"{path}.{name}"
        for path, name in public
        if (root / path / f"{name}.py").exists() or (root / path / name).is_dir()
    }
    nested -= {f"{path}.{name}" for path, name in public if callable(getattr(getattr(at, path), name))}
    assert set(MODULES) == submodules | nested


def test_the_reference_has_every_public_name_and_no_other():
    private = {f"attnscale{each}" for each in ("", ".jax", ".torch", ".experiments", "._base.runtime.Config")}
    assert sorted(set(public_names()) - documented()) == []
    assert sorted(documented() - set(public_names()) - private) == []


def test_every_extra_is_in_the_table():
    """Packages that an extra brings stand in its row, and no others."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    page = (DOCS / "installation.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, flags=re.MULTILINE))
    extras = settings["project"]["optional-dependencies"]
    assert set(rows) == set(extras)
    for extra, requirements in extras.items():
        own = [name for each in requirements for name in re.findall(r"attnscale\[(.*)\]", each)]
        others = [re.split(r"[\[<>=]", each)[0] for each in requirements if not each.startswith("attnscale[")]
        told = set(re.findall(r"[\w-]+", rows[extra])) - {"and"}
        assert told == {*others, *(name for names in own for name in names.split(","))}, extra


def test_every_command_is_on_its_page():
    text = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    commands = next(action.choices for action in build_parser()._actions if action.choices)
    for command in commands:
        assert f"| `{command}" in text, command


CLAIM_TABLES, CLAIM_DETAILS = (DOCS / "claims.md").read_text(encoding="utf-8").split("## Details")


def claim_sections():
    """The text under each id, on one line."""
    parts = re.split(r"^### (\w+)$", CLAIM_DETAILS, flags=re.MULTILINE)[1:]
    return {claim: " ".join(text.split()) for claim, text in zip(parts[::2], parts[1::2], strict=True)}


def claim_rows():
    """(claim in words, verdict, number, ids that it leads to) of every row of the tables."""
    lines = [line for line in CLAIM_TABLES.splitlines() if line.startswith("| ") and "](#" in line]
    rows = [re.fullmatch(r"\| (.+) \| (.+) \| (.*?) ?\| (\[.+\)) \|", line).groups() for line in lines]
    for *_, links in rows:
        for claim, anchor in re.findall(r"\[(\w+)\]\(#(\w+)\)", links):
            assert anchor == claim.lower()
    return [(*row, re.findall(r"\[(\w+)\]", links)) for *row, links in rows]


def test_claims_name_notebooks_that_show_them():
    sections = claim_sections()
    assert list(sections) == [f"T{i}" for i in range(1, 35)] + [f"A{i}" for i in range(1, 16)]
    for claim, text in sections.items():
        notebook = re.search(r"\[Notebook \d+\]\(tutorials/(\w+)\.ipynb\)", text)
        assert notebook, claim
        if claim.startswith("T"):
            assert claim in (ROOT / "notebooks" / f"{notebook[1]}.py").read_text(encoding="utf-8")


def test_every_claim_is_in_the_tables_in_words():
    rows = claim_rows()
    assert {claim for *_, claims in rows for claim in claims} == set(claim_sections())
    for words, verdict, _, claims in rows:
        assert not re.search(r"\b[TA]\d+\b", words + verdict), claims
        assert len(words.split()) <= 25, claims


def test_numbers_of_the_tables_are_those_of_the_details():
    """Each decimal stands in its section, there with more digits perhaps."""
    sections = claim_sections()
    for _, _, number, claims in claim_rows():
        text = " ".join(sections[claim] for claim in claims)
        known = [float(each) for each in re.findall(r"\d+\.\d+", text)]
        for each in re.findall(r"\d+\.\d+", number):
            digits = len(each.partition(".")[2])
            assert any(f"{value:.{digits}f}" == each for value in known), (claims, each)


def test_terms_that_pages_link_to_are_in_the_glossary():
    listed = (DOCS / "glossary.md").read_text(encoding="utf-8").split("```{glossary}")[1]
    terms = set(re.findall(r"^(\w.*)$", listed, flags=re.MULTILINE))
    used = set()
    for page in PAGES:
        text = " ".join(page.read_text(encoding="utf-8").split())
        used |= {target or said for said, target in re.findall(r"\{term\}`([^`<]+?)(?: <([^>`]+)>)?`", text)}
    assert len(used) > 10
    assert used - terms == set()


def test_every_law_has_its_place_on_the_page_of_its_family(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
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
