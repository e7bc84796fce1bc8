# SPDX-License-Identifier: BSD-3-Clause
"""Dimensions for n vectors, by the lemma of Johnson and Lindenstrauss and by the rule of thumb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .. import theory
from ._style import GREY, colours, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["jl_dimensions"]


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
        Numbers of vectors, increasing.
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
    vectors, changes = np.atleast_1d(n), np.atleast_1d(eps)
    bounds = [
        theory.jl_min_dim(vectors, eps=each, failure_probability=failure_probability) for each in changes
    ]
    with style():
        ax = new_axes(ax)
        for change, bound, colour in zip(changes, bounds, colours(len(changes)), strict=True):
            ax.plot(vectors, bound, color=colour, marker="o", label=rf"$\varepsilon = {change:g}$")
        rule = theory.jl_rule_of_thumb(vectors)
        ax.plot(vectors, rule, color=GREY, linestyle=(0, (4, 2)), label=r"$8 \ln n$")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("vectors, $n$")
        ax.set_ylabel("dimensions")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax
