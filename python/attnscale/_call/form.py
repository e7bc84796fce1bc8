# SPDX-License-Identifier: BSD-3-Clause
"""What makes a score of a scaled dot product, in the form that the core takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ScoreForm(NamedTuple):
    """softcap(distance_scale * product) + distance_bias; tables broadcast to (..., n_queries, n_keys)."""

    softcap: float = 0.0  # c: c * tanh(score / c); 0.0: none
    distance_scale: NDArray[Any] | None = None  # in the type of the arithmetic
    distance_bias: NDArray[Any] | None = None

    def of_rows(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores after the soft-cap alone: one number a row has no place in tables of (query, key)."""
        return self.softcap * np.tanh(scores / self.softcap) if self.softcap else scores


#: Scores that are scaled products: those of most calls.
PRODUCTS = ScoreForm()
