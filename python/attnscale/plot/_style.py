# SPDX-License-Identifier: BSD-3-Clause
"""The one style of all figures: colours, marks, names of laws, settings for print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._checks import shown
from .._spelling import as_number
from ..laws import Constant, Law, LogN, get
from ._inputs import check_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Okabe and Ito 2008, in the order of use: blue, vermilion, green, orange, sky blue, purple, black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#000000")
GREY = "#6E6E6E"
# Ever smaller marks, so that one that lies on another leaves it visible.
MARKERS = (("o", 34), ("D", 17), ("s", 7), ("^", 34), ("v", 17), ("P", 17), ("X", 7))

LABELS = {
    "standard": r"standard, $1/\sqrt{d}$",
    "log_n": r"$\log_{512} n\,/\sqrt{d}$",
    "natural_log_n": r"$\ln n\,/\sqrt{d}$",
    "unscaled": "unscaled, $1$",
    "entropy_invariant": "entropy-invariant",
}

# 3.4 inches is one column of a two-column page; TrueType fonts keep text searchable in PDF and SVG.
_STYLE: Any = {
    "figure.figsize": (4.6, 3.2),
    "figure.dpi": 120,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib settings of this package's figures, for the time of a ``with`` block.

    Examples
    --------
    >>> import matplotlib
    >>> with style():
    ...     print(matplotlib.rcParams["axes.spines.top"])
    False
    """
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        yield


def law_label(name: str, labels: Mapping[str, str] | None = None) -> str:
    """What to print for a law: its entry in `labels` or LABELS, a formula for log_n, else its spelling."""
    if labels is not None and not isinstance(labels, Mapping):
        raise TypeError(f"labels must be a mapping from names to what is printed, got {shown(labels)}")
    known, law = {**LABELS, **(labels or {})}, law_of(name)
    spelled = name if law is None or isinstance(law, Constant) else law.spelling
    if spelled not in known and isinstance(law, LogN) and law.floor == 1:
        return rf"$\log_{{{as_number(law.base)}}} n\,/\sqrt{{d}}$"
    return known.get(name) or known.get(spelled, spelled)


def law_of(name: str) -> Law | None:
    """The law that `name` spells; None for everything else."""
    try:
        return get(name)
    except (TypeError, ValueError):
        return None


def new_axes(ax: Axes | None, *, height: float | None = None, width: float | None = None) -> Axes:
    """`ax`, or the axes of a new figure."""
    if ax is not None:
        check_axes(ax)
        return ax
    import matplotlib.pyplot as plt

    size = [given or usual for given, usual in zip((width, height), _STYLE["figure.figsize"], strict=True)]
    axes: Axes = plt.subplots(figsize=size)[1]
    return axes
