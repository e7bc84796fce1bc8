# SPDX-License-Identifier: BSD-3-Clause
"""Laws as they are written on a command line: NAME, NAME(parameter=value) or a number."""

from __future__ import annotations

from .. import laws
from ..laws._registry import with_length
from ._output import bad_input

__all__ = ["LAW_HELP", "read_law"]

LAW_HELP = "NAME, 'NAME(parameter=value)' or a number, which multiplies q . k"


def read_law(text: str, train_length: float | None = None) -> laws.Law:
    """The law of a spelling; where it leaves a training length open, with this one.

    Examples
    --------
    >>> read_law("log_n(base=1024)")
    LogN(base=1024.0, floor=1.0)
    """
    with bad_input():
        return laws.get(text) if train_length is None else with_length(text, train_length)
