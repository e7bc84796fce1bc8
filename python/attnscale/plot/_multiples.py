# SPDX-License-Identifier: BSD-3-Clause
"""Multipliers of laws against the length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ._style import colours, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["multiplier_vs_length"]

# With seven colours, a law is told by its colour and its dashes.
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))


def multiplier_vs_length(
    multipliers: Mapping[str, ArrayLike], lengths: ArrayLike, *, ax: Axes | None = None
) -> Axes:
    """Multiple of the standard scale against the number of keys, one line for every law.

    Parameters
    ----------
    multipliers : mapping of str to array_like, shape (n_lengths,)
        Of 1/sqrt(head_dim), under each law. Values <= 0 are not drawn: the axis is logarithmic.
    lengths : array_like of int
        Numbers of keys, increasing.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        If a law has not one value for each length.

    Examples
    --------
    >>> ax = multiplier_vs_length({"standard": [1.0, 1.0], "log_n": [1.0, 1.33]}, [512, 4096])
    >>> ax.get_ylabel()
    'multiple of the standard scale'
    """
    n = np.asarray(lengths, np.float64)
    with style():
        ax = new_axes(ax)
        each = zip(multipliers.items(), colours(len(multipliers)), strict=True)
        for index, ((law, values), colour) in enumerate(each):
            m = np.asarray(values, np.float64)
            if m.shape != n.shape:
                raise ValueError(
                    f"multipliers must have one value for each of the {n.size} lengths, got {law}: {m.shape}"
                )
            dashes = _DASHES[index // 7 % len(_DASHES)]
            ax.plot(n, np.where(m > 0, m, np.nan), color=colour, linestyle=dashes, linewidth=1.4, label=law)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xlabel("keys per query, $n$")
        ax.set_ylabel("multiple of the standard scale")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return ax
