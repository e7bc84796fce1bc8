# SPDX-License-Identifier: BSD-3-Clause
"""Whether what a command is asked for fits in this machine."""

from __future__ import annotations

import os

from .._io import InputError

__all__ = ["refuse_beyond_memory"]

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def refuse_beyond_memory(what: str, size: float) -> None:
    """Bad input if so many bytes are more than the machine has; a system without a count has enough."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return
    if size > there > 0:
        raise InputError(f"{what} would take {_amount(size)} of memory, this machine has {_amount(there)}")


def _amount(size: float) -> str:
    """Three digits and a unit.

    Examples
    --------
    >>> _amount(8e12)
    '7.28 TiB'
    """
    power = 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{size:.3g} {_UNITS[power]}"
