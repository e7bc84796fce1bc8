# SPDX-License-Identifier: BSD-3-Clause
"""The arguments of a sweep, checked: its grid, its constants, and whether the function takes them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from .._checks import shown
from .._grid.case import Axes, labels, short
from .._grid.describe import function_name


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


def check_call(function: Any, names: Iterable[str]) -> frozenset[str]:
    """Check that `function` can be called with these keywords, and ``rng`` if it has such a parameter.

    Returns the names of its parameters.
    """
    if not callable(function):
        raise TypeError(f"function must be callable, got {shown(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a compiled function without a text signature
        return frozenset()
    try:
        signature.bind(**dict.fromkeys([*names, *{"rng"}.intersection(signature.parameters)]))
    except TypeError as error:
        called = f"{function_name(function)}{signature}"
        raise TypeError(
            f"function must take the parameters of grid and constants by name, got {called}: {error}"
        ) from None
    return frozenset(signature.parameters)


def _is_sequence(values: Any) -> bool:
    one = isinstance(values, (str, bytes, Mapping)) or getattr(values, "ndim", 1) == 0
    return not one and isinstance(values, Iterable)


def _check_distinct(where: str, values: list[Any]) -> None:
    """Refuse two equal values, or two with the same label: the result could not tell them apart."""
    seen: set[Any] = set()
    for value, label in zip(values, labels(values).tolist(), strict=True):
        if label in seen:
            raise ValueError(f"{where} must have distinct values, got {short(value)} twice")
        seen.add(label)
