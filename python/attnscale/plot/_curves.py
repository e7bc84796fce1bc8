# SPDX-License-Identifier: BSD-3-Clause
"""Tables of results as curves: one for each combination of the parameters other than x."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._base.spelling import as_number
from .._base.tabled import Unit, nats_per
from .._grid.table import Column, Table
from ..montecarlo._experiment import DECLARATIONS
from ._exact import exact_curve
from ._names import Named
from ._style import GREY, law_label, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Array = NDArray[np.float64]

AXIS_LABELS = {
    "n": "keys per query, $n$",
    "head_dim": "head dimension, $d$",
    "k": "dimensions after projection, $k$",
    "cosine": "cosine of the needle",
}


@dataclass(frozen=True, eq=False)
class Curve:
    """Values and standard errors along x, and the exact curve if it is known.

    `exact` has its own, denser x, unless it is known only at the points.
    """

    label: str
    law: str
    x: _Array
    value: _Array
    error: _Array
    exact: tuple[_Array, _Array] | None


def quantity_label(name: str, unit: str = "") -> str:
    """Axis label of a quantity."""
    declared = (each.quantities[name].label for each in DECLARATIONS.values() if name in each.quantities)
    text = next(filter(None, declared), name.replace("_", " "))
    return f"{text} ({unit})" if unit else text


def unit_of(table: Table, quantity: str | None, unit: Unit) -> str:
    """`unit`, checked, if the quantity is an entropy; else empty."""
    nats_per(unit)
    return unit if table.column(quantity).unit == "nat" else ""


def read_curves(
    table: Table,
    x: str,
    quantity: str | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    unit: Unit = "nats",
) -> list[Curve]:
    """The curves of a quantity, the main one by default, against an axis `x` of numbers.

    A parameter without effect, such as eps for a distortion, has one curve for all of its values. `labels`
    are printed for values of the other axes.
    """
    name = quantity or table.names()[0]
    column = table.column(name)
    if x not in column.axes:
        seen = ", ".join(column.axes) or "none"
        raise ValueError(f"the result must have an axis {x!r}, got the axes: {seen}")
    dense = None if column.exact is None else exact_curve(table, column.axes, x, name)
    return curves_of(column, x, labels, unit=unit, dense=dense)


def curves_of(
    column: Column,
    x: str,
    labels: Mapping[str, str] | None = None,
    *,
    unit: Unit = "nats",
    dense: tuple[_Array, _Array] | None = None,
    told_apart: Sequence[str] = (),
) -> list[Curve]:
    """The curves of a column against its axis `x`; `dense` are its exact curves, if known.

    Axes that are `told_apart` have a curve for each label even if the values are equal.
    """
    axes, nats = column.axes, nats_per(unit) if column.unit == "nat" else 1.0
    order = np.argsort(np.asarray(axes[x], np.float64))
    others = {
        axis: values
        for axis, values in axes.items()
        if axis != x and ((axis in told_apart and len(values) > 1) or _matters(column, axis))
    }
    error = np.full(column.value.shape, np.nan) if column.error is None else column.error
    along = np.asarray(axes[x], np.float64)[order]
    curves = []
    for chosen in itertools.product(*(range(len(values)) for values in others.values())):
        at = dict(zip(others, chosen, strict=True))
        index = tuple(order if axis == x else at.get(axis, 0) for axis in axes)
        words = [_word(axis, others[axis][i], labels) for axis, i in at.items()]
        known = None if column.exact is None else (along, column.exact[index] / nats)
        if dense is not None:
            rest = tuple(at.get(axis, 0) for axis in axes if axis != x)
            known = dense[0], np.moveaxis(dense[1], 0, -1)[rest] / nats
        law = next(
            (str(others[axis][i]) for axis, i in at.items() if axis in ("law", "scale")), ", ".join(words)
        )
        value = column.value[index] / nats
        curves.append(Curve(", ".join(words), law, along, value, error[index] / nats, known))
    return curves


def unchanging(table: Table, x: str, quantity: str | None = None) -> list[str]:
    """Axes besides `x` with several values that leave the quantity unchanged."""
    column = table.column(quantity)
    return [
        axis
        for axis, values in column.axes.items()
        if axis != x and len(values) > 1 and not _matters(column, axis)
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
    """Draw points with error bars on the exact curve, or joined without one; returns the lines to name.

    Error bars are one standard error to each side. Exact values known only at the points are drawn as bars.
    """
    named = []
    for curve, look in zip(curves, looks([curve.law for curve in curves]), strict=True):
        line = Named(curve.x, curve.value, curve.label, look.colour)
        if curve.exact is not None:
            here = _at_points(curve)
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
    """The legend entry that explains points and lines; none for numbers without errors."""
    from matplotlib.lines import Line2D

    if not any(np.isfinite(curve.error).any() for curve in curves):
        return []
    exact = [curve for curve in curves if curve.exact is not None]
    text = f"points: {points}"
    if exact:
        text += f"; {'bar' if _at_points(exact[0]) else 'line'}: exact"
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


def _at_points(curve: Curve) -> bool:
    """Whether the exact values are known, or wanted, only at single points."""
    return curve.exact is not None and (curve.exact[0] is curve.x or curve.exact[0].size == 1)


def _matters(column: Column, axis: str) -> bool:
    """Whether the axis has several values and the quantity varies along it."""
    if len(column.axes[axis]) == 1:
        return False
    place = list(column.axes).index(axis)
    each = [np.moveaxis(part, place, 0) for part in (column.value, column.error) if part is not None]
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
