# SPDX-License-Identifier: BSD-3-Clause
"""The grid: its axes, the cases on it, and how their values are labelled."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._checks import shown
from ..laws import Law
from ._describe import describe, digest, function_name

__all__ = [
    "Axes",
    "GridCase",
    "as_json",
    "check_call",
    "describe_axes",
    "labels",
    "make_cases",
    "read_constants",
    "read_grid",
    "short",
]

Axes = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class GridCase:
    """One point of the grid.

    Attributes
    ----------
    index : tuple of int
        Where it lies on each axis.
    parameters : dict
        Its value on each axis.
    digest : str
        Of the names and values alone: the same in every grid that has this case. Empty where
        nothing asks for it.
    """

    index: tuple[int, ...]
    parameters: dict[str, Any]
    digest: str

    def __str__(self) -> str:
        return ", ".join(f"{name}={short(value)}" for name, value in self.parameters.items())


def read_grid(grid: Any) -> Axes:
    """The grid as lists, checked."""
    if not isinstance(grid, Mapping):
        raise TypeError(f"grid must map parameter names to their values, got {type(grid).__name__}")
    if not grid:
        raise ValueError("grid must have at least one parameter, got none")
    axes: Axes = {}
    for name, values in grid.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise TypeError(f"grid must have names of parameters as keys, got {shown(name)}")
        where = f"grid[{name!r}]"
        if not _is_sequence(values):
            raise TypeError(
                f"{where} must be a sequence of values, got {short(values)}; "
                "one value for all cases goes into constants="
            )
        axes[name] = list(values)
        if not axes[name]:
            raise ValueError(f"{where} must have at least one value, got none")
        _check_distinct(where, axes[name])
    return axes


def read_constants(constants: Any, axes: Axes) -> dict[str, Any]:
    """The parameters that are the same in all cases, checked."""
    if constants is None:
        return {}
    if not isinstance(constants, Mapping):
        raise TypeError(f"constants must map parameter names to values, got {type(constants).__name__}")
    for name in constants:
        if not isinstance(name, str):
            raise TypeError(f"constants must have names of parameters as keys, got {shown(name)}")
        if name in axes:
            raise ValueError(f"constants must not repeat a parameter of the grid, got {shown(name)} in both")
    return dict(constants)


def describe_axes(axes: Axes) -> dict[str, list[Any]]:
    """What identifies the values on each axis."""
    return {name: [describe(f"grid[{name!r}]", value) for value in values] for name, values in axes.items()}


def make_cases(axes: Axes, described: dict[str, list[Any]] | None) -> list[GridCase]:
    """All points of the grid; the last axis varies fastest."""
    cases = []
    for index in itertools.product(*(range(len(values)) for values in axes.values())):
        place = dict(zip(axes, index, strict=True))
        parameters = {name: axes[name][i] for name, i in place.items()}
        key = digest({name: described[name][i] for name, i in place.items()}) if described else ""
        cases.append(GridCase(index, parameters, key))
    return cases


def check_call(function: Any, names: Iterable[str]) -> frozenset[str]:
    """See that `function` can be called with these keywords, and ``rng`` if it has such a parameter.

    Returns the names of its parameters.
    """
    if not callable(function):
        raise TypeError(f"function must be callable, got {shown(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # compiled, without a text signature
        return frozenset()
    try:
        signature.bind(**dict.fromkeys([*names, *{"rng"}.intersection(signature.parameters)]))
    except TypeError as error:
        called = f"{function_name(function)}{signature}"
        raise TypeError(
            f"function must take the parameters of grid and constants by name, got {called}: {error}"
        ) from None
    return frozenset(signature.parameters)


def labels(values: list[Any]) -> NDArray[Any]:
    """The coordinate of an axis: numbers, booleans and strings as they are, anything else as text.

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


def _is_sequence(values: Any) -> bool:
    one = isinstance(values, (str, bytes, Mapping)) or getattr(values, "ndim", 1) == 0
    return not one and isinstance(values, Iterable)


def _check_distinct(where: str, values: list[Any]) -> None:
    """Two equal values, or two with the same label, could not be told apart in the result."""
    seen: set[Any] = set()
    for value, label in zip(values, labels(values).tolist(), strict=True):
        if label in seen:
            raise ValueError(f"{where} must have distinct values, got {short(value)} twice")
        seen.add(label)


def as_json(value: Any) -> Any:
    """`value` as JSON has it; laws by their spelling, and :func:`short` of what JSON has not."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else short(value)


def short(value: Any) -> str:
    """`value` for a message or a label."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) or (hasattr(value, "shape") and not dataclasses.is_dataclass(value)):
        return f"<{type(value).__name__} {tuple(value.shape)} {digest(describe('value', value))[:8]}>"
    if isinstance(value, Law):
        return value.spelling
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    return repr(value)
