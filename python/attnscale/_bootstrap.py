# SPDX-License-Identifier: BSD-3-Clause
"""Samples of a bootstrap, as the share that each unit has in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shares(rng: np.random.Generator, count: int, draws: int) -> NDArray[np.float64]:
    """For each draw the share of each unit in a sample of count - 1 units, shape (draws, count).

    A single unit has all of it. count - 1 are drawn with replacement, because count would make the error of a
    mean too small by sqrt(1 - 1/count) (Rao and Wu 1988, JASA 83, 231).
    """
    if count == 1:
        return np.ones((draws, 1))
    return rng.multinomial(count - 1, np.full(count, 1 / count), size=draws) / (count - 1)
