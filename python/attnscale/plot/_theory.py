# SPDX-License-Identifier: BSD-3-Clause
"""Figures of the theory: the phase of a row, and dimensions from the Johnson-Lindenstrauss lemma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import theory
from .._base.checks import choose
from .._base.spelling import as_number
from ._exact import dense
from ._inputs import increasing, numbers
from ._multiples import BETA, law_sequence, multiple_at
from ._names import Named, columns_of, key_below, label_axes, length_ticks, log_ticks, name_lines, subtitle
from ._style import COLOURS, GREY, law_label, looks, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..laws import Law
    from ._style import Look

_Array = NDArray[np.float64]
_BAR = 60.0  # points of the colour bar with its label
_SOLID = {"dash_offset": 0, "dash_list": None}


def phase_diagram(
    n: ArrayLike,
    beta: ArrayLike,
    entropy: ArrayLike | None = None,
    *,
    model: str = "gaussian",
    head_dim: int = 64,
    laws: str | float | Law | Sequence[str | float | Law] = (),
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Mean entropy as a share of ln n, over ln n and beta, with the freezing line.

    Parameters
    ----------
    n : array_like, shape (n_lengths,)
        Increasing, at least 2.
    beta : array_like, shape (n_betas,)
        Increasing, at least 0.
    entropy : array_like, shape (n_lengths, n_betas), optional
        Nats; by default :func:`attnscale.theory.expected_entropy` of the model.
    model : {"gaussian", "sphere"}
    head_dim : int, default 64
        The dimension of the sphere model and of the laws.
    laws : str, float or Law, or sequence of them
        Laws whose beta, for the last of n causal queries, is drawn over the map.
    ax : matplotlib Axes, optional
        A new figure's by default.
    labels : mapping, optional
        Labels to print for names of laws.

    Returns
    -------
    matplotlib Axes
        The black line is sqrt(2 ln n), where the random energy model freezes (Derrida 1981). Scores of the
        sphere model are bounded, so there it is only a guide. The contours are at a quarter, a half and three
        quarters of ln n.

    Raises
    ------
    TypeError, ValueError
        If ``n`` or ``beta`` is not increasing, ``entropy`` has another shape, or the n of a law is not a
        number of keys.

    Examples
    --------
    >>> n, beta = [10, 100, 1000], [0.5, 1, 2, 4]
    >>> share = np.outer(np.log(n), [0.9, 0.8, 0.5, 0.2])
    >>> tuple(map(float, phase_diagram(n, beta, share).get_ylim()))
    (0.5, 4.0)
    """
    lengths, betas = increasing("n", n, least=2, count=2), increasing("beta", beta, least=0, count=2)
    choose("model", model, ("gaussian", "sphere"))
    if entropy is None:
        nats = theory.expected_entropy(lengths[:, None], betas, head_dim=head_dim, model=model)
    else:
        nats = numbers("entropy", entropy)
    if nats.shape != (lengths.size, betas.size):
        raise ValueError(f"entropy must have shape {(lengths.size, betas.size)}, got {nats.shape}")
    lines = _law_lines(law_sequence(laws), lengths, head_dim, labels)
    with style():
        ax = new_axes(ax, height=3.7)
        _draw_map(ax, np.log(lengths), betas, nats / np.log(lengths)[:, None])
        every = np.geomspace(lengths[0], lengths[-1], 129)
        _draw_line(
            ax, np.log(every), theory.critical_beta(every), "black", "-", r"freezing, $\sqrt{2 \ln n}$"
        )
        for x, y, look, name in lines:
            _draw_line(ax, x, y, look.colour, look.dashes, name)
        ax.set_xlim(np.log(lengths[0]), np.log(lengths[-1]))
        ax.set_ylim(betas[0], betas[-1])
        label_axes(ax, r"$\ln n$", BETA)
        key_below(ax, list(zip(*ax.get_legend_handles_labels(), strict=True)), columns=2, bar=_BAR)
    if entropy is None:
        subtitle(ax, "Gaussian scores" if model == "gaussian" else f"Keys on a sphere, $d={head_dim}$")
    return ax


def _law_lines(
    laws: Sequence[Law], lengths: _Array, head_dim: int, labels: Mapping[str, str] | None
) -> list[tuple[_Array, _Array, Look, str]]:
    """ln n, beta, the look and the name of each law."""
    names = [law.spelling for law in laws]
    found = []
    for law, name, look in zip(laws, names, looks(names), strict=True):
        n, beta = dense(partial(multiple_at, law, head_dim=head_dim), lengths[0], lengths[-1])
        found.append((np.log(n), beta, look, law_label(name, labels)))
    return found


def _draw_map(ax: Axes, x: _Array, y: _Array, share: _Array) -> None:
    ax.grid(visible=False)
    mesh = ax.pcolormesh(x, y, share.T, cmap="cividis", vmin=0, vmax=1, shading="gouraud", rasterized=True)
    lines = ax.contour(x, y, share.T, [0.25, 0.5, 0.75], colors="white", linewidths=0.6)
    ax.clabel(lines, fontsize=7, fmt="%g")
    ax.figure.colorbar(mesh, ax=ax, label=r"mean entropy / $\ln n$")


def _draw_line(ax: Axes, x: _Array, y: ArrayLike, colour: str, dashes: Any, name: str) -> None:
    """Draw a line with a white rim, which separates its colour from those of the map."""
    from matplotlib.patheffects import Normal, Stroke

    (line,) = ax.plot(x, y, color=colour, linestyle=dashes, linewidth=1.8, label=name)
    line.set_path_effects([Stroke(linewidth=3.4, foreground="white", dashes=_SOLID), Normal()])


def jl_dimensions(
    n: ArrayLike, *, eps: ArrayLike = 0.5, failure_probability: float | None = None, ax: Axes | None = None
) -> Axes:
    """Dimensions from the lemma against the number of vectors, with 8 ln n beside them.

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

    Examples
    --------
    >>> ax = jl_dimensions([64, 512, 4096], eps=[0.1, 0.5])
    >>> [line.get_label() for line in ax.lines]
    ['$\\\\varepsilon = 0.1$', '$\\\\varepsilon = 0.5$', '$8 \\\\ln n$']
    """
    ends = increasing("n", n, least=2)
    changes = numbers("eps", np.atleast_1d(numbers("eps", eps)), ndim=1)
    every = np.unique(np.geomspace(ends[0], ends[-1], 129).round())
    lines, own = [], ax is None
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
        label_axes(ax, "vectors, $n$", "dimensions")
        below = name_lines(ax, lines)
        key_below(ax, below, columns=columns_of(below), grow=own)
    chance = "" if failure_probability is None else f" with probability {1 - failure_probability:g}"
    subtitle(ax, f"Squared distances kept to a factor $1 \\pm \\varepsilon${chance}")
    return ax
