# SPDX-License-Identifier: BSD-3-Clause
"""How much memory this machine has, and sizes as text."""

from __future__ import annotations

import math
import os

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def machine_memory() -> float:
    """Bytes of this machine's memory; infinite on a system that does not count them."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return math.inf
    return there if there > 0 else math.inf


def amount(size: float) -> str:
    """A number of bytes as text with three digits and a unit.

    Examples
    --------
    >>> amount(8e12)
    '7.28 TiB'
    """
    power = 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{size:.3g} {_UNITS[power]}"
