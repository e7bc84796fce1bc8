# SPDX-License-Identifier: BSD-3-Clause
"""Roles of axes by their names: heads, sequence, channels; all others are batch axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .._base.checks import shown

#: Usual names of axes in papers, einops patterns and datasets.
_KNOWN = {
    role: tuple(names.split())
    for role, names in {
        "heads": "h head heads kv_head kv_heads",
        "sequence": "n s l t q k seq sequence token tokens position pos time "
        "query queries key keys n_queries n_keys",
        "channels": "d e c dim v head_dim value_dim channel channels feature features",
    }.items()
}


class Axes(NamedTuple):
    """The axes of one array by role; `names` has all of them in the array's order."""

    names: tuple[str, ...]
    batch: tuple[str, ...]
    heads: str | None
    sequence: str
    channels: str


def has_names(value: Any) -> bool:
    """Whether the axes of an array have names, as in a DataArray of xarray."""
    return hasattr(value, "dims") and hasattr(value, "coords")


def is_pattern(layout: Any) -> bool:
    """Whether a layout is a pattern of names, as einops writes it."""
    return isinstance(layout, str) and len(layout.split()) > 1


def roles(dims: Any) -> dict[str, tuple[str, ...]]:
    """Names by role; ``dims=`` replaces the usual ones."""
    if dims is None:
        return dict(_KNOWN)
    if not isinstance(dims, Mapping) or not set(dims) <= set(_KNOWN):
        raise ValueError(
            f"dims must be a mapping from {', '.join(map(repr, _KNOWN))} to names of axes, got {shown(dims)}"
        )
    given = {role: (each,) if isinstance(each, str) else tuple(map(str, each)) for role, each in dims.items()}
    taken = {name for names in given.values() for name in names}
    return {
        role: given.get(role, tuple(n for n in usual if n not in taken)) for role, usual in _KNOWN.items()
    }


def name_axes(name: str, array: Any, layout: Any, known: Mapping[str, tuple[str, ...]]) -> Axes:
    """The axes of an array: its own names, or those of the pattern."""
    if has_names(array):
        if layout != "bhsd":
            raise ValueError(
                f"layout is for arrays without names; {name} has the axes {' '.join(map(str, array.dims))}, "
                f"got layout={shown(layout)}"
            )
        return _by_role(name, tuple(map(str, array.dims)), known)
    if is_pattern(layout):
        return _by_role(name, _expand(name, layout, array.ndim), known)
    if layout == "bhsd":
        raise ValueError(
            f"the axes of query, key and value must all have names, or none; {name} is {type(array).__name__}"
        )
    raise ValueError(
        f"dims is for axes with names: a DataArray, or layout='b n h d'; got layout={shown(layout)}"
    )


def _expand(name: str, layout: str, ndim: int) -> tuple[str, ...]:
    """The names of a pattern; "..." stands for numbered axes."""
    names = layout.split()
    if any(not (each == "..." or each.isidentifier()) for each in names) or len(set(names)) < len(names):
        raise ValueError(
            "layout must be 'bhsd', 'bshd', or different names of axes between spaces, 'b n h d' or "
            f"'... h n d' (groups in parentheses have to be split before), got {shown(layout)}"
        )
    if "..." in names:
        place = names.index("...")
        count = max(ndim - len(names) + 1, 0)
        names[place : place + 1] = [f"...{i}" for i in reversed(range(count))]
    if len(names) != ndim:
        raise ValueError(f"{name} must have the axes of layout={layout!r}, got {ndim} axes")
    return tuple(names)


def _by_role(array: str, names: tuple[str, ...], known: Mapping[str, tuple[str, ...]]) -> Axes:
    found = {role: [name for name in names if name in listed] for role, listed in known.items()}
    for role, each in found.items():
        if len(each) > 1 or (not each and role != "heads"):
            seen = f"{' and '.join(each)} could be" if each else "none is known to be"
            raise ValueError(
                f"{array} has the axes {' '.join(names)}, of which {seen} the {role}; "
                f"dims={{{role!r}: NAME}} says which one is"
            )
    special = {name for each in found.values() for name in each}
    batch = tuple(name for name in names if name not in special)
    return Axes(names, batch, next(iter(found["heads"]), None), found["sequence"][0], found["channels"][0])
