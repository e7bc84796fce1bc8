# SPDX-License-Identifier: BSD-3-Clause
"""Ctrl-C between two steps of a training, so that the state of the last step can be kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ctrl_c_between_steps() -> Iterator[list[int]]:
    """A list that Ctrl-C fills, instead of ending the step that runs; the block then ends at its next look.

    After the block KeyboardInterrupt is raised, as ever. A second Ctrl-C raises at once. Where the signal is
    not Python's own to handle, in another thread or with a handler of the caller's, nothing is changed.
    """
    asked: list[int] = []
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, usual)
    if asked:
        raise KeyboardInterrupt
