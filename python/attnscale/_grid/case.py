# SPDX-License-Identifier: BSD-3-Clause
"""Points of a grid, and the labels of the values on its axes."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..laws import Law
from .describe import describe, digest

#: Values on each axis, by its name.
Axes = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class Case:
    """One point of the grid."""

    index: tuple[int, ...]  # position of the case on each axis
    parameters: dict[str, Any]  # the value of the case on each axis
    #: Digest of the names and values alone, the same in every grid with this case. Empty where it is not
    #: needed.
    digest: str

    def __str__(self) -> str:
        return ", ".join(f"{name}={short(value)}" for name, value in self.parameters.items())


def describe_axes(axes: Axes) -> dict[str, list[Any]]:
    """Descriptions that identify the values on each axis of a grid."""
    return {name: [describe(f"grid[{name!r}]", value) for value in values] for name, values in axes.items()}


def make_cases(axes: Axes, described: dict[str, list[Any]] | None) -> list[Case]:
    """All points of the grid; the last axis varies fastest."""
    cases = []
    for index in itertools.product(*(range(len(values)) for values in axes.values())):
        place = dict(zip(axes, index, strict=True))
        parameters = {name: axes[name][i] for name, i in place.items()}
        key = digest({name: described[name][i] for name, i in place.items()}) if described else ""
        cases.append(Case(index, parameters, key))
    return cases


def labels(values: list[Any]) -> NDArray[Any]:
    """Coordinate of an axis: numbers, booleans and strings unchanged, anything else as text.

    Examples
    --------
    >>> labels([512, 4096]), labels(["standard", 0.125, None])
    (array([ 512, 4096]), array(['standard', '0.125', 'None'], dtype='<U8'))
    """
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = {type(value) for value in plain}
    fits = all(abs(value) < 2**63 for value in plain if type(value) is int)
    if kinds in ({bool}, {str}) or (kinds <= {int, float} and fits):
        return np.array(plain)
    return np.array([value if isinstance(value, str) else short(value) for value in plain])


def as_json(value: Any) -> Any:
    """`value` for JSON: laws as their spelling, and values that JSON cannot hold by :func:`short`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else short(value)


def short(value: Any) -> str:
    """A short text of `value` for a message or a label."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) or (hasattr(value, "shape") and not dataclasses.is_dataclass(value)):
        return f"<{type(value).__name__} {tuple(value.shape)} {digest(describe('value', value))[:8]}>"
    if isinstance(value, Law):
        return value.spelling
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    return repr(value)
