# SPDX-License-Identifier: BSD-3-Clause
"""Arrays piece by piece, for work that needs no copy of a whole array."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes of a piece.
PIECE = 2**22


def windows(bounds: Sequence[range], itemsize: int, most: int = PIECE) -> Iterator[tuple[range, ...]]:
    """The indices `bounds` of an array in pieces of at most `most` bytes, the first axis slowest.

    Examples
    --------
    >>> [*windows([range(3), range(2)], itemsize=8, most=32)]
    [(range(0, 2), range(0, 2)), (range(2, 3), range(0, 2))]
    """
    size = math.prod(map(len, bounds)) * itemsize
    axis = 0
    while axis < len(bounds) - 1 and len(bounds[axis]) == 1:
        axis += 1
    if size <= most or len(bounds[axis]) <= 1:
        yield tuple(bounds)
        return
    long = bounds[axis]
    step = max(1, len(long) * most // size)
    for start in range(0, len(long), step):
        part = [*bounds[:axis], long[start : start + step], *bounds[axis + 1 :]]
        yield from windows(part, itemsize, most)


def slices(bounds: Sequence[range]) -> tuple[slice, ...]:
    """The indices as slices."""
    return tuple([slice(each.start, each.stop, each.step) for each in bounds])


def pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Parts of an array, as views, in C order."""
    for window in windows([*map(range, array.shape)], array.itemsize):
        yield array[slices(window)]


def all_finite(array: NDArray[Any]) -> bool:
    """Whether an array has neither NaN nor infinity."""
    return all(bool(np.isfinite(part).all()) for part in pieces(array))


def sha256_of(array: NDArray[Any]) -> str:
    """SHA-256 of the array's bytes in C order, in hexadecimal."""
    total = hashlib.sha256()
    for part in pieces(array):
        total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()
