"""Frequencies of rotary positions, in the words of their papers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def plain(base: float, rotated: int) -> Array:
    """Angles from word to word without scaling."""
    return float(base) ** (-np.arange(0, rotated, 2) / rotated)


def yarn(
    base: float,
    rotated: int,
    factor: float,
    original: int,
    truncate: bool = True,
    turns: tuple[float, float] = (32, 1),
) -> Array:
    """YaRN: pairs that turn often within the original length stay, slow ones are divided by the factor."""
    ends = [rotated * math.log(original / (2 * math.pi * each)) / (2 * math.log(base)) for each in turns]
    low, high = (math.floor(ends[0]), math.ceil(ends[1])) if truncate else ends
    slow = np.clip((np.arange(rotated // 2) - low) / (high - low), 0, 1)
    return plain(base, rotated) * (1 - slow + slow / factor)


def factor_of(size: float, mscale: float = 1.0) -> float:
    """YaRN's factor of a score."""
    return (0.1 * mscale * math.log(size) + 1) ** 2
