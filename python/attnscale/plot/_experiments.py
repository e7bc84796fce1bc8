# SPDX-License-Identifier: BSD-3-Clause
"""Figures of Monte Carlo experiments: points with error bars, on exact curves where they are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ._curves import AXIS_LABELS, draw_curves, quantity_label, read_curves, x_values
from ._length import entropy_vs_length
from ._style import GREY, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["experiment", "jl_distortion", "needle", "saturation"]


def experiment(
    result: Any,
    *,
    quantity: str | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """The result of any experiment, in the way that suits it.

    Parameters
    ----------
    result : ExperimentResult
        With at least one axis of numbers (a parameter given as a sequence).
    quantity : str, optional
        One of ``result.estimates``; the main one by default.
    ax : matplotlib Axes, optional
        A new figure's by default.
    labels : mapping, optional
        What to print for the names of laws and the like.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        The result has no axis of numbers.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.max_cosine([64, 512, 4096], 16, samples=100, rng=0)
    >>> at.plot.experiment(result).get_ylabel()
    'largest cosine'
    """
    if quantity in (None, result.quantity):
        own = {"entropy_vs_length": entropy_vs_length, "softmax_saturation": saturation}
        own |= {"needle_dilution": needle, "jl_distortion": jl_distortion}
        draw: Any = own.get(result.experiment)
        if draw is not None and x_values(result.axes, ()) in ("n", "k", "head_dim"):
            wanted = {saturation: "head_dim", jl_distortion: "k"}.get(draw, "n")
            if wanted in result.axes:
                axes: Axes = draw(result, ax=ax, labels=labels)
                return axes
    x = x_values(result.axes, ("n", "head_dim", "k"))
    if x is None:
        seen = ", ".join(result.axes) or "none"
        raise ValueError(
            f"a figure needs a parameter that was given as a sequence of numbers, got axes: {seen}"
        )
    return _curves(result, x, quantity, ax, labels)


def saturation(
    result: Any,
    *,
    quantity: str | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Saturation of the softmax against head_dim, scaled and not.

    Parameters
    ----------
    result : ExperimentResult or Dataset
        Of :func:`attnscale.montecarlo.softmax_saturation` with several head_dim.
    quantity, ax, labels
        As for :func:`experiment`.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.softmax_saturation(head_dim=[4, 64, 1024], samples=100, rng=0)
    >>> at.plot.saturation(result).get_xlabel()
    'head dimension, $d$'
    """
    ax = _curves(result, "head_dim", quantity, ax, labels)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    return ax


def needle(
    result: Any,
    *,
    quantity: str | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Weight of one key against the number of keys.

    Parameters
    ----------
    result : ExperimentResult or Dataset
        Of :func:`attnscale.montecarlo.needle_dilution` with several n.
    quantity, ax, labels
        As for :func:`experiment`.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.needle_dilution([64, 512], cosine=0.6, samples=100, rng=0)
    >>> at.plot.needle(result).get_ylabel()
    'weight of the needle'
    """
    ax = _curves(result, "n", quantity, ax, labels)
    ax.set_ylim(0, 1)
    return ax


def jl_distortion(
    result: Any,
    *,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Largest change of a squared distance against k, below the bound of Dasgupta and Gupta.

    Parameters
    ----------
    result : ExperimentResult or Dataset
        Of :func:`attnscale.montecarlo.jl_distortion` with several k.
    ax, labels
        As for :func:`experiment`.

    Returns
    -------
    matplotlib Axes
        Both scales are logarithmic. The dashed line is the eps that
        :func:`attnscale.theory.jl_min_dim` needs each k for; it ends at eps = 1.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.jl_distortion(n=50, dim=300, k=[32, 128], samples=3, rng=0)
    >>> at.plot.jl_distortion(result).get_yscale()
    'log'
    """
    ax = _curves(result, "k", "distortion", ax, labels)
    n = _n_points(result)
    with style():
        if n is not None:
            from .. import theory

            k = np.asarray(read_curves(result, "k", "distortion")[1][0].x)
            eps = np.geomspace(0.02, 0.999, 200)
            bound = np.asarray(theory.jl_min_dim(n, eps=eps), np.float64)
            inside = (bound >= k[0]) & (bound <= k[-1])
            ax.plot(
                bound[inside], eps[inside], color=GREY, linestyle=(0, (4, 2)), linewidth=1.2, label="bound"
            )
            ax.legend()
        ax.set_yscale("log")
    return ax


def _n_points(result: Any) -> int | None:
    """How many points there were; None if the result does not say."""
    import json

    parameters = getattr(result, "parameters", None)
    if parameters is None:
        parameters = json.loads(result.attrs.get("parameters", "{}"))
    n = parameters.get("n")
    return n if isinstance(n, int) else None


def _curves(
    result: Any, x: str, quantity: str | None, ax: Axes | None, labels: Mapping[str, str] | None
) -> Axes:
    name, curves = read_curves(result, x, quantity, labels)
    with style():
        ax = new_axes(ax)
        draw_curves(ax, curves)
        values = curves[0].x
        ax.set_xscale("log", base=2)
        ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.set_xticks([], minor=True)
        ax.set_xlabel(AXIS_LABELS.get(x, x))
        ax.set_ylabel(quantity_label(name))
        if len(curves) > 1:
            ax.legend()
    return ax
