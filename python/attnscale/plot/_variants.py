# SPDX-License-Identifier: BSD-3-Clause
"""What variants of attention cost against n."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._style import COLOURS, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..bench import VariantCost

__all__ = ["variant_costs"]

_UNITS = {"seconds": "time of one call (s)", "bytes": "memory on top of the inputs (bytes)"}
_LINES = ("-", (0, (4, 2)), (0, (1, 1.5)))


def variant_costs(costs: Sequence[VariantCost], *, what: str = "seconds", ax: Axes | None = None) -> Axes:
    """Time or memory of one call against n, on logarithmic scales: the slope is the power of n.

    Parameters
    ----------
    costs : sequence of VariantCost
        As from ``attnscale.bench.run_variants``; what was not run is left out.
    what : {"seconds", "bytes"}
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        Another ``what``; no cost that was measured.

    Examples
    --------
    >>> from attnscale.bench import VariantCost
    >>> ax = variant_costs([VariantCost("exact", n, 1e-9 * n**2, 100 * n) for n in (1024, 4096)])
    >>> ax.get_ylabel()
    'time of one call (s)'
    """
    if what not in _UNITS:
        raise ValueError(f"what must be one of 'seconds', 'bytes', got {what!r}")
    lines: dict[str, list[tuple[int, float]]] = {}
    for cost in costs:
        value = getattr(cost, what)
        if value:
            lines.setdefault(cost.variant, []).append((cost.n, value))
    if not lines:
        raise ValueError("costs must hold a measured one, got none")
    with style():
        ax = new_axes(ax)
        for index, (name, points) in enumerate(lines.items()):
            dashes: Any = _LINES[index // len(COLOURS) % len(_LINES)]
            x, y = zip(*points, strict=True)
            ax.plot(x, y, color=COLOURS[index % len(COLOURS)], linestyle=dashes, marker="o", label=name)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ticks = sorted({n for points in lines.values() for n, _ in points})
        ax.set_xticks(ticks, [str(n) for n in ticks])
        ax.set_xticks([], minor=True)
        ax.set_xlabel("queries and keys, $n$")
        ax.set_ylabel(_UNITS[what])
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax
