# SPDX-License-Identifier: BSD-3-Clause
"""An engine's answer to one call beside the truth, and how two outputs are compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._call import Case
from ._draft import Draft, Predicted, computed, draft_of

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Turn:
    """A call with its numbers, the engine's output and the true one, in float64.

    `truth` has the rows without keys; they are judged apart.
    """

    name: str
    case: Case
    arrays: list[Any]
    dtype: str
    found: Array
    truth: Predicted
    allowed: float

    @cached_property
    def draft(self) -> Draft:
        """Parts of the call."""
        return draft_of(self.case, self.arrays, self.dtype)

    @cached_property
    def mass(self) -> Array:
        """Size of each row's terms, its weights times abs(value): the unit of errors, (..., 1)."""
        return mass_of(self.draft)

    @cached_property
    def difference(self) -> float:
        """Largest error of a row with keys.

        Where a key or a query is infinite, a score of -inf may be a weight of 0, as IEEE 754 has it.
        """
        error = difference(self.found, self.truth, self.mass)
        if error > self.allowed and np.isinf(self.arrays[0]).any() | np.isinf(self.arrays[1]).any():
            plain = self.draft.copy()
            plain.is_ieee = True
            return min(error, difference(self.found, computed(plain), self.mass))
        return error

    @cached_property
    def is_finite(self) -> bool:
        """Whether all numbers are finite."""
        return all(np.isfinite(x).all() for x in self.arrays)

    @property
    def is_right(self) -> bool:
        """Whether the rows with keys are right."""
        return self.difference <= self.allowed

    def fits(self, predicted: Predicted, loose: float = 1.0) -> bool:
        """Whether the engine's output is the predicted one, apart from rows without keys."""
        if predicted.empty.all() and not self.truth.empty.all():  # no row would be compared
            return bool((self.found == 0).all() or np.isnan(self.found).all())
        size = np.where(np.isfinite(predicted.output), np.abs(predicted.output), 0).max(
            -1, keepdims=True, initial=0
        )
        return difference(self.found, predicted, np.maximum(self.mass, size)) <= self.allowed * loose


def mass_of(draft: Draft) -> Array:
    """Weights times abs(value), the largest channel of each row, or 1 where that is 0."""
    plain = draft.copy()
    plain.value = np.abs(np.where(np.isfinite(draft.value), draft.value, 0))
    output = computed(plain).output
    mass = np.where(np.isfinite(output), output, 0).max(-1, keepdims=True, initial=0)
    return np.where(mass == 0, 1, mass)


def difference(found: Array, wanted: Predicted, mass: Array) -> float:
    """The largest error of rows with keys, in units of `mass`; inf if a number is none or other."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(found - wanted.output) / mass
    same = (found == wanted.output) | (np.isnan(found) & np.isnan(wanted.output))
    error = np.where(same, 0, np.where(np.isnan(error), np.inf, error))
    return float(np.where(wanted.empty[..., None], 0, error).max(initial=0))
