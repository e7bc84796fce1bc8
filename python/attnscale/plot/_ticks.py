# SPDX-License-Identifier: BSD-3-Clause
"""Ticks in plain numbers: 4096, 0.5 and 2^20, never 1.7 x 10^0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_MOST = 8


def plain(value: float) -> str:
    """A number as a tick says it.

    Examples
    --------
    >>> plain(65536), plain(2**20), plain(0.25), plain(1e6), plain(1234567)
    ('65536', '$2^{20}$', '0.25', '$10^{6}$', '1.23e6')
    """
    if value < 1e6:
        return f"{value:.6g}"
    for base in (2, 10):
        power = round(float(np.log(value) / np.log(base)))
        if value == base**power:
            return rf"${base}^{{{power}}}$"
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")


def length_ticks(ax: Axes, values: NDArray[np.float64] | Sequence[float]) -> None:
    """A logarithmic x axis with ticks at these values, or at some of them where there are many.

    More than 20 values, as a dense curve has them, get ticks at the powers of two among them.
    """
    ax.set_xscale("log", base=2)
    wanted = np.unique(np.asarray(values, np.float64))
    powers = 2.0 ** np.arange(np.ceil(np.log2(wanted[0])), np.log2(wanted[-1]) + 1e-9)
    if wanted.size > 20 and powers.size >= 3:
        wanted = powers
    least = np.ptp(np.log(wanted)) / _MOST
    chosen = [wanted[-1]]
    for value in wanted[-2::-1]:
        if np.log(chosen[-1] / value) >= 0.999 * least:
            chosen.append(value)
    ticks = [float(value) for value in reversed(chosen)]
    ax.set_xticks(ticks, [plain(tick) for tick in ticks])
    ax.set_xticks([], minor=True)


def log_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis: 1, 2, 5, 10, ... or, over many decades, powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    steps: Any = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    axis.set_major_locator(LogLocator(10, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_locator(NullLocator())
