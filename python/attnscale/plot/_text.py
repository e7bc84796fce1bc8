# SPDX-License-Identifier: BSD-3-Clause
"""Texts of figures: printed width, line breaks, and numbers at ticks."""

from __future__ import annotations

import math
import re

import numpy as np

_SYMBOL, _MARKUP = re.compile(r"\\[a-z]+"), re.compile(r"\\,|[${}_\\^]")  # of formulas: one letter, and none


def printed(text: str) -> int:
    """Approximate width of a text in letters, with its formulas."""
    return max(len(_MARKUP.sub("", _SYMBOL.sub("x", line))) for line in text.split("\n"))


def in_lines(text: str, width: int) -> str:
    """The text in lines of at most `width` letters, as even as possible; formulas stay whole."""
    count = math.ceil(printed(text) / max(width, 1))
    if count < 2 or "\n" in text:
        return text
    # A lonely "$" is a dollar.
    words = text.split() if text.count("$") % 2 else re.findall(r"(?:\$[^$]*\$|[^\s$])+", text)
    lines = [""]
    each = printed(text) / count
    for word in words:
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and len(lines) < count and printed(longer) - printed(word) / 2 > each:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def plain(value: float) -> str:
    """A number as a tick label.

    Examples
    --------
    >>> plain(65536), plain(2**20), plain(0.25), plain(1e6), plain(1234567)
    ('65536', '$2^{20}$', '0.25', '$10^{6}$', '1.23e6')
    """
    if value < 1e6:
        return f"{value:.6g}"
    for base in (2, 10):
        power = round(float(np.log(value) / np.log(base)))
        if value == base**power:
            return rf"${base}^{{{power}}}$"
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
