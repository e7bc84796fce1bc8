# SPDX-License-Identifier: BSD-3-Clause
"""An experiment: cases that give rows of numbers, and what the mean of the rows estimates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ._axes import Axis
from ._declaration import Declaration
from ._estimates import means_and_shares
from ._tally import Tally

#: ``rows(key, first, count)``: rows first ... first + count - 1 of the generator with that key.
#: Each row depends on the key and its index alone; shape (count, *inner axes, columns), float64.
RowSource: TypeAlias = Callable[[int, int, int], NDArray[np.float64]]
Estimator: TypeAlias = Callable[[Tally], tuple[NDArray[np.float64], NDArray[np.float64]]]


@dataclass(frozen=True, eq=False)
class Draws:
    """One point of the outer axes.

    Attributes
    ----------
    identity : tuple of int
        Numbers by which the case has other random numbers than other cases.
    rows : callable
    cost : float
        About how many operations a row takes: pieces of work are cut by it, results are not.
    estimate : callable
        From a tally to values and standard errors, (..., quantities), of quantities that are no means.
    """

    identity: tuple[int, ...]
    rows: RowSource
    cost: float
    estimate: Estimator | None = None


@dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment with its parameters, ready to run.

    Attributes
    ----------
    declared : Declaration
    outer, inner : tuples of Axis
        Each point of the outer axes is a case; its rows have one entry for each of the inner ones.
    cases : tuple of Draws
        In the order of the outer axes, the last one running fastest.
    parameters : dict
        Everything that defines the experiment, as JSON can hold it.
    betas : ndarray or None
        Beta of the laws, shape (*outer axes, *inner axes); None for experiments without laws.
    """

    declared: Declaration
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    cases: tuple[Draws, ...]
    parameters: dict[str, Any]
    betas: NDArray[np.float64] | None = None

    def empty_tally(self) -> Tally:
        """A tally for the rows of one case."""
        return Tally.empty((*map(len, self.inner), len(self.declared.quantities)))

    def estimate(self, case: Draws, tally: Tally) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Values and standard errors of a case, (..., quantities)."""
        if case.estimate is not None:
            return case.estimate(tally)
        names, declared = list(self.declared.quantities), self.declared
        shares = [names.index(name) for name in declared.shares]
        bounded = [names.index(name) for name in declared.bounded]
        return means_and_shares(tally, shares, bounded)

    def identity(self, case: Draws) -> tuple[int, ...]:
        """Numbers that belong to this case of this experiment and to no other."""
        return (crc32(self.declared.name.encode()), *case.identity)
