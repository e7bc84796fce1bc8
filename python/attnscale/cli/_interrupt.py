# SPDX-License-Identifier: BSD-3-Clause
"""Ctrl-C: what is finished is not lost."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["finished"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def finished(
    options: argparse.Namespace, items: Iterable[_Item], compute: Callable[[_Item], _Result]
) -> dict[_Item, _Result]:
    """What `compute` makes of each item; Ctrl-C ends it with those that are there, and with status 130.

    Examples
    --------
    >>> finished(argparse.Namespace(), [1, 2], lambda n: n * n)
    {1: 1, 2: 4}
    """
    found: dict[_Item, _Result] = {}
    try:
        for item in items:
            found[item] = compute(item)
    except KeyboardInterrupt:
        if not found:
            raise
        options.interrupted = True
    return found
