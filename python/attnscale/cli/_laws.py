# SPDX-License-Identifier: BSD-3-Clause
"""Laws as a command line spells them."""

from __future__ import annotations

from collections.abc import Iterable

from .. import laws
from .._base.checks import InputError
from ..laws._registry import with_length


def read_law(text: str, train_length: float | None = None) -> laws.Law:
    """The law of a spelling; `train_length` fills in a training length that it leaves open.

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
    """Laws by spelling, as tables and files name them, without repetition.

    Examples
    --------
    >>> list(read_laws(["log_n(base=512)", "log_n", "log_n(base=1e3)"]))
    ['log_n', 'log_n(base=1000)']
    """
    return {law.spelling: law for law in (read_law(text, train_length) for text in texts)}
