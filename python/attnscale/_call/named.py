# SPDX-License-Identifier: BSD-3-Clause
"""Arrays whose axes have names: found by name in any order, and labelled on the way out.

A call on plain arrays in a layout of its own never comes here. Functions raise `NamedAxes` from where they
read their arrays, and hand their arguments to `with_names`, which calls them again on plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import as_array, shown
from .._results import AttentionStatistics, ScaleSolution
from .names import Axes, has_names, read_names, roles

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["with_names"]

#: The axes of options that may have names, as far as they have one for each array.
_OPTION_AXES = {
    "scale": ("heads", "queries"),
    "attn_mask": ("heads", "queries", "keys"),
    "key_lengths": (),
    "document_ids": ("keys",),
}
#: Of the arrays of a calibration: the axes before (..., heads), and those behind.
_CALIBRATION_AXES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "target": ((), ()),
    "beta": ((), ("n",)),
    "standard_entropy": ((), ("n",)),
    "amplitude": (("law",), ()),
    "law_beta": (("law",), ("n",)),
    "law_entropy": (("law",), ("n",)),
    "median_entropy": ((), ("n",)),
    "equal_scores": ((), ()),
}
_ENTROPIES = {
    *("entropy", "lowest", "highest"),
    *("target", "standard_entropy", "law_entropy", "median_entropy"),
}
_TARGET_AXES = {"row": ("heads", "queries"), "head": ("heads",), "all": ()}


@dataclass(frozen=True)
class Names:
    """The axes of a call, by the names that its arrays give them."""

    arrays: Mapping[str, Axes]  # of query, key and value
    batch: tuple[str, ...]
    heads: str | None
    queries: str
    keys: str  # differs from that of the queries

    @property
    def inserted(self) -> bool:
        """Whether there is an axis of one head that the arrays do not have: batch axes go before heads."""
        return self.heads is None and bool(self.batch)

    @property
    def leading(self) -> tuple[str, ...]:
        """Names of (..., heads) in results."""
        return self.batch if self.heads is None else (*self.batch, self.heads)

    def of(self, axis: str) -> str | None:
        """The name of "heads", "queries" or "keys"."""
        return {"heads": self.heads, "queries": self.queries, "keys": self.keys}[axis]

    def output(self) -> tuple[str, ...]:
        """Axes of the output, in the order of the query's."""
        query = self.arrays["query"]
        channels = self.arrays["value"].channels
        own = [channels if name == query.channels else name for name in query.names]
        return (*(name for name in self.leading if name not in own), *own)


def with_names(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """What the function returns for these arguments, whose arrays have named axes."""
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = {name: arguments[name] for name in parameters if name not in ("dims", "layout")}
    arrays = {
        name: each if has_names(each := given[name]) else as_array(name, each)
        for name in ("query", "key", "value")
        if given.get(name) is not None
    }
    known = roles(arguments.get("dims"))
    names = _names({n: read_names(n, x, arguments["layout"], known) for n, x in arrays.items()})
    _check_labels(arrays, names)
    for name, array in arrays.items():
        given[name] = _place(np.asarray(array), names.arrays[name].names, _canonical(names, name))
    for name, axes in {
        **_OPTION_AXES,
        "target_entropy": _TARGET_AXES.get(given.get("per", "row"), ()),
    }.items():
        if hasattr(given.get(name), "dims"):
            given[name] = _option(name, given[name], axes, names)
    out = given.get("out")
    if out is not None:
        given["out"] = _place(out, names.output(), _canonical_output(names))
    result = function(**given)
    return _Labels(names, arrays).label(result, function.__name__, out)


def _names(arrays: dict[str, Axes]) -> Names:
    batch = tuple(dict.fromkeys(name for axes in arrays.values() for name in axes.batch))
    heads = {axes.heads: None for axes in arrays.values() if axes.heads is not None}
    if len(heads) > 1:
        raise ValueError(
            f"the axis of heads must have one name, got {' and '.join(heads)}; rename one of them"
        )
    queries, keys = arrays["query"].sequence, arrays["key"].sequence
    if "value" in arrays and arrays["value"].sequence != keys:
        raise ValueError(
            f"key and value must name the axis of the keys alike, got {keys} and {arrays['value'].sequence}"
        )
    keys = f"key_{keys}" if keys == queries else keys
    return Names(arrays, batch, next(iter(heads), None), queries, keys)


def _canonical(names: Names, array: str) -> tuple[str | None, ...]:
    """(..., heads, n, dim) by name; None: an axis of extent 1."""
    axes = names.arrays[array]
    heads = () if names.heads is None and not names.batch else (names.heads,)
    return (*names.batch, *heads, axes.sequence, axes.channels)


def _canonical_output(names: Names) -> tuple[str | None, ...]:
    heads = (None,) if names.inserted else ()
    return (*names.leading, *heads, names.queries, names.arrays["value"].channels)


def _place(array: NDArray[Any], names: tuple[str, ...], wanted: Iterable[str | None]) -> NDArray[Any]:
    """The axes in the wanted order, of extent 1 where the array has none. A view."""
    order = [name for name in wanted if name in names]
    if array.ndim != len(names):
        raise ValueError(f"out must have the axes {' '.join(names)}, got shape {array.shape}")
    moved = array.transpose([names.index(name) for name in order])
    return moved[tuple(slice(None) if name in names else None for name in wanted)]


def _option(name: str, array: Any, axes: tuple[str, ...], names: Names) -> NDArray[Any]:
    """An option whose axes have names, as it broadcasts to the axes that it has without."""
    own = tuple(map(str, array.dims))
    if "keys" in axes and names.keys not in own and names.queries == names.arrays["key"].sequence:
        # One name for queries and keys: in an option that has keys, a single axis of it is theirs.
        own = tuple(names.keys if each == names.queries else each for each in own)
    wanted = (*names.batch, *(names.of(axis) for axis in axes if axis != "heads" or names.leading))
    if unknown := [each for each in own if each not in wanted]:
        listed = " ".join(each for each in wanted if each is not None)
        raise ValueError(f"{name} must have axes among {listed}, got {' '.join(unknown)}")
    return _place(np.asarray(array), own, wanted)


def _check_labels(arrays: Mapping[str, Any], names: Names) -> None:
    """Labels of an axis that two arrays share must be the same: what is meant by position, is so by label."""
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


class _Labels:
    """Puts names and labels on results; plain arrays only get their order of axes."""

    def __init__(self, names: Names, arrays: Mapping[str, Any]) -> None:
        self.names = names
        self.named = hasattr(arrays["query"], "dims")
        self.coordinates = _coordinates(names, arrays) if self.named else {}

    def label(self, result: Any, function: str, out: Any) -> Any:
        """Arrays of the result by its type."""
        if isinstance(result, np.ndarray):
            if function == "attention":
                return self.output(result) if out is None else self._wrap(out, self.names.output(), "output")
            last = (self.names.keys,) if function == "attention_weights" else ()
            return self.rows(result, function.removeprefix("attention_"), last)
        if isinstance(result, AttentionStatistics):
            output = None if result.output is None else self.output(result.output)
            rows = {name: self.rows(getattr(result, name), name) for name in result._present()}
            return result._replace(output=output, **rows)
        changes: dict[str, Any] = {}
        if isinstance(result, ScaleSolution):
            axes = (self.names.queries,) if result.per == "row" else ()
            for name in ("scale", "entropy", "lowest", "highest", "converged", "feasible", "iterations"):
                if result.per != "all":
                    changes[name] = self.rows(getattr(result, name), name, axes=axes)
        elif hasattr(result, "variance"):  # a curve
            scale = {"scale": result.scales}
            for name in ("entropy", "lse", "mean", "variance"):
                changes[name] = self.rows(getattr(result, name), name, ("scale",), scale)
        elif hasattr(result, "mean_score"):  # a state, whose output keeps its order of axes
            for name in ("lse", "mean_score"):
                changes[name] = self.rows(getattr(result, name), name)
            order = (*self.names.leading, self.names.queries, self.names.arrays["value"].channels)
            changes["output"] = self._wrap(self._without_head(result.output, 2), order, "output")
        elif hasattr(result, "law_beta"):
            changes = self._calibration(result)
        return replace(result, **changes) if changes else result

    def output(self, values: NDArray[Any]) -> Any:
        """(..., heads, n_queries, value_dim) in the order of the query's axes."""
        order = tuple(name for name in _canonical_output(self.names) if name is not None)
        plain = self._without_head(values, 2)
        wanted = self.names.output()
        return self._wrap(plain.transpose([order.index(name) for name in wanted]), wanted, "output")

    def rows(
        self,
        values: NDArray[Any],
        name: str,
        last: tuple[str, ...] = (),
        labels: Mapping[str, Any] | None = None,
        axes: tuple[str, ...] | None = None,
    ) -> Any:
        """(..., heads, n_queries), then `last`."""
        axes = (self.names.queries,) if axes is None else axes
        plain = self._without_head(values, len(axes) + len(last))
        return self._wrap(plain, (*self.names.leading, *axes, *last), name, labels)

    def _calibration(self, result: Any) -> dict[str, Any]:
        """(laws, ..., heads, lengths) as far as an array of a Calibration has them."""
        labels = {"law": [law.spelling for law in result.laws], "n": result.lengths}
        changes = {}
        for name, (first, last) in _CALIBRATION_AXES.items():
            dims = (*first, *self.names.leading, *last)
            plain = self._without_head(getattr(result, name), len(last))
            own = {axis: labels[axis] for axis in (*first, *last)}
            changes[name] = self._wrap(plain, dims, name, own, self.names.leading)
        return changes

    def _without_head(self, values: NDArray[Any], behind: int) -> NDArray[Any]:
        return values.squeeze(axis=values.ndim - behind - 1) if self.names.inserted else values

    def _wrap(
        self,
        values: Any,
        dims: tuple[str, ...],
        name: str,
        labels: Mapping[str, Any] | None = None,
        among: tuple[str, ...] | None = None,
    ) -> Any:
        """`labels` of new axes; the inputs' are those of all axes, or of the axes `among`."""
        if not self.named:
            return values
        import xarray

        inputs = set(dims if among is None else among)
        here = {n: each for n, each in self.coordinates.items() if set(each.dims) <= inputs}
        attrs = {"units": "nat"} if name in _ENTROPIES else {}
        return xarray.DataArray(values, {**here, **(labels or {})}, dims, name, attrs)


def _coordinates(names: Names, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Labels of the query's axes, of the key's and of the value's channels; the query's come first."""
    found: dict[str, Any] = {}
    for array, each in arrays.items():
        if not hasattr(each, "coords"):
            continue
        axes = names.arrays[array]
        for name, label in each.coords.items():
            if array == "query":
                kept = True
            else:  # queries and keys may share a name, not their labels
                kept = axes.sequence not in label.dims or array == "key"
                kept &= axes.channels not in label.dims or array == "value"
            if kept and array == "key" and axes.sequence in label.dims and axes.sequence == names.queries:
                label = label.rename({axes.sequence: names.keys})
                name = names.keys if name == axes.sequence else f"key_{name}"
            if kept and name not in found:
                found[str(name)] = label
    channels = names.arrays["query"].channels
    of_value = names.arrays["value"].channels if "value" in arrays else None
    if channels == of_value:  # the query's channels are not those of the output
        found = {n: each for n, each in found.items() if channels not in each.dims}
        value = arrays["value"]
        for name, label in getattr(value, "coords", {}).items():
            if channels in label.dims:
                found[str(name)] = label
    return found
