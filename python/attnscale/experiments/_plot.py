# SPDX-License-Identifier: BSD-3-Clause
"""A result as lines with error bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from ._experiment import Cells

__all__ = ["draw"]


def draw(
    title: str,
    coords: Cells,
    value: NDArray[Any],
    error: NDArray[Any],
    x: str | None,
    labels: dict[str, Any],
    ax: Axes | None,
) -> Axes:
    """Means with error bars along `x`, a line for each point of the axes that have no label."""
    from matplotlib import pyplot

    along = x if x is not None else list(coords)[-1]
    if along not in coords:
        raise ValueError(f"x must be one of {', '.join(coords)}, got {shown(along)}")
    ax = pyplot.subplots()[1] if ax is None else ax
    others = [axis for axis in coords if axis != along]
    for index in np.ndindex(*(len(coords[axis]) for axis in others)):
        here = {axis: coords[axis][i] for axis, i in zip(others, index, strict=True)}
        if any(here.get(axis, wanted) != wanted for axis, wanted in labels.items()):
            continue
        place = dict(zip(others, index, strict=True))
        where = tuple(place.get(axis, slice(None)) for axis in coords)
        free = {axis: each for axis, each in here.items() if axis not in labels and len(coords[axis]) > 1}
        line = ", ".join(str(each) for each in free.values())
        ax.errorbar(
            _positions(coords[along]),
            value[where],
            error[where],
            marker="o",
            markersize=3,
            linewidth=1,
            capsize=2,
            label=line or None,
        )
    _name_axes(ax, along, coords[along], title)
    return ax


def _positions(labels: tuple[Any, ...]) -> Any:
    return labels if _is_numeric(labels) else range(len(labels))


def _is_numeric(labels: tuple[Any, ...]) -> bool:
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in labels)


def _name_axes(ax: Axes, along: str, labels: tuple[Any, ...], title: str) -> None:
    ax.set_xlabel(along)
    ax.set_ylabel(title)
    if not _is_numeric(labels):
        ax.set_xticks(range(len(labels)), [str(each) for each in labels])
    elif min(labels) > 0 and max(labels) >= 16 * min(labels):
        ax.set_xscale("log", base=2)
        ax.set_xticks(labels, [str(each) for each in labels])
    if ax.get_legend_handles_labels()[1]:
        ax.legend(frameon=False, fontsize="small")
