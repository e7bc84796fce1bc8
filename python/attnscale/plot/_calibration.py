# SPDX-License-Identifier: BSD-3-Clause
"""Measured beta against length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ._length import label_lines
from ._style import GREY, colours, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from ..laws import Law

__all__ = ["calibrated_beta"]


class _Calibration(Protocol):
    """What is drawn of a calibration, whose method ``plot`` leads here."""

    @property
    def n0(self) -> int: ...
    @property
    def lengths(self) -> NDArray[np.int64]: ...
    @property
    def beta(self) -> NDArray[np.float64]: ...
    @property
    def laws(self) -> Sequence[Law]: ...
    @property
    def law_beta(self) -> NDArray[np.float64]: ...
    @property
    def ranking(self) -> Mapping[str, float]: ...


def calibrated_beta(found: _Calibration, *, laws: int = 3, ax: Axes | None = None) -> Axes:
    """Beta that keeps each head's entropy against n, with its median and the best laws.

    The axis shows the middle four fifths of the heads: where a head attends to one key, beta can be
    anything.

    Parameters
    ----------
    found : Calibration
        Of :func:`attnscale.calibrate`.
    laws : int, default 3
        How many laws to draw, those of the least entropy error first; each is the median of its
        fits to the heads. Laws that are equal up to their amplitude are one line.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.random.default_rng(0).standard_normal((2, 2, 64, 16))
    >>> ax = calibrated_beta(at.calibrate(q, k, n0=32, laws=["standard", "log_n"]))
    >>> ax.get_xlabel()
    'keys per query, $n$'
    """
    n = found.lengths.astype(np.float64)
    heads = found.beta.reshape(-1, n.size)
    names = [law.name for law in found.laws]
    best = [names.index(group.split(" = ")[0]) for group in list(found.ranking)[:laws]]
    with style():
        ax = new_axes(ax)
        ax.plot(n, heads.T, color=GREY, linewidth=0.6, alpha=0.45)
        lines = [(np.nanmedian(heads, axis=0), "measured, median", "#000000")]
        for index, colour in zip(best, colours(len(best)), strict=True):
            fitted = np.nanmedian(found.law_beta[index].reshape(-1, n.size), axis=0)
            lines.append((fitted, names[index], colour))
        for values, _, colour in lines:
            ax.plot(n, values, color=colour, marker="o")
        middle = np.nanquantile(heads, [0.1, 0.9], axis=0).ravel()
        shown = np.concatenate([*(line[0] for line in lines), middle])
        ax.set_ylim(0.95 * np.nanmin(shown), 1.05 * np.nanmax(shown))
        ax.set_xscale("log", base=2)
        ax.set_xticks(n, [f"{int(length)}" for length in n])
        ax.set_xticks([], minor=True)
        ax.set_xlabel("keys per query, $n$")
        ax.set_ylabel(rf"$\beta$ that keeps the entropy of $n = {found.n0}$")
        label_lines(ax, n, [line for line in lines if np.isfinite(line[0][[0, -1]]).all()])
    return ax
