# SPDX-License-Identifier: BSD-3-Clause
"""Versions of other packages, compared by their first three numbers."""

from __future__ import annotations

import re


def is_older(found: str, oldest: str) -> bool:
    """Whether a version such as ``2.5.1+cpu`` comes before another."""
    first, second = (tuple(map(int, re.findall(r"\d+", each)[:3])) for each in (found, oldest))
    return first < second


def too_old(name: str, package: str, found: str, oldest: str) -> str | None:
    """The words that refuse a package which `name` needs in a newer version, or None."""
    if not is_older(found, oldest):
        return None
    wanted = f"{package}>={oldest}"
    return f"{name} needs {package} {oldest} or newer, got {found}: pip install '{wanted}'"
