# SPDX-License-Identifier: BSD-3-Clause
"""Content of a log for each call of attention, by the name of its module, and as one array."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Value = TypeVar("_Value")


class ByName(dict[str, _Value]):
    """Values by the name of a module's call; a missing key raises an error with the known names."""

    def __missing__(self, key: Any) -> _Value:
        raise KeyError(_missing(key, tuple(self)))


class LoggedCall(NamedTuple):
    """Data of a log on one call of attention, besides its rows.

    Attributes
    ----------
    kind : {"self", "cross"}
    way : str
        How the model computed it: "scaled_dot_product_attention", "flex_attention", "attnscale", or "softmax"
        if it writes out the softmax over its scores.
    heads, key_heads : int
        Grouped queries share key heads.
    tower : str
        The part of the model with the module, as the start of its name; "" in a model of one tower.
    key_of : tuple of int
        The key head of each head.
    axes : {"batch, heads, queries", "unknown"}
        Meaning of the axes of its rows. Unknown: texts and heads cannot be told apart, and all are in the
        first.
    """

    kind: str
    way: str
    heads: int
    key_heads: int
    tower: str
    key_of: tuple[int, ...] = ()
    axes: str = "batch, heads, queries"


class Rows(NDArrayOperatorsMixin, Mapping[str, "NDArray[Any]"]):
    """One statistic of all calls: an array per module name, and one array of all if their shapes agree.

    A name gives the array of one call, shape (batch, heads, queries). NumPy, operators, other indices than
    names (``rows[0]``, ``rows[:, 0]``) and array attributes (``rows.shape``, ``rows.mean()``) use the whole
    as an array with the layers in front.
    """

    def __init__(self, statistic: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._statistic, self._arrays = statistic, dict(arrays)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        if not isinstance(key, str):
            found: NDArray[Any] = self._stacked()[key]
            return found
        if key not in self._arrays:
            raise KeyError(_missing(key, tuple(self._arrays)))
        return self._arrays[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the arrays of several layers become one only by a copy")
        whole = self._stacked()
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (x._stacked() if isinstance(x, Rows) else x for x in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._stacked(), name)

    def __repr__(self) -> str:
        listed = (f"  {name}: {' x '.join(map(str, array.shape))}" for name, array in self._arrays.items())
        return "\n".join([f"{self._statistic} of {len(self)} calls", *listed])

    def _stacked(self) -> NDArray[Any]:
        shapes = {name: array.shape for name, array in self._arrays.items()}
        if len(set(shapes.values())) > 1:
            raise ValueError(differing(self._statistic, "shape", shapes))
        return np.stack(list(self._arrays.values()))


def differing(what: str, how: str, seen: Mapping[str, Any]) -> str:
    """Error text for calls that differ and are not one array, with the way to choose calls that are."""
    first: dict[Any, list[str]] = {}
    for name, value in seen.items():
        first.setdefault(value, []).append(name)
    listed = (
        f"{value} of {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}"
        for value, names in first.items()
    )
    return (
        f"{what} is not one array, since layers differ in {how}: {'; '.join(listed)}. "
        "log.select(kind=..., modules='pattern*') gives a log of those that agree, and "
        "log[statistic][name] what was recorded of one call"
    )


def _missing(key: Any, names: Sequence[str]) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        numbers = layer_numbers(names)
        there = names[numbers.index(key)] if key in numbers else next(iter(names), "")
        return (
            f"{key}: layers are keyed by the name of their module, here {there!r}; log.modules has all names"
        )
    near = get_close_matches(str(key), names, n=1, cutoff=0.0)
    hint = f"; there is {near[0]!r}, and log.modules has all names" if near else ""
    return f"no attention of the name {key!r} was recorded{hint}"


def layer_numbers(names: Sequence[str]) -> tuple[int, ...]:
    """A number for each name: the last one in it (after "#", too) that tells all apart, or 0, 1, 2, ..."""
    found = [
        [int(each) for each in re.findall(r"\d+", name if "#" in name else f"{name}#0")] for name in names
    ]
    if len({len(each) for each in found}) == 1:
        for column in reversed(list(zip(*found, strict=True))):
            if len(set(column)) == len(names):
                return column
    return tuple(range(len(names)))


def towers_of(names: Iterable[str]) -> dict[str, str]:
    """The tower of each call: its name up to the first part in which names differ, unless that is a number.

    In a model of one tower all calls have the tower "".
    """
    parts = {name: name.partition("#")[0].split(".") for name in names}
    shared = 0
    for column in zip(*parts.values(), strict=False):
        if len(set(column)) > 1:
            break
        shared += 1
    after = [each[shared:] for each in parts.values()]
    numbered = any(each.isdigit() for path in parts.values() for each in path[: shared + 1])
    if not all(after) or numbered or all(len(each) == 1 for each in after):
        return dict.fromkeys(parts, "")
    return {name: ".".join(each[: shared + 1]) for name, each in parts.items()}
