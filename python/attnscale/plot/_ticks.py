# SPDX-License-Identifier: BSD-3-Clause
"""Ticks that matplotlib chooses at each drawing. Importing this imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FixedLocator, Formatter

from ._text import plain, printed

if TYPE_CHECKING:
    from matplotlib.axis import Axis

_LETTER = 0.64  # width of a figure, in units of the font size


class Roomy(FixedLocator):
    """Ticks of an x axis at increasing values whose labels fit, the last one first.

    The layout may narrow the axis after the ticks were set.
    """

    def __init__(self, axis: Axis, values: Sequence[float]) -> None:
        super().__init__(values)
        self._of, self._values = axis, [float(value) for value in values]

    def __call__(self) -> Any:
        """The values that fit now."""
        ax, values = self._of.axes, self._values
        size = self._of.get_tick_params().get("labelsize", 8)
        letter = _LETTER * FontProperties(size=size).get_size_in_points() * ax.figure.dpi / 72
        places = ax.transData.transform([(value, ax.get_ylim()[0]) for value in values])[:, 0]
        wide = [letter * printed(plain(value)) for value in values]
        chosen = [len(values) - 1]
        for index in range(len(values) - 2, -1, -1):
            last = chosen[-1]
            if abs(places[last] - places[index]) > (wide[index] + wide[last]) / 2 + letter:
                chosen.append(index)
        return np.array([values[index] for index in reversed(chosen)])


class Plain(Formatter):
    """Tick labels by `plain`."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The text of a tick."""
        return plain(x)
