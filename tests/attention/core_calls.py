# SPDX-License-Identifier: BSD-3-Clause
"""The passes of the core that a call enters, seen from outside."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["entered"]


def entered(call: Callable[[], Any]) -> list[str]:
    """Names of the functions in C that the call enters."""
    names: list[str] = []

    def note(frame: Any, event: str, function: Any) -> None:
        names.extend([function.__name__] if event == "c_call" else [])

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names
