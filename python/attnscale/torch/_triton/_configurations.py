# SPDX-License-Identifier: BSD-3-Clause
"""Sizes of tiles and numbers of warps for a call, by the width of its rows and its type."""

from __future__ import annotations

from ._launch import Configuration
from ._problem import Problem

__all__ = ["configurations"]


def configurations(kernel: str, problem: Problem) -> tuple[Configuration, ...]:
    """The configurations among which a call chooses."""
    return (Configuration(64, 32, 4, 2),)
