# SPDX-License-Identifier: BSD-3-Clause
"""Results of experiments as curves: one for each combination of the parameters that are not x."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._style import COLOURS, MARKERS, law_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AXIS_LABELS", "Curve", "draw_curves", "is_result", "quantity_label", "read_curves", "x_values"]

_Array = NDArray[np.float64]

AXIS_LABELS = {
    "n": "keys per query, $n$",
    "head_dim": "head dimension, $d$",
    "k": "dimensions after projection, $k$",
}
_QUANTITIES = {
    "entropy": "mean entropy (nats)",
    "saturated": "rows with a weight above 0.99",
    "jacobian_trace": r"trace of the Jacobian, $1 - \sum p^2$",
    "jacobian_norm": r"norm of the Jacobian, $\|J\|_F$",
    "needle_weight": "weight of the needle",
    "needle_is_top": "needle has the largest weight",
    "max_cosine": "largest cosine",
    "accuracy": "retrieval accuracy",
    "error_variance": "variance of the average",
    "concentration": r"$\sum p^2$",
    "distortion": "largest relative change of $|x - y|^2$",
    "effective_rank": "effective rank",
    "support": "keys with a positive weight",
    "effective_keys": r"effective keys, $e^H$",
    "variance": r"variance of $q \cdot k$",
    "scaled_variance": r"variance of $q \cdot k / \sqrt{d}$",
}


@dataclass(frozen=True, eq=False)
class Curve:
    """Values and standard errors along x, and the exact values where they are known."""

    label: str
    x: _Array
    value: _Array
    error: _Array
    exact: _Array | None


def is_result(given: Any) -> bool:
    """Whether it is a result of an experiment or a Dataset of one."""
    return hasattr(given, "data_vars") or hasattr(given, "estimates")


def quantity_label(name: str) -> str:
    """What an axis that shows this quantity is called."""
    return _QUANTITIES.get(name, name.replace("_", " "))


def read_curves(
    result: Any, x: str, quantity: str | None = None, labels: Mapping[str, str] | None = None
) -> tuple[str, list[Curve]]:
    """Name of the quantity, and its curves against the axis `x`.

    Parameters
    ----------
    result : ExperimentResult, or its Dataset, or that of a sweep over the experiment
    x : str
        An axis of numbers.
    quantity : str, optional
        The main one by default.
    labels : mapping, optional
        What to print for the values of the other axes.
    """
    name, axes, value, error, exact = _arrays(result, quantity)
    if x not in axes:
        seen = ", ".join(axes) or "none"
        raise ValueError(f"the result must have an axis {x!r}, got the axes: {seen}")
    order = np.argsort(np.asarray(axes[x], np.float64))
    others = {axis: values for axis, values in axes.items() if axis != x and len(values) > 1}
    place = list(axes)
    curves = []
    for chosen in itertools.product(*(range(len(values)) for values in others.values())):
        at = dict(zip(others, chosen, strict=True))
        index = tuple(order if axis == x else at.get(axis, 0) for axis in place)
        words = [_word(axis, others[axis][i], labels) for axis, i in at.items()]
        known = None if exact is None else exact[index]
        curves.append(
            Curve(", ".join(words), np.asarray(axes[x], np.float64)[order], value[index], error[index], known)
        )
    return name, curves


def x_values(axes: Mapping[str, Sequence[Any]], preferred: Sequence[str]) -> str | None:
    """The axis to put along x: a preferred one, else any of numbers."""
    for name in (*preferred, *axes):
        if name in axes and not any(isinstance(label, str) for label in axes[name]):
            return name
    return None


def draw_curves(ax: Axes, curves: Sequence[Curve], *, join: bool = True) -> list[str]:
    """Points with error bars on the exact curve, or joined where there is none; their colours.

    Bars are one standard error to each side.
    """
    colours = []
    for index, curve in enumerate(curves):
        colour = COLOURS[index % len(COLOURS)]
        marker = MARKERS[index % len(MARKERS)][0]
        colours.append(colour)
        if curve.exact is not None:
            ax.plot(curve.x, curve.exact, color=colour, linewidth=1.4)
        elif join:
            ax.plot(curve.x, curve.value, color=colour, linewidth=0.9, alpha=0.6)
        ax.errorbar(
            curve.x,
            curve.value,
            curve.error,
            color=colour,
            linestyle="none",
            marker=marker,
            markersize=4.5,
            markerfacecolor="white" if curve.exact is not None else colour,
            elinewidth=1.1,
            capsize=2.5,
            label=curve.label,
            zorder=3,
        )
    return colours


def _word(axis: str, label: Any, labels: Mapping[str, str] | None) -> str:
    if isinstance(label, str):
        return law_label(label, labels)
    if isinstance(label, bool):
        return f"{axis} {label}"
    short = {"head_dim": "d"}.get(axis, axis)
    return rf"${short} = {label:g}$" if len(short) == 1 else f"{short} {label:g}"


def _arrays(
    result: Any, quantity: str | None
) -> tuple[str, dict[str, list[Any]], _Array, _Array, _Array | None]:
    """Name, axes, value, standard error and exact value (or None)."""
    if hasattr(result, "estimates"):
        name = quantity or result.quantity
        estimate, axes = result[name], {axis: list(labels) for axis, labels in result.axes.items()}
        return (
            name,
            axes,
            np.asarray(estimate.value),
            np.asarray(estimate.standard_error),
            result.exact().get(name),
        )
    main = str(result["value"].attrs.get("long_name", "value")) if "value" in result else None
    name = quantity or main or next(iter(result.data_vars))
    prefix = "" if name == main else f"{name}_"
    variable = result["value" if name == main else name]
    axes = {str(dim): variable[dim].values.tolist() for dim in variable.dims}
    error = result.get(f"{prefix}standard_error")
    known = result["exact"] if name == main and "exact" in result else None
    return (
        name,
        axes,
        variable.values,
        np.full(variable.shape, np.nan) if error is None else error.values,
        None if known is None else known.values,
    )
