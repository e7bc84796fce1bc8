# SPDX-License-Identifier: BSD-3-Clause
"""Results of experiments as curves: one for each combination of the parameters that are not x."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._spelling import as_number
from .._tables.tabled import Unit, nats_per
from ._exact import exact_curve
from ._looks import looks
from ._names import Named
from ._style import GREY, law_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "AXIS_LABELS",
    "Curve",
    "draw_curves",
    "is_result",
    "points_key",
    "quantity_label",
    "read_curves",
    "unchanging",
    "unit_of",
    "x_values",
]

_Array = NDArray[np.float64]

AXIS_LABELS = {
    "n": "keys per query, $n$",
    "head_dim": "head dimension, $d$",
    "k": "dimensions after projection, $k$",
    "cosine": "cosine of the needle",
}
_QUANTITIES = {
    "entropy": "mean entropy",
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
    """Values and standard errors along x, and the exact curve where it is known.

    `exact` has its own, denser x, unless it is known at the points alone.
    """

    label: str
    law: str
    x: _Array
    value: _Array
    error: _Array
    exact: tuple[_Array, _Array] | None


class _Arrays(NamedTuple):
    """One quantity on its axes, an entropy in nats; exact is None where it is not known."""

    name: str
    is_entropy: bool
    axes: dict[str, list[Any]]
    value: _Array
    error: _Array
    exact: _Array | None


def is_result(given: Any) -> bool:
    """Whether it is a result of an experiment or a Dataset of one."""
    return hasattr(given, "data_vars") or hasattr(given, "estimates")


def quantity_label(name: str, unit: str = "") -> str:
    """What an axis that shows this quantity is called."""
    text = _QUANTITIES.get(name, name.replace("_", " "))
    return f"{text} ({unit})" if unit else text


def unit_of(result: Any, quantity: str | None, unit: Unit) -> str:
    """`unit`, checked, if the quantity is an entropy; else nothing."""
    nats_per(unit)
    return unit if _arrays(result, quantity).is_entropy else ""


def read_curves(
    result: Any,
    x: str,
    quantity: str | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    unit: Unit = "nats",
    default: str = "",
) -> tuple[str, list[Curve]]:
    """Name of the quantity, and its curves against the axis `x`.

    A parameter that changes nothing, as eps does to a distortion, has one curve for all of its values.

    Parameters
    ----------
    result : ExperimentResult, or its Dataset, or that of a sweep over the experiment
    x : str
        An axis of numbers.
    quantity : str, optional
        The main one by default.
    labels : mapping, optional
        What to print for the values of the other axes.
    unit : {"nats", "bits"}
        Of an entropy.
    default : {"nat", ""}
        The unit of a variable that does not say it.
    """
    arrays = _arrays(result, quantity, default)
    nats = nats_per(unit) if arrays.is_entropy else 1.0
    axes = arrays.axes
    if x not in axes:
        seen = ", ".join(axes) or "none"
        raise ValueError(f"the result must have an axis {x!r}, got the axes: {seen}")
    order = np.argsort(np.asarray(axes[x], np.float64))
    others = {axis: values for axis, values in axes.items() if axis != x and _matters(arrays, axis)}
    dense = None if arrays.exact is None else exact_curve(result, axes, x, arrays.name)
    along = np.asarray(axes[x], np.float64)[order]
    curves = []
    for chosen in itertools.product(*(range(len(values)) for values in others.values())):
        at = dict(zip(others, chosen, strict=True))
        index = tuple(order if axis == x else at.get(axis, 0) for axis in axes)
        words = [_word(axis, others[axis][i], labels) for axis, i in at.items()]
        known = None if arrays.exact is None else (along, arrays.exact[index])
        if dense is not None:
            rest = tuple(at.get(axis, 0) for axis in axes if axis != x)
            known = dense[0], np.moveaxis(dense[1], 0, -1)[rest]
        known = known and (known[0], known[1] / nats)
        law = next(
            (str(others[axis][i]) for axis, i in at.items() if axis in ("law", "scale")), ", ".join(words)
        )
        value, error = arrays.value[index] / nats, arrays.error[index] / nats
        curves.append(Curve(", ".join(words), law, along, value, error, known))
    return arrays.name, curves


def unchanging(result: Any, x: str, quantity: str | None = None) -> list[str]:
    """Axes besides `x` with several values at all of which the quantity is the same."""
    arrays = _arrays(result, quantity)
    return [
        axis
        for axis, values in arrays.axes.items()
        if axis != x and len(values) > 1 and not _matters(arrays, axis)
    ]


def x_values(axes: Mapping[str, Sequence[Any]], preferred: Sequence[str]) -> str | None:
    """The axis to put along x: a preferred one that varies, else the one with the most numbers."""
    numeric = [
        name for name, values in axes.items() if not any(isinstance(label, (str, bool)) for label in values)
    ]
    varies = [name for name in preferred if name in numeric and len(axes[name]) > 1]
    if varies:
        return varies[0]
    return max(numeric, key=lambda name: len(axes[name])) if numeric else None


def draw_curves(ax: Axes, curves: Sequence[Curve], *, join: bool = True) -> list[Named]:
    """Points with error bars on the exact curve, or joined where there is none; the lines to name.

    Bars are one standard error to each side. Exact values that are known at the points alone are bars
    across them, not lines.
    """
    named = []
    for curve, look in zip(curves, looks([curve.law for curve in curves]), strict=True):
        line = Named(curve.x, curve.value, curve.label, look.colour)
        if curve.exact is not None:
            here = curve.exact[0] is curve.x
            style: dict[str, Any] = (
                {"linestyle": "none", "marker": "_"} if here else {"linestyle": look.dashes}
            )
            ax.plot(*curve.exact, color=look.colour, linewidth=1.4, markersize=14, **style)
            line = line._replace(x=curve.exact[0], y=curve.exact[1])
        elif join:
            ax.plot(curve.x, curve.value, color=look.colour, linestyle=look.dashes, linewidth=0.9, alpha=0.6)
        ax.errorbar(
            curve.x,
            curve.value,
            curve.error if np.isfinite(curve.error).any() else None,
            color=look.colour,
            linestyle="none",
            marker=look.marker,
            markersize=4.5,
            markerfacecolor="white" if curve.exact is not None else look.colour,
            elinewidth=1.1,
            capsize=2.5,
            label=curve.label,
            zorder=3,
        )
        named.append(line)
    return named


def points_key(
    curves: Sequence[Curve], points: str = "Monte Carlo, one standard error"
) -> list[tuple[Any, str]]:
    """The entry of the key that says what points and lines are; none for numbers without errors."""
    from matplotlib.lines import Line2D

    if not any(np.isfinite(curve.error).any() for curve in curves):
        return []
    exact = [curve for curve in curves if curve.exact is not None]
    at_points = bool(exact) and exact[0].exact is not None and exact[0].exact[0] is exact[0].x
    text = f"points: {points}"
    if exact:
        text += f"; {'bar' if at_points else 'line'}: exact"
    handle = Line2D(
        [],
        [],
        color=GREY,
        linewidth=1.4 if exact else 0.9,
        marker="o",
        markersize=4.5,
        markerfacecolor="white" if exact else GREY,
    )
    return [(handle, text)]


def _matters(arrays: _Arrays, axis: str) -> bool:
    """Whether the axis has several values, and the quantity is not the same at all of them."""
    place = list(arrays.axes).index(axis)
    if len(arrays.axes[axis]) == 1:
        return False
    each = [np.moveaxis(part, place, 0) for part in (arrays.value, arrays.error)]
    return not all(
        np.array_equal(part, np.broadcast_to(part[:1], part.shape), equal_nan=True) for part in each
    )


def _word(axis: str, label: Any, labels: Mapping[str, str] | None) -> str:
    if isinstance(label, str):
        return law_label(label, labels)
    if isinstance(label, bool):
        return f"{axis} {label}"
    short = {"head_dim": "d"}.get(axis, axis)
    number = as_number(label)
    return rf"${short} = {number}$" if len(short) == 1 else f"{short} {number}"


def _arrays(result: Any, quantity: str | None, default: str = "") -> _Arrays:
    if hasattr(result, "estimates"):
        name = quantity or result.quantity
        estimate, axes = result[name], {axis: list(labels) for axis, labels in result.axes.items()}
        value, error = np.asarray(estimate.value), np.asarray(estimate.standard_error)
        return _Arrays(name, estimate.unit == "nat", axes, value, error, result.exact().get(name))
    main = str(result["value"].attrs.get("long_name", "value")) if "value" in result else None
    name = quantity or main or next(iter(result.data_vars))
    prefix = "" if name == main else f"{name}_"
    variable = result["value" if name == main else name]
    axes = {str(dim): variable[dim].values.tolist() for dim in variable.dims}
    error = result.get(f"{prefix}standard_error")
    known = result["exact"] if name == main and "exact" in result else None
    kind = variable.attrs.get("units", default)
    size = nats_per("bits") if kind == "bit" else 1  # of to_xarray(unit="bits")
    return _Arrays(
        name,
        kind in ("nat", "bit"),
        axes,
        variable.values * size,
        np.full(variable.shape, np.nan) if error is None else error.values * size,
        None if known is None else known.values * size,
    )
