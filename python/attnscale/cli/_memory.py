# SPDX-License-Identifier: BSD-3-Clause
"""Whether what a command is asked for fits in this machine."""

from __future__ import annotations

from .._io import InputError
from .._memory import amount, machine_memory

__all__ = ["refuse_beyond_memory"]


def refuse_beyond_memory(what: str, size: float) -> None:
    """Bad input if so many bytes are more than the machine has; a system without a count has enough."""
    there = machine_memory()
    if size > there:
        raise InputError(f"{what} would take {amount(size)} of memory, this machine has {amount(there)}")
