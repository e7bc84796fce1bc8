# SPDX-License-Identifier: BSD-3-Clause
"""Multiples of the trained scale: a grid of numbers, and shapes that grow with n."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnscale._base.checks import shown
from attnscale.experiments import Claim, Contrast

#: Twelve multiples, spaced nearly evenly in their logarithm.
GRID = (0.5, 0.6, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 1.8, 2.1, 2.5, 3.0)
#: Shapes of growth with n; each is divided by its value at the training length.
SHAPES: dict[str, Callable[[float], float]] = {
    "log n": math.log,
    "sqrt(1 + ln n)": lambda n: math.sqrt(1 + math.log(n)),
    "sqrt(1 + 2 ln n)": lambda n: math.sqrt(1 + 2 * math.log(n)),
}


def labels(multiples: Sequence[float]) -> tuple[Any, ...]:
    """Labels along the axis "multiple": the numbers of the grid, then the names of the shapes."""
    return (*multiples, *SHAPES)


def at_length(multiples: Sequence[float], n: int, n0: int) -> list[float]:
    """The multiple for each label at length n, in a model trained at n0.

    Examples
    --------
    >>> [round(each, 3) for each in at_length((0.5, 1.0), 4096, 64)]
    [0.5, 1.0, 2.0, 1.344, 1.376]
    """
    return [*map(float, multiples), *(shape(n) / shape(n0) for shape in SHAPES.values())]


def check_multiples(multiples: Sequence[float], constants: Sequence[float], readings: int = 1) -> None:
    """Refuse a grid without the trained scale, and constants outside the grid, one for each reading."""
    grid = list(multiples)
    if len(grid) < 3 or grid != sorted(set(grid)) or grid[0] <= 0 or 1.0 not in grid:
        raise ValueError(
            f"multiples must be three or more growing positive numbers, 1 among them, got {shown(multiples)}"
        )
    if len(constants) != readings or not set(constants) <= set(grid):
        raise ValueError(
            f"constants must be one of multiples for each of {readings} readings, got {shown(constants)}"
        )


def shape_claims(
    lengths: Sequence[int], constant: float, place: Mapping[str, Any], title: str
) -> tuple[Claim, ...]:
    """Claims about the loss that follow from "the best multiple grows like log n", for one reading.

    Parameters
    ----------
    lengths : sequence of int
        The training length, and longer ones.
    constant : float
        The constant multiple to compare with log n, fixed before the run.
    place : dict
        Labels that select the reading.
    title : str
        Its name, the prefix of the names of the contrasts.
    """

    def less(other: Any, at: Sequence[int]) -> Contrast:
        where = f"at {at[0]}" if len(at) == 1 else f"mean of {at[0]} to {at[-1]}"
        named = other if isinstance(other, str) else f"x {other:g}"
        signs = ((1 / len(at), other), (-1 / len(at), "log n"))
        terms = tuple((weight, {"multiple": each, "n": n, **place}) for n in at for weight, each in signs)
        return Contrast(f"{title}: nll of {named} less that of log n, {where}", "nll", terms)

    longer = list(lengths[1:])
    others = tuple(less(each, longer) for each in SHAPES if each != "log n")
    return (
        Claim(f"{title}: at the longest length log n reads better than 1/sqrt(d)", (less(1.0, longer[-1:]),)),
        Claim(f"{title}: at longer lengths log n reads better than one constant", (less(constant, longer),)),
        Claim(f"{title}: at longer lengths log n reads better than roots of logarithms", others),
    )
