# SPDX-License-Identifier: BSD-3-Clause
"""The pages of the articles: the same in both languages, and no number that nothing asserts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "articles"
ARTICLES = ("000", "001", "002", "003", "004")
CLAIMS = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
SOURCES = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("[0-9]*.py"))
ASSERTED = {float(number) for number in re.findall(r"\d+\.\d+", SOURCES + CLAIMS)}
#: Numbers that an article prints and the page repeats: nothing to assert.
OF_THE_ARTICLE = re.compile(r"43\.27.*?13\.58|\[(?:arXiv|kexue)[^\]]*\]\([^)]*\)|archives/\d+")


def rows(page):
    """(statement, verdict, where) of every row of its tables, and their headings."""
    lines = page.read_text(encoding="utf-8").splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in cells if set("".join(row)) != {"-"}]


def pages(article):
    return PAGES / f"{article}.md", PAGES / "zh" / f"{article}.md"


def ids(text):
    return re.findall(r"\b[TA]\d+\b", text)


def decimals(text):
    return sorted(re.findall(r"\d+\.\d+", OF_THE_ARTICLE.sub("", text)))


@pytest.mark.parametrize("article", ARTICLES)
def test_both_languages_say_the_same(article):
    english, chinese = (rows(page) for page in pages(article))
    assert len(english) == len(chinese) > 10
    for ours, theirs in zip(english, chinese, strict=True):
        assert len(ours) == len(theirs) == 3
        assert ids(ours[2]) == ids(theirs[2]), ours
        assert decimals("".join(ours)) == decimals("".join(theirs)), ours
        links = [[Path(link).name for link in re.findall(r"\]\(([^)]+)\)", row[2])] for row in (ours, theirs)]
        assert links[0] == links[1], ours


@pytest.mark.parametrize("article", ARTICLES)
def test_ids_are_claims(article):
    for row in rows(pages(article)[0]):
        for claim in ids("".join(row)):
            assert claim in ids(CLAIMS), row


@pytest.mark.parametrize("article", ARTICLES)
def test_numbers_are_asserted_somewhere(article):
    """Decimals of verdicts stand in a notebook or in the claims, perhaps with more digits."""
    for _, verdict, _ in rows(pages(article)[0]):
        for number in decimals(verdict):
            digits = len(number.partition(".")[2])
            assert any(f"{each:.{digits}f}" == number for each in ASSERTED), (number, verdict)


def test_the_index_lists_the_pages():
    for index in (PAGES / "index.md", PAGES / "zh" / "index.md"):
        text = index.read_text(encoding="utf-8")
        assert re.findall(r"^\| \[(\d{3})\]\(\1\.md\)", text, flags=re.MULTILINE) == list(ARTICLES)


CHINESE = sorted([*(PAGES / "zh").glob("*.md"), ROOT / "README.zh-CN.md"])


def test_the_chinese_readme_agrees_with_the_english_one():
    """Links, examples and commands agree; only pictures and the other README have addresses of their own."""
    ours, theirs = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
    for pattern in (r"\]\(([^)]+)\)", r"^(?:>>>|\.\.\.) +(.+?)(?: +#.*)?$", r"^    ([a-z]+ .+?)(?: +#.*)?$"):
        parts = set(re.findall(pattern, ours, flags=re.MULTILINE)) - {"README.zh-CN.md"}
        assert len(parts) > 5
        assert parts <= set(re.findall(pattern, theirs, flags=re.MULTILINE)), pattern


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_no_line_ends_between_two_chinese_letters(page):
    """A browser would put a space there."""
    assert not re.search(r"[\u4e00-\u9fff]\n[\u4e00-\u9fff]", page.read_text(encoding="utf-8"))


def test_both_languages_put_the_correction_of_rotations():
    """Rotations of one plane commute, which the notes deny."""
    for page in pages("002"):
        assert r"$R_m^\top R_n \ne R_n^\top R_m$" in page.read_text(encoding="utf-8")
