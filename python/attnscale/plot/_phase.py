# SPDX-License-Identifier: BSD-3-Clause
"""Where a multiple of the standard scale puts a row: spread out, or frozen on a few keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .. import laws as laws_module
from ._curves import AXIS_LABELS
from ._style import COLOURS, GREY, MARKERS, law_label, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..laws import Law

__all__ = ["law_comparison", "phase_diagram"]

_MOST_TICKS = 10


def law_comparison(
    laws: Sequence[str | float | Law],
    lengths: ArrayLike,
    *,
    head_dim: int = 64,
    others: Mapping[str, ArrayLike] | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Beta, the multiple of the standard scale, of several laws against n.

    Parameters
    ----------
    laws : sequence of str, float or Law
        As :func:`attnscale.laws.get` takes them; beta is that of the last of n causal queries.
    lengths : array_like
        Values of n, increasing.
    head_dim : int, default 64
    others : mapping of str to array_like, optional
        More curves: betas at the lengths, such as those of
        :func:`attnscale.theory.invariant_beta`. Drawn dashed.
    ax : matplotlib Axes, optional
        A new figure's by default.
    labels : mapping, optional
        What to print for the names of laws.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        n of a law is no count: a distance, or something measured on the row's scores.

    Examples
    --------
    >>> ax = law_comparison(["standard", "log_n", "natural_log_n"], [64, 512, 4096])
    >>> [float(line.get_ydata()[1]) for line in ax.get_lines()][:2]  # at n = 512
    [1.0, 1.0]
    """
    n = np.asarray(lengths, np.float64)
    with style():
        ax = new_axes(ax)
        for index, law in enumerate(map(laws_module.get, laws)):
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)][0]
            beta = law.multiplier_at(n, head_dim)
            ax.plot(n, beta, color=colour, marker=marker, label=_name(law, labels))
        for name, curve in (others or {}).items():
            ax.plot(n, np.asarray(curve), color=GREY, linestyle=(0, (4, 2)), label=law_label(name, labels))
        ax.set_xscale("log", base=2)
        if n.size <= _MOST_TICKS:
            ax.set_xticks(n, [f"{each:g}" for each in n])
            ax.set_xticks([], minor=True)
        ax.set_ylim(bottom=0)
        ax.set_xlabel(AXIS_LABELS["n"])
        ax.set_ylabel(r"$\beta$ = scale $\cdot \sqrt{d}$")
        ax.legend()
    return ax


def phase_diagram(
    n: ArrayLike,
    beta: ArrayLike,
    entropy: ArrayLike | None = None,
    *,
    model: str = "gaussian",
    head_dim: int = 64,
    laws: Sequence[str | float | Law] = (),
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
        Of the sphere model and of the laws.
    laws : sequence of str, float or Law
        Their beta is drawn over the map: that of the last of n causal queries.
    ax : matplotlib Axes, optional
        A new figure's by default.
    labels : mapping, optional
        What to print for the names of laws.

    Returns
    -------
    matplotlib Axes
        The white line is sqrt(2 ln n), where the random energy model freezes (Derrida 1981). In the
        sphere model scores are bounded, and it is a guide only.

    Raises
    ------
    ValueError
        ``entropy`` has another shape, or n of a law is no count.

    Examples
    --------
    >>> n, beta = [10, 100, 1000], [0.5, 1, 2, 4]
    >>> share = np.outer(np.log(n), [0.9, 0.8, 0.5, 0.2])
    >>> tuple(map(float, phase_diagram(n, beta, share).get_ylim()))
    (0.5, 4.0)
    """
    from .. import theory

    lengths, betas = np.asarray(n, np.float64), np.asarray(beta, np.float64)
    if entropy is None:
        entropy = theory.expected_entropy(lengths[:, None], betas, head_dim=head_dim, model=model)
    nats = np.asarray(entropy, np.float64)
    if nats.shape != (lengths.size, betas.size):
        raise ValueError(f"entropy must have shape {(lengths.size, betas.size)}, got {nats.shape}")
    logs = np.log(lengths)
    share = nats / logs[:, None]
    with style():
        ax = new_axes(ax)
        ax.grid(visible=False)
        mesh = ax.pcolormesh(
            logs, betas, share.T, cmap="cividis", vmin=0, vmax=1, shading="gouraud", rasterized=True
        )
        lines = ax.contour(logs, betas, share.T, [0.25, 0.5, 0.75], colors="white", linewidths=0.6)
        ax.clabel(lines, fontsize=7, fmt="%g")
        ax.plot(logs, theory.critical_beta(lengths), color="white", linewidth=2.2, label=r"$\sqrt{2 \ln n}$")
        for index, law in enumerate(map(laws_module.get, laws)):
            curve = law.multiplier_at(lengths, head_dim)
            # Vermilion and what follows it: blue is a colour of the map.
            colour = COLOURS[(index + 1) % len(COLOURS)]
            ax.plot(logs, curve, color=colour, linestyle="--", label=_name(law, labels))
        ax.set_xlim(logs[0], logs[-1])
        ax.set_ylim(betas[0], betas[-1])
        ax.set_xlabel(r"$\ln n$")
        ax.set_ylabel(r"$\beta$ = scale $\cdot \sqrt{d}$")
        ax.legend(loc="upper right", labelcolor="white")
        ax.figure.colorbar(mesh, ax=ax, label=r"mean entropy / $\ln n$")
    return ax


def _name(law: Law, labels: Mapping[str, str] | None) -> str:
    """By its name if it has the usual parameters or a label of that name, by its repr otherwise."""
    if law.name in (labels or {}):
        return law_label(law.name, labels)
    try:
        usual = law == laws_module.get(law.name)
    except TypeError:  # a parameter without a default
        usual = False
    return law_label(law.name if usual else repr(law), labels)
