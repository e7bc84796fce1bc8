# SPDX-License-Identifier: BSD-3-Clause
"""Laws as they are written on a command line: NAME, NAME(parameter=value) or a number."""

from __future__ import annotations

import re

from .. import laws
from .._io import InputError
from ..laws._registry import with_length

__all__ = ["LAW_HELP", "read_law"]

LAW_HELP = "NAME, 'NAME(parameter=value)' or a number, which multiplies q . k"


def read_law(text: str, train_length: float | None = None) -> laws.Law:
    """The law of a spelling; where it leaves a training length open, with this one.

    Examples
    --------
    >>> read_law("log_n(base=1024)")
    LogN(base=1024.0, floor=1.0)
    """
    try:
        return laws.get(text) if train_length is None else with_length(text, train_length)
    except (ValueError, TypeError) as error:
        raise InputError(_as_spelled(str(error))) from None


def _as_spelled(message: str) -> str:
    """A call of Python as it is written here: laws.get('constant', value=...) is constant(value=...)."""
    return re.sub(r"laws\.get\('(\w+)', ([^)]*)\)", r"'\1(\2)'", message)
