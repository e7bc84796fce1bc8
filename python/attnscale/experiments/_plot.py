# SPDX-License-Identifier: BSD-3-Clause
"""A result as lines with error bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._result import TrainingResult

__all__ = ["draw"]


def draw(result: TrainingResult, name: str, x: str | None, labels: dict[str, Any], ax: Axes | None) -> Axes:
    """Mean and standard error over the seeds along `x`, a line for each point of the axes that are left."""
    from matplotlib import pyplot

    variable = result.variables[name]
    found = result[name]
    coords = {axis: known for axis, known in result.axes.items() if axis != "seed"} | dict(variable.coords)
    along = x if x is not None else list(coords)[-1]
    if along not in coords:
        raise ValueError(f"x must be one of {', '.join(coords)}, got {along!r}")
    result.select(name, **labels)  # refuses labels that are not there
    ax = pyplot.subplots()[1] if ax is None else ax
    others = [axis for axis in coords if axis != along]
    for index in np.ndindex(*(len(coords[axis]) for axis in others)):
        here = {axis: coords[axis][i] for axis, i in zip(others, index, strict=True)}
        if any(here.get(axis, wanted) != wanted for axis, wanted in labels.items()):
            continue
        place = dict(zip(others, index, strict=True))
        where = tuple(place.get(axis, slice(None)) for axis in coords)
        free = {axis: each for axis, each in here.items() if axis not in labels and len(coords[axis]) > 1}
        title = ", ".join(str(each) for each in free.values())
        ax.errorbar(
            _positions(coords[along]),
            found.value[where],
            found.standard_error[where],
            marker="o",
            markersize=3,
            linewidth=1,
            capsize=2,
            label=title or None,
        )
    _name_axes(ax, along, coords[along], name, variable.unit)
    return ax


def _positions(labels: tuple[Any, ...]) -> Any:
    return labels if _is_numeric(labels) else range(len(labels))


def _is_numeric(labels: tuple[Any, ...]) -> bool:
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in labels)


def _name_axes(ax: Axes, along: str, labels: tuple[Any, ...], name: str, unit: str) -> None:
    ax.set_xlabel(along)
    ax.set_ylabel(f"{name.replace('_', ' ')}{f' ({unit})' if unit else ''}")
    if not _is_numeric(labels):
        ax.set_xticks(range(len(labels)), [str(each) for each in labels])
    elif min(labels) > 0 and max(labels) >= 16 * min(labels):
        ax.set_xscale("log", base=2)
        ax.set_xticks(labels, [str(each) for each in labels])
    if ax.get_legend_handles_labels()[1]:
        ax.legend(frameon=False, fontsize="small")
