# SPDX-License-Identifier: BSD-3-Clause
"""Arrays with named axes: found by name in any order, and labelled in results.

A call on plain arrays with its own layout has no names, and its results are plain arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import as_array, choose, shown, warn_of_loading
from .arrays import LAYOUTS
from .homes import Home, home_of
from .names import Axes, has_names, is_pattern, name_axes, roles

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Results in nats.
_ENTROPIES = {
    *("entropy", "lowest", "highest"),
    *("target", "standard_entropy", "law_entropy", "median_entropy"),
}
#: Axes of a result: "queries" and "keys" stand for the call's names, ``...`` for (..., heads).
AxesOfRows = tuple[str | EllipsisType, ...]


@dataclass(frozen=True)
class Names:
    """Axes of a call, by the names that its arrays or its layout give them."""

    arrays: Mapping[str, Axes]  # of query, key and value
    batch: tuple[str, ...]
    heads: str | None
    queries: str
    keys: str  # name of the axis of keys; differs from that of the queries
    labels: Mapping[str, Any] | None = None  # of DataArray results; None: results are plain arrays
    home: Home | None = None  # of plain results

    @property
    def leading(self) -> tuple[str, ...]:
        """Names of (..., heads) in results."""
        return self.batch if self.heads is None else (*self.batch, self.heads)

    def place(self, name: str, array: Any) -> NDArray[Any]:
        """Query, key or value as a view (..., heads, n, dim)."""
        axes = self.arrays[name]
        wanted = (*self.batch, *self._heads, axes.sequence, axes.channels)
        warn_of_loading(name, array)
        return _place(np.asarray(array), axes.names, wanted)

    def place_option(self, name: str, array: Any, axes: tuple[str, ...]) -> Any:
        """An option with named axes, in a shape that broadcasts to the batch axes and these."""
        if not hasattr(array, "dims"):
            return array
        own = tuple(map(str, array.dims))
        if "keys" in axes and self.keys not in own and self.queries == self.arrays["key"].sequence:
            # Queries and keys share a name here: an option's single axis over keys has that name.
            own = tuple(self.keys if each == self.queries else each for each in own)
        names = {"queries": self.queries, "keys": self.keys, "heads": self.heads}
        wanted = (*self.batch, *(names[axis] for axis in axes if axis != "heads" or self.leading))
        if unknown := [each for each in own if each not in wanted]:
            listed = " ".join(each for each in wanted if each is not None)
            raise ValueError(f"{name} must have axes among {listed}, got {' '.join(unknown)}")
        return _place(np.asarray(array), own, wanted)

    def place_out(self, out: Any) -> Any:
        """A view of ``out`` for the call to write to; None and objects other than arrays unchanged."""
        if not isinstance(out, np.ndarray):
            return out
        names = self._output("query")
        if out.ndim != len(names):
            raise ValueError(f"out must have the axes {' '.join(names)}, got shape {out.shape}")
        return _place(out, names, (*self.batch, *self._heads, self.queries, self.arrays["value"].channels))

    def label_output(self, values: NDArray[Any], out: NDArray[Any] | None, order: str) -> Any:
        """The output with its axes in the order of "query" or "rows"; `out` itself if given."""
        wanted = self._output(order)
        if out is None:
            own = self._output("rows")
            out = self._without_head(values, 2).transpose([own.index(name) for name in wanted])
        return self._wrap(out, "output", wanted, {*wanted}, {})

    def label_rows(
        self, values: NDArray[Any], name: str, axes: AxesOfRows, new: Mapping[str, Any] | None = None
    ) -> Any:
        """A result with these axes; `new` has the labels of axes that the inputs lack."""
        inputs = {"queries": self.queries, "keys": self.keys}
        place = axes.index(...)
        before, behind = (
            tuple(inputs.get(str(axis), str(axis)) for axis in part)
            for part in (axes[:place], axes[place + 1 :])
        )
        of_inputs = {*self.leading, *(inputs[axis] for axis in inputs if axis in axes)}
        plain = self._without_head(values, len(behind))
        own = {axis: labels for axis, labels in (new or {}).items() if axis in axes}
        return self._wrap(plain, name, (*before, *self.leading, *behind), of_inputs, own)

    def bring(self, values: Any) -> Any:
        """A result in the caller's library."""
        return values if self.home is None else self.home.bring(values)

    @property
    def _heads(self) -> tuple[str | None, ...]:
        """The axis of heads in arrays of the call; None if they lack one and stand for a single head."""
        return (self.heads,) if self.leading else ()

    def _output(self, order: str) -> tuple[str, ...]:
        """Axes of the output in the order of "query" or "rows"."""
        query, channels = self.arrays["query"], self.arrays["value"].channels
        if order == "rows":
            return (*self.leading, self.queries, channels)
        own = [channels if name == query.channels else name for name in query.names]
        return (*(name for name in self.leading if name not in own), *own)

    def _without_head(self, values: NDArray[Any], behind: int) -> NDArray[Any]:
        """Remove the axis of the single head where the arrays have none; `behind` axes follow it."""
        return values.squeeze(axis=values.ndim - behind - 1) if self._heads == (None,) else values

    def _wrap(
        self, values: Any, name: str, dims: tuple[str, ...], of_inputs: set[str], new: Mapping[str, Any]
    ) -> Any:
        if self.labels is None:
            return values
        import xarray

        here = {n: each for n, each in self.labels.items() if set(each.dims) <= of_inputs}
        attrs = {"units": "nat"} if name in _ENTROPIES else {}
        return xarray.DataArray(values, {**here, **new}, dims, name, attrs)


def read_named(
    query: Any, key: Any, value: Any, layout: Any, dims: Any
) -> tuple[Names | Home | None, tuple[Any, Any, Any], Any]:
    """Names of a call's axes, its query, key and value with ordered axes, and their layout.

    If neither arrays nor layout have names: the home of the results, if any, and the arrays unchanged.
    """
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    convert = None if has_names(query) else home_of(query)
    home = None if convert is None else Home(convert)
    if dims is None and not is_pattern(layout):
        choose("layout", layout, LAYOUTS)
        if not any(map(has_names, given.values())):
            return home, (query, key, value), layout
    arrays = {name: each if has_names(each) else as_array(name, each) for name, each in given.items()}
    known = roles(dims)
    names = _name({name: name_axes(name, each, layout, known) for name, each in arrays.items()})
    _check_labels(arrays, names)
    if has_names(query):
        names = replace(names, labels=_labels_of(arrays, names))
    names = names if home is None else replace(names, home=home)
    placed = {name: names.place(name, each) for name, each in arrays.items()}
    return names, (placed["query"], placed["key"], placed.get("value")), LAYOUTS[0]


def _name(axes: Mapping[str, Axes]) -> Names:
    """Names of a call whose query, key and value have these axes."""
    heads = {each.heads: None for each in axes.values() if each.heads is not None}
    if len(heads) > 1:
        raise ValueError(
            f"the axis of heads must have one name, got {' and '.join(heads)}; rename one of them"
        )
    queries, keys = axes["query"].sequence, axes["key"].sequence
    if "value" in axes and axes["value"].sequence != keys:
        raise ValueError(
            f"key and value must name the axis of the keys alike, got {keys} and {axes['value'].sequence}"
        )
    return Names(
        arrays=axes,
        batch=tuple(dict.fromkeys(name for each in axes.values() for name in each.batch)),
        heads=next(iter(heads), None),
        queries=queries,
        keys=f"key_{keys}" if keys == queries else keys,
    )


def _place(array: NDArray[Any], names: tuple[str, ...], wanted: tuple[str | None, ...]) -> NDArray[Any]:
    """A view with the axes in the wanted order, of extent 1 where the array has none."""
    moved = array.transpose([names.index(name) for name in wanted if name in names])
    return moved[tuple(slice(None) if name in names else None for name in wanted)]


def _check_labels(arrays: Mapping[str, Any], names: Names) -> None:
    """Refuse different labels along a shared axis: values are matched by position, not by label."""
    for first, second in (("query", "key"), ("query", "value"), ("key", "value")):
        a: Any = arrays.get(first)
        b: Any = arrays.get(second)
        if not (hasattr(a, "indexes") and hasattr(b, "indexes")):
            continue
        of_a, of_b = names.arrays[first], names.arrays[second]
        shared = {*of_a.batch, *([names.heads] if names.heads else [])}
        shared |= {of_a.channels} if (first, second) == ("query", "key") else set()
        shared |= {of_a.sequence} if (first, second) == ("key", "value") else set()
        for name in shared & set(of_a.names) & set(of_b.names) & set(a.indexes) & set(b.indexes):
            if a.sizes[name] == b.sizes[name] and not a.indexes[name].equals(b.indexes[name]):
                raise ValueError(
                    f"{first} and {second} must have the same labels along {name}, got "
                    f"{shown(list(a.indexes[name][:3]))} and {shown(list(b.indexes[name][:3]))}; "
                    f"{second}.reindex_like({first}) puts them in order"
                )


def _labels_of(arrays: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Labels of the axes of the query, of the key and of the value's channels, in this order."""
    found: dict[str, Any] = {}
    for array, each in arrays.items():
        axes = names.arrays[array]
        for name, label in each.coords.items():
            if array == "query":
                kept = True
            else:  # queries and keys may share a name, but not labels
                kept = axes.sequence not in label.dims or array == "key"
                kept &= axes.channels not in label.dims or array == "value"
            if kept and array == "key" and axes.sequence in label.dims and axes.sequence == names.queries:
                label = label.rename({axes.sequence: names.keys})
                name = names.keys if name == axes.sequence else f"key_{name}"
            if kept and name not in found:
                found[str(name)] = label
    channels = names.arrays["query"].channels
    of_value = names.arrays["value"].channels if "value" in arrays else None
    if channels == of_value:  # the output has the value's channels, not the query's
        found = {n: each for n, each in found.items() if channels not in each.dims}
        for name, label in arrays["value"].coords.items():
            if channels in label.dims:
                found[str(name)] = label
    return found
