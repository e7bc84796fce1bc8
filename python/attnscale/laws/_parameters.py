# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the parameters of laws. Laws are frozen: a check puts the converted value in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import number

if TYPE_CHECKING:
    from ._base import Law

__all__ = ["OneOrPerHead", "at_least", "finite", "greater_than", "one_or_per_head"]

#: A parameter that is one number, or one a head (stored as a tuple, so that laws compare and hash).
OneOrPerHead = float | tuple[float, ...]


def finite(law: Law, name: str) -> float:
    """The parameter as a finite float."""
    value = number(name, getattr(law, name))
    object.__setattr__(law, name, value)
    return value


def greater_than(law: Law, name: str, bound: float) -> None:
    """Check that the parameter is a finite number > bound."""
    value = finite(law, name)
    if value <= bound:
        raise ValueError(f"{name} must be greater than {bound:g}, got {value:g}")


def at_least(law: Law, name: str, bound: float) -> None:
    """Check that the parameter is a finite number >= bound."""
    value = finite(law, name)
    if value < bound:
        raise ValueError(f"{name} must be at least {bound:g}, got {value:g}")


def one_or_per_head(law: Law, name: str) -> None:
    """Check that the parameter is a finite number, or a sequence of them: one a head."""
    given: Any = getattr(law, name)
    if np.ndim(given) == 0:
        finite(law, name)
        return
    if np.ndim(given) != 1 or not len(given):
        raise ValueError(f"{name} must be a number or one number a head, got shape {np.shape(given)}")
    object.__setattr__(law, name, tuple(number(name, value) for value in given))
