# SPDX-License-Identifier: BSD-3-Clause
"""The best multiple of the trained scale at each length, and the shape in which it grows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from attnscale.experiments import TrainingResult, crossed_means
from numpy.typing import NDArray

from .multiples import SHAPES

_CERTAIN = 0.95
_EVERY: dict[str, Callable[[float], float]] = {**SHAPES, "a constant": lambda n: 1.0}


class Spread(NamedTuple):
    """A number, its standard error, and its 95 % interval."""

    value: Any
    error: Any
    low: Any
    high: Any


@dataclass(frozen=True)
class BestMultiples:
    """The best multiple at each length, and how well shapes describe it.

    Attributes
    ----------
    lengths : ndarray of int64, shape (n,)
    beta : Spread of ndarray, shape (n,)
        The best multiple of the trained scale.
    flat : ndarray of float64, shape (n, 2)
        The smallest and the largest multiple of the grid whose loss is within one standard error (of the
        difference) of the least loss. A wide interval means a flat optimum.
    inside : ndarray of bool, shape (n,)
        Whether the best multiple is inside the grid. If not, beta is the end of the grid.
    exponent : Spread of float
        The power p in beta(n) = c (ln n)^p: 1 is the law log n, and 0 a constant.
    misfit : dict of str to float
        Root mean square of ln beta(n) - ln(c shape(n)), for the best c of each shape and of "a constant".
    misfit_less : dict of str to Spread of float
        Misfit of the other shapes less that of "log n": above 0 where log n describes beta better.
    """

    lengths: NDArray[np.int64]
    beta: Spread
    flat: NDArray[np.float64]
    inside: NDArray[np.bool_]
    exponent: Spread
    misfit: dict[str, float]
    misfit_less: dict[str, Spread]


def best_multiples(result: TrainingResult, *, variable: str = "nll", **labels: Any) -> BestMultiples:
    r"""The best multiple of the trained scale at each length, with its error, and the shape of its growth.

    Parameters
    ----------
    result : TrainingResult
        A result of :func:`text_multiples` or :func:`needle_multiples`.
    variable : str, default "nll"
        A loss, along the axes "multiple" and "n". If the result has texts, errors of "nll" group texts of one
        file.
    **labels
        Labels on all other axes but the seeds, such as ``reading="clipped"``.

    Returns
    -------
    BestMultiples
        For the finished seeds. The exponent and the misfits use the lengths whose best multiple is inside the
        grid, and are NaN with fewer than three of these.

    Notes
    -----
    :math:`\beta^*(n)` is the lowest point of the parabola, in :math:`\ln \beta`, through the three grid
    points around the least mean loss over seeds and texts. Errors are those of the bootstrap that verdicts
    use, in which all is computed again for each draw; an interval is the value plus or minus the error times
    the quantile of Student's t for the number of seeds less one.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.experiments.stored("text_multiples")
    >>> best = at.experiments.best_multiples(result, reading="clipped")
    >>> best.lengths
    array([  64,  128,  256,  512, 1024])
    """
    labels = {"trained": "standard", **labels}
    axes = result.variables[variable].coords
    lengths, every = np.array(axes["n"]), axes["multiple"]
    grid = [i for i, each in enumerate(every) if not isinstance(each, str)]
    x = np.log([every[i] for i in grid])
    loss = result.select(variable, **labels)[:, grid]
    there = np.asarray(np.isfinite(loss).all((1, 2)))
    mean = loss[there].mean(0)
    draws = crossed_means(*_by_text(result, variable, labels, grid, there))
    best, drawn = _lowest(x, mean[None])[0], _lowest(x, draws)
    inside = ~np.isin(mean.argmin(0), (0, len(grid) - 1))
    spread = _spreads(int(there.sum()))
    one, many = (_fits(lengths[inside], np.log(each[:, inside])) for each in (best[None], drawn))
    others = [name for name in one if name not in ("exponent", "log n")]
    return BestMultiples(
        lengths,
        spread(best, drawn),
        np.exp(x)[_flat(mean, draws)],
        inside,
        spread(one["exponent"][0], many["exponent"]),
        {name: float(one[name][0]) for name in ("log n", *others)},
        {name: spread((one[name] - one["log n"])[0], many[name] - many["log n"]) for name in others},
    )


def _by_text(
    result: TrainingResult, variable: str, labels: dict[str, Any], grid: list[int], there: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Losses, (seeds, multiples, n, texts), and the files of the texts; one of each without texts."""
    name = f"{variable}_by_text"
    if name not in result.arrays:
        return result.select(variable, **labels)[there][:, grid, :, None], np.zeros(1)
    files = result.select("text_file", trained=labels["trained"])[there]
    return result.select(name, **labels)[there][:, grid], files[0]  # all seeds read the same texts


def _lowest(x: NDArray[np.float64], loss: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(x) at the lowest point of each parabola, (draws, n), for losses (draws, grid, n)."""
    at = loss.argmin(1)
    i = np.clip(at, 1, len(x) - 2)
    below, here, above = (np.take_along_axis(loss, (i + j)[:, None], 1)[:, 0] for j in (-1, 0, 1))
    left, right = x[i] - x[i - 1], x[i + 1] - x[i]
    rise, fall = (above - here) / right, (below - here) / left
    with np.errstate(invalid="ignore", divide="ignore"):
        away = (left * rise - right * fall) / (2 * (rise + fall))
    return np.exp(np.where(at == i, x[i] - away, x[at]))


def _flat(mean: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """First and last place of the grid that is within one error of the best, (n, 2)."""
    best = mean.argmin(0)[None]
    over = mean - np.take_along_axis(mean, best, 0)
    error = (draws - np.take_along_axis(draws, best[None], 1)).std(0, ddof=1)
    near = over <= error
    return np.stack((near.argmax(0), len(mean) - 1 - near[::-1].argmax(0)), -1)


def _fits(lengths: NDArray[np.int64], found: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Exponent of ln n, and misfit of each shape, of ln beta along (draws, n)."""
    if len(lengths) < 3:
        return {name: np.full(len(found), np.nan) for name in ("exponent", *_EVERY)}
    u = np.log(np.log(lengths))
    u = u - u.mean()
    fits = {"exponent": found @ u / (u @ u)}
    for name, shape in _EVERY.items():
        left = found - np.array([math.log(shape(n)) for n in lengths])
        fits[name] = left.std(-1)  # the best c removes the mean
    return fits


def _spreads(seeds: int) -> Callable[[Any, NDArray[np.float64]], Spread]:
    """A function of a value and its bootstrap draws, which returns a Spread."""
    from scipy import stats  # at first use, since it is slow to import

    quantile = float(stats.t.isf((1 - _CERTAIN) / 2, seeds - 1)) if seeds > 1 else math.nan

    def spread(value: Any, draws: NDArray[np.float64]) -> Spread:
        error = draws.std(0, ddof=1)
        return Spread(value, error, value - quantile * error, value + quantile * error)

    return spread
