# SPDX-License-Identifier: BSD-3-Clause
"""What variants of attention cost, and what their weights are like, against n."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._checks import shown
from ._style import COLOURS, new_axes, style
from ._ticks import length_ticks, log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["variant_costs", "variant_weights"]

_UNITS = {"seconds": "time of one call (s)", "bytes": "memory on top of the inputs (bytes)"}
_MEASURES = {
    "entropy": r"entropy / $\ln n$",
    "max_weight": "largest weight",
    "needle_weight": "weight of the nearest key",
    "support": "keys with a weight / $n$",
    "effective_rank": "effective rank / $n$",
}


class VariantCost(Protocol):
    """What one call took; None where it was not measured."""

    @property
    def variant(self) -> str: ...
    @property
    def n(self) -> int: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def bytes(self) -> int | None: ...


_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))


def variant_costs(
    costs: Sequence[VariantCost], *, what: str = "seconds", ax: Axes | None = None, legend: bool = True
) -> Axes:
    """Time or memory of one call against n, on logarithmic scales: the slope is the power of n.

    Parameters
    ----------
    costs : sequence
        Each has ``variant``, ``n``, ``seconds`` and ``bytes``, as those that ``benchmarks/variant_costs.py``
        measures; None is left out.
    what : {"seconds", "bytes"}
    ax : matplotlib Axes, optional
    legend : bool, default True
        Name the lines beside the axes.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        Another ``what``; no cost that was measured.

    Examples
    --------
    >>> from collections import namedtuple
    >>> Cost = namedtuple("Cost", "variant n seconds bytes")
    >>> ax = variant_costs([Cost("exact", n, 1e-9 * n**2, 100 * n) for n in (1024, 4096)])
    >>> ax.get_ylabel()
    'time of one call (s)'
    """
    label = _label_of(what, _UNITS)
    _check_each("costs", costs, lambda cost: all(hasattr(cost, name) for name in ("variant", "n", what)))
    measured = [(cost.variant, cost.n, getattr(cost, what)) for cost in costs if getattr(cost, what)]
    if not measured:
        raise ValueError("costs must hold a measured one, got none")
    with style():
        ax = new_axes(ax)
        _draw_lines(ax, measured, [cost.variant for cost in costs], legend=legend)
        ax.set_yscale("log")
        log_ticks(ax.yaxis)
        ax.set_xlabel("queries and keys, $n$")
        ax.set_ylabel(label)
    return ax


def variant_weights(
    rows: Sequence[Mapping[str, Any]], *, what: str = "entropy", ax: Axes | None = None, legend: bool = True
) -> Axes:
    """One measure of the variants' weights against n.

    Parameters
    ----------
    rows : sequence of mappings
        With "variant", "n" and the measure, as ``benchmarks/variant_weights.py --json`` prints them.
    what : {"entropy", "max_weight", "needle_weight", "support", "effective_rank"}
        Entropy is drawn over ln n, support and effective rank over n: 1 is the most they can be.
    ax : matplotlib Axes, optional
    legend : bool, default True
        Name the lines beside the axes.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        Another ``what``; no rows.

    Examples
    --------
    >>> rows = [{"variant": "softmax", "n": n, "entropy": 0.7 * np.log(n)} for n in (64, 512)]
    >>> ax = variant_weights(rows)
    >>> ax.lines[0].get_ydata().round(2).tolist()
    [0.7, 0.7]
    """
    label = _label_of(what, _MEASURES)
    _check_each("rows", rows, lambda row: isinstance(row, Mapping) and {"variant", "n", what} <= row.keys())
    if not rows:
        raise ValueError("rows must hold a measured one, got none")
    with style():
        ax = new_axes(ax)
        points = [(row["variant"], row["n"], row[what] / _most(what, row["n"])) for row in rows]
        _draw_lines(ax, points, [row["variant"] for row in rows], legend=legend)
        ax.set_ylim(bottom=0, top=1.05 if what == "entropy" else None)
        ax.set_xlabel("keys, $n$")
        ax.set_ylabel(label)
    return ax


def _most(what: str, n: int) -> float:
    """What the figure of a measure divides by."""
    if what == "entropy":
        return float(np.log(n))
    return n if what in ("support", "effective_rank") else 1


def _label_of(what: str, labels: Mapping[str, str]) -> str:
    if what not in labels:
        raise ValueError(f"what must be one of {', '.join(map(repr, labels))}, got {shown(what)}")
    return labels[what]


def _check_each(name: str, given: Any, fits: Callable[[Any], bool]) -> None:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise TypeError(f"{name} must be a sequence of measurements, got {shown(given)}")
    for each in given:
        if not fits(each):
            raise TypeError(f"{name} must each have a variant, n and what is drawn, got {shown(each)}")


def _draw_lines(
    ax: Axes, points: Iterable[tuple[str, int, float]], names: Iterable[str], *, legend: bool
) -> None:
    """(name, n, value) as one line a name. `names` are of all lines, so that two figures agree in colours."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for name, n, value in points:
        lines.setdefault(name, []).append((n, value))
    order = list(dict.fromkeys(names))
    for name, line in lines.items():
        turn, colour = divmod(order.index(name), len(COLOURS))
        dashes: Any = _DASHES[turn % len(_DASHES)]
        ax.plot(*zip(*line, strict=True), color=COLOURS[colour], linestyle=dashes, marker="o", label=name)
    length_ticks(ax, sorted({n for line in lines.values() for n, _ in line}))
    if legend:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=3)
