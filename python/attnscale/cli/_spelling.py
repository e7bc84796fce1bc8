# SPDX-License-Identifier: BSD-3-Clause
"""Laws as they are written on a command line: NAME or NAME(parameter=value)."""

from __future__ import annotations

from typing import Any

from .. import _spelling, laws
from .._io import InputError

__all__ = ["read_call", "read_law"]


def read_law(text: str) -> laws.Law:
    """The law written as NAME or NAME(parameter=value, ...).

    Examples
    --------
    >>> read_law("log_n(base=1024)")
    LogN(base=1024.0, floor=1.0)
    """
    name, parameters = read_call(text)
    try:
        return laws.get(name, **parameters)
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from None


def read_call(text: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a law's spelling; the parameters are Python literals."""
    try:
        return _spelling.read_call(text, "a law")
    except ValueError as error:
        raise InputError(str(error)) from None
