# SPDX-License-Identifier: BSD-3-Clause
"""Laws as they are written on a command line: NAME, NAME(parameter=value) or a number."""

from __future__ import annotations

from collections.abc import Iterable

from .. import laws
from .._io import InputError
from ..laws._registry import with_length

LAW_HELP = "NAME, 'NAME(parameter=value)' or a number, which multiplies q . k"


def read_law(text: str, train_length: float | None = None) -> laws.Law:
    """The law of a spelling, with `train_length` where the spelling leaves a training length open.

    Examples
    --------
    >>> read_law("log_n(base=1024)")
    LogN(base=1024.0, floor=1.0)
    """
    try:
        return laws.get(text) if train_length is None else with_length(text, train_length)
    except (ValueError, TypeError) as error:
        said = str(error)
        raise InputError(said if "law" in said else f"law {text!r}: {said}") from None


def read_laws(texts: Iterable[str], train_length: float | None = None) -> dict[str, laws.Law]:
    """Laws by their spelling, as tables and files name them; a law that is given twice is there once.

    Examples
    --------
    >>> list(read_laws(["log_n(base=512)", "log_n", "log_n(base=1e3)"]))
    ['log_n', 'log_n(base=1000)']
    """
    return {law.spelling: law for law in (read_law(text, train_length) for text in texts)}
