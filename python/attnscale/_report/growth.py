# SPDX-License-Identifier: BSD-3-Clause
"""How fast entropy grows with the length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def growth_per_doubling(lengths: ArrayLike, entropy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rise from the first length to the last, for each doubling between them; NaN of one length.

    The lengths are the last axis of `entropy`.

    Examples
    --------
    >>> float(growth_per_doubling([64, 128, 256], np.array([2.0, 2.3, 3.0])))
    0.5
    """
    ends = np.asarray(lengths, np.float64)[[0, -1]]
    with np.errstate(invalid="ignore"):
        found: NDArray[np.float64] = (entropy[..., -1] - entropy[..., 0]) / np.log2(ends[1] / ends[0])
    return found
