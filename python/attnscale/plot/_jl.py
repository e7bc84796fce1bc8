# SPDX-License-Identifier: BSD-3-Clause
"""Dimensions for n vectors, by the lemma of Johnson and Lindenstrauss and by the rule of thumb."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from .. import theory
from .._spelling import as_number
from ._inputs import increasing, numbers
from ._names import Named, name_lines, subtitle
from ._style import COLOURS, GREY, new_axes, style
from ._ticks import length_ticks, log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def jl_dimensions(
    n: ArrayLike,
    *,
    eps: ArrayLike = 0.5,
    failure_probability: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Dimensions that the lemma asks for against the number of vectors, and 8 ln n beside them.

    Parameters
    ----------
    n : array_like
        Numbers of vectors, increasing: the ends of the axis and its ticks.
    eps : array_like, default 0.5
        Relative changes of the squared distances, one line for each.
    failure_probability : float, optional
        As for :func:`attnscale.theory.jl_min_dim`.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        As :func:`attnscale.theory.jl_min_dim`.

    Examples
    --------
    >>> ax = jl_dimensions([64, 512, 4096], eps=[0.1, 0.5])
    >>> [line.get_label() for line in ax.lines]
    ['$\\\\varepsilon = 0.1$', '$\\\\varepsilon = 0.5$', '$8 \\\\ln n$']
    """
    ends = increasing("n", n, least=2)
    changes = numbers("eps", np.atleast_1d(numbers("eps", eps)), ndim=1)
    every = np.unique(np.geomspace(ends[0], ends[-1], 129).round())
    lines = []
    with style():
        ax = new_axes(ax)
        for index, change in enumerate(changes):
            bound = theory.jl_min_dim(every, eps=change, failure_probability=failure_probability)
            lines.append(
                Named(every, bound, rf"$\varepsilon = {as_number(change)}$", COLOURS[index % len(COLOURS)])
            )
        lines.append(Named(every, theory.jl_rule_of_thumb(every), r"$8 \ln n$", GREY))
        for line in lines:
            dashes: Any = (0, (4, 2)) if line.colour == GREY else "-"
            ax.plot(line.x, line.y, color=line.colour, linestyle=dashes, label=line.name)
        length_ticks(ax, ends)
        ax.set_yscale("log")
        log_ticks(ax.yaxis)
        ax.set_xlabel("vectors, $n$")
        ax.set_ylabel("dimensions")
        name_lines(ax, lines)
    chance = "" if failure_probability is None else f" with probability {1 - failure_probability:g}"
    subtitle(ax, f"Squared distances kept to a factor $1 \\pm \\varepsilon${chance}")
    return ax
