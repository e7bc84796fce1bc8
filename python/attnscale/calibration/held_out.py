# SPDX-License-Identifier: BSD-3-Clause
"""The error of a prediction on texts that it was not fitted on, with a bootstrap over heads and texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import as_array

__all__ = ["HeldOutError", "held_out_error"]

_DRAWS = 2000


@dataclass(frozen=True)
class HeldOutError:
    """A root mean square over heads and texts, or the difference of two, with its uncertainty.

    Attributes
    ----------
    value : float
        In the unit of the misses.
    error : float
        Standard error: the deviation of the value over the draws.
    low, high : float
        The middle 95 % of the draws. A difference whose ends have the same sign is told from 0.
    """

    value: float
    error: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} +- {self.error:.3f} ({self.low:.3f} to {self.high:.3f})"


def held_out_error(misses: ArrayLike, *, less: ArrayLike | None = None) -> HeldOutError:
    """The root mean square error of a prediction, with an uncertainty over heads and texts.

    Parameters
    ----------
    misses : array_like, shape (texts, heads, ...)
        Predicted minus measured, such as :meth:`LawCalibrator.misses`, preferably on texts outside the fit.
        Axes after the second, such as lengths, are averaged, not drawn. Heads with a NaN do not count.
    less : array_like, optional
        The misses of another prediction on the same texts and heads. The result is the root mean square of
        `misses` minus that of `less`, in each draw: negative where `misses` is better.

    Returns
    -------
    HeldOutError

    Raises
    ------
    TypeError, ValueError
        If `misses` is not real numbers of at least two axes, `less` has another shape, or no head counts.

    Notes
    -----
    A draw samples the heads and, independently, the texts: from k units k - 1 with replacement (Rao and Wu
    1988). Variation shared by a head and a text counts twice, so the error tends to be too large (Owen 2007,
    arXiv 0712.1111). A single text or head is not drawn: the error then says nothing about other texts; with
    one of each it is NaN. The fit is not repeated. The draws are the same at each call.

    Examples
    --------
    >>> import attnscale as at
    >>> misses = np.random.default_rng(0).normal(size=(40, 40))
    >>> print(at.held_out_error(misses))
    0.987 +- 0.032 (0.923 to 1.048)
    >>> print(at.held_out_error(misses, less=misses + 0.5))
    -0.115 +- 0.021 (-0.156 to -0.074)
    """
    found = [_squares("misses", misses)]
    if less is not None:
        found.append(_squares("less", less))
        if found[1].shape != found[0].shape:
            shapes = f"{np.shape(misses)} and {np.shape(less)}"
            raise ValueError(f"less must have the shape of misses, got {shapes}")
    known = np.logical_and.reduce([np.isfinite(each).all(0) for each in found])
    if not known.any():
        raise ValueError("misses must have a head without NaN, got none")
    rng = np.random.default_rng(0)
    texts, heads = found[0].shape[0], int(known.sum())
    of_texts, of_heads = (shares(rng, count, _DRAWS) for count in (texts, heads))
    every = np.full((1, texts), 1 / texts), np.full((1, heads), 1 / heads)

    def differences(rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
        means = [((rows @ each[:, known]) * columns).sum(-1) for each in found]
        first, *other = np.sqrt(means)
        return np.asarray(first - other[0] if other else first)

    value, draws = float(differences(*every)[0]), differences(of_texts, of_heads)
    if texts == heads == 1:
        return HeldOutError(value, *[float("nan")] * 3)
    return HeldOutError(value, float(draws.std(ddof=1)), *np.quantile(draws, [0.025, 0.975]).tolist())


def _squares(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """The mean of the squares over the axes that are not drawn, shape (texts, heads)."""
    array = as_array(name, value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    if array.ndim < 2 or 0 in array.shape:
        raise ValueError(f"{name} must be (texts, heads, ...) and not empty, got shape {array.shape}")
    squares = np.square(array.astype(np.float64))
    return np.asarray(squares.reshape(*array.shape[:2], -1).mean(-1))


def shares(rng: np.random.Generator, count: int, draws: int) -> NDArray[np.float64]:
    """Share of each unit in a sample of count - 1 units, shape (draws, count).

    A single unit has all of it. count - 1 are drawn with replacement, because count would make the error of a
    mean too small by sqrt(1 - 1/count) (Rao and Wu 1988, JASA 83, 231).
    """
    if count == 1:
        return np.ones((draws, 1))
    return rng.multinomial(count - 1, np.full(count, 1 / count), size=draws) / (count - 1)
