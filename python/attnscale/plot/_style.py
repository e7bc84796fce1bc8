# SPDX-License-Identifier: BSD-3-Clause
"""Style of all figures: colours, dashes and marks, names of laws, settings for print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from .._base.checks import number, refusal, shown
from .._base.spelling import as_number
from ..laws import Constant, Law, LogN, get
from ._inputs import check_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Okabe and Ito 2008, in the order of use: blue, vermilion, green, orange, sky blue, purple, black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#000000")
GREY = "#6E6E6E"
# Ever smaller marks, so that a mark on top of another leaves it visible.
MARKERS = (("o", 34), ("D", 17), ("s", 7), ("^", 34), ("v", 17), ("P", 17), ("X", 7))

_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (4, 1.2, 1.2, 1.2, 1.2, 1.2)),
    (0, (8, 2.5)),
)

# One row for each kind of dashes, one column for each colour: the laws that are most often drawn
# together have solid lines.
_LAWS = (
    ("standard", "log_n", "natural_log_n", "entropy_invariant", "annealed", "unscaled", "ssmax"),
    ("mup", "log_n_from_training", "qwen_log_n", "info_scale", "kappa", "grok_temperature", "asentmax"),
    (
        *("constant", "llama4_temperature", "ministral_temperature", "beam_temperature"),
        *("inkling_temperature", "yarn", "longrope"),
    ),
    (
        *("mla_yarn", "layer_index", "disentangled_scale", "latent_scale"),
        *("scale_invariant", "adaptive_temperature", "critical_scale"),
    ),
    ("per_head", "sparsity_invariant", "variance_invariant", "retrieval", "nope_temperature", "log_power"),
    ("norm_softmax", "qk_norm_scale", "swin_v2", "lssa", "selective_temperature"),
)
_PLACES = {law: (row, column) for row, names in enumerate(_LAWS) for column, law in enumerate(names)}

LABELS = {
    "standard": r"standard, $1/\sqrt{d}$",
    "log_n": r"$\log_{512} n\,/\sqrt{d}$",
    "natural_log_n": r"$\ln n\,/\sqrt{d}$",
    "unscaled": "unscaled, $1$",
    "entropy_invariant": "entropy-invariant",
}

_USUAL = (4.6, 3.2)  # inches
_LEAST = 1.5  # inches that a figure needs for its labels
#: Width and height in inches from the user; either may be open.
_SIZE: ContextVar[tuple[float | None, float | None]] = ContextVar("size of figures", default=(None, None))

# TrueType fonts keep text searchable in PDF and SVG.
_STYLE: Any = {
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
def style(*, width: float | None = None, height: float | None = None) -> Iterator[None]:
    """Matplotlib settings of this package's figures, within a ``with`` block.

    Parameters
    ----------
    width : float, optional
        Inches of figures made in the block, by this package and by matplotlib: about 3.4 for a column of a
        two-column page, 5.5 or 6.5 for a one-column page. The width is kept: names without room beside the
        lines stand below them. By default 4.6, and figures of maps and panels are as wide as they need.
    height : float, optional
        Inches. By default 0.7 of the width, and more for figures with many rows.

    Raises
    ------
    TypeError, ValueError
        If ``width`` or ``height`` is not a number, or less than 1.5.

    Examples
    --------
    >>> import matplotlib
    >>> from attnscale.plot import entropy_vs_length
    >>> with style():
    ...     print(matplotlib.rcParams["axes.spines.top"])
    False
    >>> with style(width=3.4):
    ...     figure = entropy_vs_length({"standard": [3.0, 3.6]}, [128, 256]).figure
    >>> figure.get_size_inches().round(2).tolist()
    [3.4, 2.37]
    """
    import matplotlib as mpl

    for name, given in (("width", width), ("height", height)):
        if given is not None and not number(name, given) >= _LEAST:
            raise refusal(ValueError, name, f"must be at least {_LEAST} inches, got {given}")
    before = _SIZE.get()  # from an enclosing block
    token = _SIZE.set((width or before[0], height or (None if width else before[1])))
    try:
        with mpl.rc_context({**_STYLE, "figure.figsize": figure_size()}):
            yield
    finally:
        _SIZE.reset(token)


def wanted_width() -> float | None:
    """The user's width in inches; None if a figure may be as wide as it needs."""
    return _SIZE.get()[0]


def figure_size(width: float | None = None, height: float | None = None) -> tuple[float, float]:
    """Inches of a new figure with this preferred size; the user's size takes precedence."""
    wide, high = _SIZE.get()
    across = wide or width or _USUAL[0]
    return across, high or height or (across * _USUAL[1] / _USUAL[0] if wide else _USUAL[1])


def may_grow() -> bool:
    """Whether a new figure may become higher."""
    return _SIZE.get()[1] is None


def law_label(name: str, labels: Mapping[str, str] | None = None) -> str:
    """Printed name of a law: its entry in `labels` or LABELS, a formula for log_n, else its spelling."""
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

    axes: Axes = plt.subplots(figsize=figure_size(width, height))[1]
    return axes


class Look(NamedTuple):
    """Look of a line and its marks."""

    colour: str
    dashes: Any
    marker: str


def looks(names: Sequence[str]) -> list[Look]:
    """The looks of these laws or other names, all different as long as there are enough.

    A law has its own look. With other parameters, ``log_n(base=64)``, or a second time, it keeps the colour
    and gets the next free dashes; other names get a free look.
    """
    taken: dict[tuple[int, int], None] = {}
    places: list[tuple[int, int] | None] = [None] * len(names)
    for exact in (True, False):
        for index, name in enumerate(names):
            law = None if exact else law_of(name)
            own = _PLACES.get(name if law is None else law.name)
            if places[index] is None and own is not None:
                places[index] = _free(taken, own, column=own[1] if not exact or own in taken else None)
    for index, place in enumerate(places):
        places[index] = place or _free(taken, (0, 0))
    return [
        Look(COLOURS[column], _DASHES[row], MARKERS[index % len(MARKERS)][0])
        for index, (row, column) in enumerate(place for place in places if place is not None)
    ]


def _free(
    taken: dict[tuple[int, int], None], wanted: tuple[int, int], column: int | None = None
) -> tuple[int, int]:
    """Take `wanted`, or the first free look, in `column` if given."""
    every = [(row, each) for row in range(len(_DASHES)) for each in range(len(COLOURS))]
    own = [place for place in every if place[1] == column]
    choice = next((place for place in (wanted, *own, *every) if place not in taken), wanted)
    taken[choice] = None
    return choice
