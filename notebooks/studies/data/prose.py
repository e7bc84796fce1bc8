# SPDX-License-Identifier: BSD-3-Clause
"""English prose: the documents of a folder, or the docstrings of Python's library."""

from __future__ import annotations

import ast
import gzip
import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

from attnscale._base.checks import shown

from .corpus import source_files

#: Name of the docstrings of Python's library, in place of a folder.
DOCSTRINGS = "docstrings"
#: Packages of Debian whose documents are English prose: books, guides, policies, FAQs.
PACKAGES = (
    "anarchism",
    "apt-doc",
    "aptitude-doc-en",
    "debian-faq",
    "debian-handbook",
    "debian-history",
    "debian-kernel-handbook",
    "debian-policy",
    "debian-reference-en",
    "debmake-doc",
    "developers-reference",
    "doc-debian",
    "exim4-doc-html",
    "gitmagic",
    "gnu-standards",
    "harden-doc",
    "installation-guide-amd64",
    "jargon-text",
    "maint-guide",
    "mh-book",
    "png-definitive-guide",
)
_SUFFIXES = (".html", ".htm", ".txt", ".html.gz", ".txt.gz")
#: Words common in every English text and rare elsewhere: a sixth of prose or more.
_COMMON = frozenset(
    ("the", "of", "and", "to", "a", "in", "is", "that", "it", "for", "as", "with", "be", "are", "this")
)
_COMMON_SHARE = 1 / 6
_LEAST_WORDS = 8  # in a paragraph; menus, headings and entries of lists are shorter
_LEAST_CHARACTERS = 2000  # of prose in a file
_WORD = re.compile(r"[^\W\d_]+")
_CLOSED = frozenset({"head", "script", "style", "pre", "table", "nav"})
_INLINE = frozenset(
    ("a", "abbr", "acronym", "b", "big", "cite", "code", "em", "font", "i", "kbd", "q", "s", "samp", "small")
) | frozenset(("span", "strong", "sub", "sup", "tt", "u", "var"))


def prose_files(corpus: str) -> list[tuple[str, bytes]]:
    """Names and texts of the files of a corpus, shuffled by the hash of the name.

    A file consists of the prose paragraphs of a document. Paragraphs of an earlier file are left out, so that
    a book in two formats counts once.

    Parameters
    ----------
    corpus : str
        "docstrings", or a folder, of which all text and HTML documents are read, also compressed ones.

    Raises
    ------
    ValueError
        The folder does not exist or has no English prose; the message says how to get some.
    """
    documents = _docstrings() if corpus == DOCSTRINGS else _documents(Path(corpus))
    seen: set[bytes] = set()
    files = []
    for name, paragraphs in documents:
        kept = [each for each in paragraphs if is_prose(each) and _new(each, seen)]
        text = "\n".join(kept)
        if len(text) >= _LEAST_CHARACTERS:
            files.append((name, text.encode()))
    if not files:
        raise ValueError(_missing(corpus))
    return files


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph is English prose, by its length and its share of the commonest words.

    Examples
    --------
    >>> is_prose("The text of a paragraph is a part of the corpus if it has the words of English.")
    True
    >>> is_prose("Previous Up Next Contents Index Search Home License")
    False
    """
    words = _WORD.findall(paragraph.lower())
    return len(words) >= _LEAST_WORDS and sum(w in _COMMON for w in words) >= _COMMON_SHARE * len(words)


def html_paragraphs(text: str) -> list[str]:
    """The paragraphs of an HTML document without its head, menus, tables and listings.

    Examples
    --------
    >>> html_paragraphs("<head><title>x</title></head><p>One <b>paragraph</b>.<pre>ls</pre><p>Two &amp; more")
    ['One paragraph.', 'Two & more']
    """
    parser = _Paragraphs()
    parser.feed(text)
    parser.close()
    return _joined("".join(parser.parts).split("\0"))


class _Paragraphs(HTMLParser):
    """Collects the text outside of closed elements; "\\0" stands between paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.inside: list[str] = []  # ignored elements that are open, innermost last

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _CLOSED:
            self.inside.append(tag)
        if tag not in _INLINE:
            self.parts.append("\0")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.inside:
            del self.inside[self.inside.index(tag) :]
        if tag not in _INLINE:
            self.parts.append("\0")

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.parts.append(data)


def _documents(folder: Path) -> Iterator[tuple[str, list[str]]]:
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.name.endswith(_SUFFIXES) and path.is_file()
    }
    for name in sorted(paths, key=_order):
        content = paths[name].read_bytes()
        text = (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8", "replace")
        yield name, html_paragraphs(text) if ".htm" in paths[name].name else _of_plain(text)


def _docstrings() -> Iterator[tuple[str, list[str]]]:
    """The docstrings of each file of Python's library, in the order of the file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for name, content in source_files(None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old files: invalid escapes
            tree = ast.parse(content)
        found = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
        yield name, _of_plain("\n\n".join(found))


def _of_plain(text: str) -> list[str]:
    return _joined(re.split(r"\n\s*\n", text))


def _joined(paragraphs: Iterable[str]) -> list[str]:
    """Non-empty paragraphs, each in one line."""
    return [line for each in paragraphs if (line := " ".join(each.split()))]


def _new(paragraph: str, seen: set[bytes]) -> bool:
    """Whether a paragraph with these words is new; marks it as seen."""
    key = hashlib.sha256(" ".join(_WORD.findall(paragraph.lower())).encode()).digest()
    found = key not in seen
    seen.add(key)
    return found


def _order(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _missing(corpus: str) -> str:
    return (
        f"corpus must be {DOCSTRINGS!r} or a folder with English prose (.txt or .html), "
        f"got {shown(corpus)}, which has none; Debian's packages bring some, and nothing is installed by: "
        f"mkdir -p {corpus}; cd {corpus}; apt-get download {' '.join(PACKAGES)}; "
        "for each in *.deb; do dpkg-deb -x $each .; done"
    )
