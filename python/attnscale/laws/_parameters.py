# SPDX-License-Identifier: BSD-3-Clause
"""Checks of laws' parameters. Laws are frozen: a check stores the converted value."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.checks import choose, number, shown
from .._base.spelling import as_number

#: A parameter that is one number, or one a head (stored as a tuple, so that laws compare and hash).
OneOrPerHead = float | tuple[float, ...]


def finite(law: Any, name: str) -> float:
    """The parameter as a finite float."""
    value = number(name, getattr(law, name))
    object.__setattr__(law, name, value)
    return value


def greater_than(law: Any, name: str, bound: float) -> None:
    """Check that the parameter is a finite number > bound."""
    value = finite(law, name)
    if value <= bound:
        raise ValueError(f"{name} must be greater than {bound:g}, got {as_number(value)}")


def at_least(law: Any, name: str, bound: float) -> None:
    """Check that the parameter is a finite number >= bound."""
    value = finite(law, name)
    if value < bound:
        raise ValueError(f"{name} must be at least {bound:g}, got {as_number(value)}")


def one_or_per_head(law: Any, name: str) -> None:
    """Check that the parameter is a finite number, or a sequence of them: one a head."""
    given: Any = getattr(law, name)
    if np.ndim(given) == 0:
        finite(law, name)
        return
    if np.ndim(given) != 1 or not len(given):
        raise ValueError(f"{name} must be a number or one number a head, got shape {np.shape(given)}")
    object.__setattr__(law, name, tuple(number(name, value) for value in given))


def integer_at_least(law: Any, name: str, bound: int) -> None:
    """Check that the parameter is an integer >= bound."""
    given = getattr(law, name)
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {shown(given)}")
    if given < bound:
        raise ValueError(f"{name} must be at least {bound}, got {given}")
    object.__setattr__(law, name, int(given))


def none_or_at_least(law: Any, name: str, bound: float) -> None:
    """Check that the parameter is None, or a finite number >= bound."""
    if getattr(law, name) is not None:
        at_least(law, name, bound)


def flag(law: Any, name: str) -> None:
    """Check that the parameter is True or False."""
    given = getattr(law, name)
    if not isinstance(given, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {shown(given)}")
    object.__setattr__(law, name, bool(given))


def several(law: Any, name: str) -> None:
    """Check that the parameter is a sequence of finite numbers, and make it a tuple."""
    given: Any = getattr(law, name)
    if np.ndim(given) != 1 or not len(given):
        raise ValueError(f"{name} must be numbers along one axis, got shape {np.shape(given)}")
    object.__setattr__(law, name, tuple(number(name, value) for value in given))


def acting_channels(law: Any, kind: str) -> None:
    """Check `channels` of a law that acts on one kind of channels, or on "all" if all are of that kind."""
    choose("channels", law.channels, (kind, "all"))
