# SPDX-License-Identifier: BSD-3-Clause
"""Figures of the costs and the weights of variants of attention against n."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attnscale.plot._names import length_ticks, log_ticks
from attnscale.plot._style import COLOURS, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._costs import CallCost

__all__ = ["draw_costs", "draw_weights"]

_UNITS = {"seconds": "time of one call (s)", "bytes": "memory on top of the inputs (bytes)"}
_MEASURES = {
    "entropy": r"entropy / $\ln n$",
    "max_weight": "largest weight",
    "needle_weight": "weight of the nearest key",
    "support": "keys with a weight / $n$",
    "effective_rank": "effective rank / $n$",
}
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)))


def draw_costs(
    costs: Sequence[CallCost],
    ax: Axes,
    *,
    what: str = "seconds",
    beside: Sequence[CallCost] = (),
    legend: bool = True,
) -> None:
    """Draw time or memory of one call against n, on logarithmic scales: the slope is the power of n.

    Costs that were not measured are left out; `what` is "seconds" or "bytes". The variant `beside` is drawn
    thin and grey.
    """
    measured, grey = (
        [(cost.call, cost.n, getattr(cost, what)) for cost in each if getattr(cost, what)]
        for each in (costs, beside)
    )
    with style():
        if grey:
            ax.plot(*zip(*(point[1:] for point in grey), strict=True), "--", color="0.5", label=grey[0][0])
        _draw_lines(ax, measured, [cost.call for cost in costs])
        if legend:
            ax.legend(loc="upper left", handlelength=2, fontsize="small")
        ax.set_yscale("log")
        log_ticks(ax.yaxis)
        ax.set_xlabel("queries and keys, $n$")
        ax.set_ylabel(_UNITS[what])


def draw_weights(
    rows: Sequence[Mapping[str, Any]], ax: Axes, *, what: str = "entropy", legend: bool = True
) -> None:
    """Draw one measure of the variants' weights against n, from rows of ``variant_weights.py --json``.

    Entropy is divided by ln n, support and effective rank by n, so that the maximum is 1.
    """
    points = [(row["variant"], row["n"], row[what] / _most(what, row["n"])) for row in rows]
    with style():
        _draw_lines(ax, points, [row["variant"] for row in rows])
        if legend:
            ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=3)
        ax.set_ylim(bottom=0, top=1.05 if what == "entropy" else None)
        ax.set_xlabel("keys, $n$")
        ax.set_ylabel(_MEASURES[what])


def _most(what: str, n: int) -> float:
    """The maximum of a measure, by which its figure divides."""
    if what == "entropy":
        return float(np.log(n))
    return n if what in ("support", "effective_rank") else 1


def _draw_lines(ax: Axes, points: Iterable[tuple[str, int, float]], names: Iterable[str]) -> None:
    """Draw (name, n, value) as one line per name; the order of `names` fixes the colours in all figures."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for name, n, value in points:
        lines.setdefault(name, []).append((n, value))
    order = list(dict.fromkeys(names))
    for name, line in lines.items():
        turn, colour = divmod(order.index(name), len(COLOURS))
        look = {"color": COLOURS[colour], "linestyle": _DASHES[turn % len(_DASHES)], "marker": "o"}
        ax.plot(*zip(*line, strict=True), label=name, **look)
    length_ticks(ax, sorted({n for line in lines.values() for n, _ in line}))
