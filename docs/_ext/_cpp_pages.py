# SPDX-License-Identifier: BSD-3-Clause
"""A page for each public C++ header, generated from its declarations and comments."""

from __future__ import annotations

import re
from pathlib import Path

from _cpp_headers import Entry, Header, HeaderError, read_header
from _generated import write_generated

#: Programs of cpp/examples that serve as the example of a header; other examples are in the C++ tests.
PROGRAMS = {
    "attention.hpp": "entropy",
    "attention_gradients.hpp": "gradients",
    "experiments.hpp": "dot_product_variance",
    "hybrid.hpp": "variants",
    "johnson_lindenstrauss.hpp": "johnson_lindenstrauss",
    "linear_attention.hpp": "linear_attention",
}


def read_index(readme: str) -> dict[str, str]:
    """Headers that users include, with a description of each, from the table of cpp/README.md."""
    table = readme.split("## include/attnscale: what users include")[1].split("Installed beside them")[0]
    rows = re.findall(r"^\| `(\w+\.hpp)` \| (.*) \|$", table, re.MULTILINE)
    return {name: what for name, what in rows if name != "attnscale.hpp"}


def read_examples(tests: str) -> dict[str, str]:
    """Bodies of the cases "example of NAME" of a C++ test, with checks turned into assertions."""
    case = re.compile(r'^TEST_CASE\("example of (\w+\.hpp)"\) \{\n(.*?)\n\}$', re.MULTILINE | re.DOTALL)
    found = case.findall(tests)
    return {name: _dedented(body).replace("CHECK(", "assert(") for name, body in found}


def _dedented(body: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in body.splitlines())


def write_cpp_pages(folder: Path, cpp: Path) -> None:
    """Write one page for each header of the table, and remove old pages."""
    index = read_index((cpp / "README.md").read_text(encoding="utf-8"))
    examples = read_examples((cpp / "tests" / "test_user_code.cpp").read_text(encoding="utf-8"))
    wrong = index.keys() ^ (examples.keys() | PROGRAMS.keys())
    if wrong or examples.keys() & PROGRAMS.keys():
        raise HeaderError(f"every header has one example, got {sorted(wrong)} without or beside")
    written = {}
    for name, what in index.items():
        header = read_header((cpp / "include" / "attnscale" / name).read_text(encoding="utf-8"), name)
        written[f"{name.removesuffix('.hpp')}.md"] = _page(name, what, header, examples.get(name))
    write_generated(folder, written)


def cpp_index(cpp: Path) -> str:
    """A row for each header of the table, with a link to its page."""
    index = read_index((cpp / "README.md").read_text(encoding="utf-8"))
    rows = [
        f"| [`{name}`](../cpp/{name.removesuffix('.hpp')}.md) | {_escaped(what)} |"
        for name, what in index.items()
    ]
    return "\n".join(["| header | |", "|---|---|", *rows])


def _page(name: str, what: str, header: Header, example: str | None) -> str:
    program = PROGRAMS.get(name)
    shown = (
        f"```{{literalinclude}} ../../cpp/examples/{program}.cpp\n:language: cpp\n:lines: 2-\n```"
        if example is None
        else _block(f"#include <attnscale/attnscale.hpp>\n\n{example}")
    )
    parts = [f"# `{name}`", f"{_escaped(what)}: `#include <attnscale/{name}>`", _prose(header.text)]
    parts += [f"## Example\n\n{shown}", *(_section(entry) for entry in header.entries)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(entry: Entry) -> str:
    title = ", ".join(f"`{name}`" for name in entry.names)
    return f"## {title}\n\n{_block(chr(10).join(entry.code))}\n\n{_prose(entry.text)}"


def _block(code: str) -> str:
    return f"```cpp\n{code}\n```"


def _prose(lines: list[str]) -> str:
    """Paragraphs of a comment; indented text is shown verbatim."""
    parts: list[tuple[bool, list[str]]] = []
    for line in lines:
        indented = line.startswith("  ") if line else bool(parts) and parts[-1][0]
        if not line and not indented:
            parts.append((False, []))
        elif parts and parts[-1][0] == indented:
            parts[-1][1].append(line)
        else:
            parts.append((indented, [line]))
    shown = (
        _block(_dedented("\n".join(each)).strip("\n")) if literal else _escaped("\n".join(each))
        for literal, each in parts
        if any(each)
    )
    return "\n\n".join(shown)


def _escaped(text: str) -> str:
    """Escape all markup in a comment except `code`, also at the beginning of a line."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([\\`*_{}\[\]<>$|#~])", r"\\\1", each) for each in parts[::2]]
    return re.sub(r"^(\d*)(?=[+%-]|[.)] )", r"\1\\", "".join(parts), flags=re.MULTILINE)
