# SPDX-License-Identifier: BSD-3-Clause
"""Checks, before a run begins, of what cannot be done at all."""

from __future__ import annotations

from .._memory import amount, machine_memory

#: Bytes for each key of a row that the core walks through: sums for each 2^18 of them.
STREAMED = 128 / 2**18

_MOST = 2**53


def check_count(name: str, value: int) -> int:
    """`value`, unless float64, in which laws and means are computed, has no place for it."""
    if value > _MOST:
        raise ValueError(f"{name} must be at most 2^53, beyond which float64 skips integers, got {value}")
    return value


def check_memory(name: str, value: int, size: float) -> None:
    """Refuse a parameter that makes arrays of `size` bytes, if the machine has not as many."""
    there = machine_memory()
    if size > there:
        raise ValueError(
            f"{name} must be small enough for the memory of this machine, {amount(there)}, got {value}, "
            f"whose arrays take {amount(size)}"
        )
