# SPDX-License-Identifier: BSD-3-Clause
"""The description in sdist and wheel: README.md without links and images that are paths.

A package index shows it outside the repository, where such a link leads nowhere. scikit-build-core
calls this (pyproject.toml, ``[tool.scikit-build.metadata.readme]``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_README = Path(__file__).resolve().parents[1] / "README.md"
_LINK_TO_A_PATH = r"!?\[([^\]]*)\]\((?!https?://|#)[^)\s]+\)"
_IMAGE_THAT_LEADS_ON = rf"\[{_LINK_TO_A_PATH}\]\([^)\s]+\)"


def without_paths(markdown: str) -> str:
    """Remove paragraphs that are one such image or link; keep the text of other such links.

    >>> without_paths("# A\\n\\n[中文](README.zh-CN.md)\\n\\nSee [here](docs/a.md), [x](https://example.org).")
    '# A\\n\\nSee here, [x](https://example.org).'
    """
    alone = f"{_LINK_TO_A_PATH}|{_IMAGE_THAT_LEADS_ON}"
    paragraphs = [p for p in markdown.split("\n\n") if not re.fullmatch(alone, p.strip())]
    return re.sub(_LINK_TO_A_PATH, r"\1", "\n\n".join(paragraphs))


def dynamic_metadata(field: str, settings: Mapping[str, object]) -> dict[str, str]:
    """The hook of scikit-build-core."""
    if field != "readme" or settings:
        raise ValueError(f"only readme can be made here, without settings; got {field} with {dict(settings)}")
    return {"content-type": "text/markdown", "text": without_paths(_README.read_text(encoding="utf-8"))}
