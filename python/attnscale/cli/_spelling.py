# SPDX-License-Identifier: BSD-3-Clause
"""Laws as they are written on a command line: NAME, NAME(parameter=value) or a number."""

from __future__ import annotations

import re
from typing import Any

from .. import _spelling, laws
from .._io import InputError

__all__ = ["LAW_HELP", "read_call", "read_law"]

LAW_HELP = "NAME, 'NAME(parameter=value)' or a number, which multiplies q . k"


def read_law(text: str) -> laws.Law:
    """The law written as NAME or NAME(parameter=value, ...), or a number.

    Examples
    --------
    >>> read_law("log_n(base=1024)")
    LogN(base=1024.0, floor=1.0)
    """
    try:
        return laws.get("constant", value=float(text))
    except ValueError:
        name, parameters = read_call(text)
    try:
        return laws.get(name, **parameters)
    except (ValueError, TypeError) as error:
        raise InputError(_as_spelled(str(error))) from None


def _as_spelled(message: str) -> str:
    """A call of Python as it is written here: laws.get('constant', value=...) is constant(value=...)."""
    return re.sub(r"laws\.get\('(\w+)', ([^)]*)\)", r"'\1(\2)'", message)


def read_call(text: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a law's spelling; the parameters are Python literals."""
    try:
        return _spelling.read_call(text, "a law")
    except ValueError as error:
        raise InputError(str(error)) from None
