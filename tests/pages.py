# SPDX-License-Identifier: BSD-3-Clause
"""The text of a page, for tests of what pages say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@cache
def page(name: str) -> str:
    """Its text on one line, without the marks of code, comments, emphasis and links to the glossary."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
    return re.sub(r"\s+", " ", re.sub(r"\{term\}|[`*]", "", text))


@cache
def declared() -> dict[str, str]:
    """The lists that pages include, as the build writes them."""
    scope: dict[str, Any] = {}
    exec((DOCS / "_ext" / "_declared_tables.py").read_text(encoding="utf-8"), scope)
    found: dict[str, str] = scope["declared_texts"]()
    return found


def with_lists(path: Path) -> str:
    """A page with the lists that it includes."""
    text = path.read_text(encoding="utf-8")
    for name, written in declared().items():
        text = text.replace(f"{{include}} ../_declared/{name}", f"\n{written}")
    return text
