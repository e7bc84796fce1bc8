# SPDX-License-Identifier: BSD-3-Clause
"""What solve_scale returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._statistics import describe_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ScaleSolution"]


@dataclass(frozen=True, eq=False, repr=False)
class ScaleSolution:
    """Scales that give a wanted entropy, and how far that went.

    Shapes are (..., heads, n_queries) for ``per="row"``, (..., heads) for "head" and () for "all".

    Attributes
    ----------
    scale : ndarray of float64
        The least scale >= 0 at which the entropy is at most the target, to the tolerance: 0 where
        the target is ``highest`` or above, inf where it is below ``lowest``, NaN where a visible
        dot product is NaN or infinite.
    entropy : ndarray
        The entropy at this scale, in nats (its limit where the scale is inf). Of the arithmetic's
        type for rows, else float64.
    lowest, highest : ndarray
        What any scale can reach: ln of the number of keys that tie for the largest dot product, and
        ln n_visible; means over the rows for "head" and "all". ``lowest`` is a limit that no finite
        scale need reach.
    converged : ndarray of bool
        Whether ``entropy`` is within the tolerance of the target.
    feasible : ndarray of bool
        Whether the target lies between ``lowest`` and ``highest``, to the tolerance.
    iterations : ndarray of int64
        Evaluations of the entropy; 0 where none was needed.
    """

    scale: NDArray[np.float64]
    entropy: NDArray[Any]
    lowest: NDArray[Any]
    highest: NDArray[Any]
    converged: NDArray[np.bool_]
    feasible: NDArray[np.bool_]
    iterations: NDArray[np.int64]

    def __repr__(self) -> str:
        return describe_arrays(self)
