# SPDX-License-Identifier: BSD-3-Clause
"""Measured beta against length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._checks import positive_int, shown
from ._curves import AXIS_LABELS
from ._looks import looks
from ._names import Named, key_below, name_lines, subtitle
from ._style import GREY, new_axes, style
from ._ticks import length_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from ..laws import Law


class _Calibration(Protocol):
    """The fields of a calibration that are drawn by its method ``plot``."""

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
    def groups(self) -> Sequence[Sequence[int]]: ...


def calibrated_beta(found: _Calibration, *, laws: int = 3, ax: Axes | None = None) -> Axes:
    """Beta that keeps each head's entropy against n, with its median and the best laws.

    The axis shows the middle four fifths of the heads: where a head attends to one key, beta can be
    anything.

    Parameters
    ----------
    found : Calibration
        A result of :func:`attnscale.calibrate`.
    laws : int, default 3
        How many laws to draw, those of the least entropy error first; each is the median of its
        fits to the heads, computed at the lengths. Laws that are equal up to their amplitude are one
        line.
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
    if not hasattr(found, "law_beta"):
        raise TypeError(f"found must be a Calibration, as attnscale.calibrate returns, got {shown(found)}")
    n = found.lengths.astype(np.float64)
    heads = np.asarray(found.beta).reshape(-1, n.size)
    groups = found.groups[: positive_int("laws", laws)]
    spelled = [law.spelling for law in found.laws]
    with style():
        ax = new_axes(ax)
        ax.plot(n, heads.T, color=GREY, linewidth=0.6, alpha=0.45)
        lines = [Named(n, _median(heads), "measured, median", "#000000")]
        ax.plot(n, lines[0].y, color="black", marker="o", linewidth=1.8)
        each = zip(groups, looks([spelled[group[0]] for group in groups]), strict=True)
        for index, (group, look) in enumerate(each):
            values = _median(np.asarray(found.law_beta)[group[0]].reshape(-1, n.size))
            width = max(3.0 - index, 1.2)  # a law that lies on another leaves it visible on both sides
            ax.plot(n, values, color=look.colour, linestyle=look.dashes, marker=look.marker, linewidth=width)
            lines.append(Named(n, values, " =\n".join(spelled[i] for i in group), look.colour))
        middle = np.nanquantile(heads, [0.1, 0.9], axis=0).ravel() if np.isfinite(heads).any() else [1.0]
        shown_values = np.concatenate([*(np.ravel(line.y) for line in lines), middle])
        low, high = 0.95 * np.nanmin(shown_values), 1.05 * np.nanmax(shown_values)
        ax.set_ylim(low, high)
        length_ticks(ax, n)
        ax.set_xlabel(AXIS_LABELS["n"])
        ax.set_ylabel(rf"$\beta$ that keeps the entropy of $n = {found.n0}$")
        name_lines(ax, lines)
        with np.errstate(invalid="ignore"):
            outside = int(((heads < low) | (heads > high)).any(1).sum())
        key_below(ax, _key(len(heads), outside))
    subtitle(ax, "Each law times a constant of the head, median of the heads")
    return ax


def _median(heads: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median over the heads that have a number; NaN where none has."""
    known = np.isfinite(heads).any(0)
    found = np.full(heads.shape[1], np.nan)
    found[known] = np.nanmedian(heads[:, known], axis=0)
    return found


def _key(n_heads: int, outside: int) -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D

    text = f"{n_heads} heads, measured"
    if outside:
        text += f" ({outside} of them {'leaves' if outside == 1 else 'leave'} the frame)"
    return [(Line2D([], [], color=GREY, linewidth=0.8), text)]
