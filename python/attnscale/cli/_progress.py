# SPDX-License-Identifier: BSD-3-Clause
"""One line on a terminal that tells what is being done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_line"]


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A function that shows a text in the place of the last one; it does nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    try:
        yield _overwrite
    finally:
        _overwrite("")


def _overwrite(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
