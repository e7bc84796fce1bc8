# SPDX-License-Identifier: BSD-3-Clause
"""The text of a page, for tests of what pages say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def page(name: str) -> str:
    """Its text on one line, without the marks of code, comments, emphasis and links to the glossary."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
    return re.sub(r"\s+", " ", re.sub(r"\{term\}|[`*]", "", text))
