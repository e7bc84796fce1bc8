# SPDX-License-Identifier: BSD-3-Clause
"""Modules that spell attention in the ways of libraries, each with the right answer in float64."""

from . import biases, calls, fused, heads, masks, products
from .base import HEAD_DIM, HEADS, SIZES, WIDTH, Right, Spelling, arranged

__all__ = ["ALL", "HEADS", "HEAD_DIM", "SIZES", "WIDTH", "Right", "Spelling", "arranged"]

#: Every spelling.
ALL: list[type[Spelling]] = [
    kind
    for module in (products, heads, masks, biases, fused, calls)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, Spelling)
    and kind.__module__ == module.__name__
    and kind.is_whole()
]
