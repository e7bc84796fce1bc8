# SPDX-License-Identifier: BSD-3-Clause
"""The declaration of an experiment: models that are trained one by one, and what is measured of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .training import Training

__all__ = ["Cells", "Experiment", "Variable"]

#: Axes of the grid of models that are trained separately: names, and the labels along each.
Cells = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Variable:
    """One array that is measured of each model.

    Attributes
    ----------
    coords : dict of str to tuple
        Names of the axes, in order, and the labels along each; empty for a number.
    unit : str
        "nat" or "" (a plain number).
    meaning : str
        What the array holds, in words.
    """

    coords: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    unit: str = ""
    meaning: str = ""

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(self.coords)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the axes."""
        return tuple(len(labels) for labels in self.coords.values())


@dataclass(frozen=True)
class Experiment:
    """An experiment: what is asked, what would refute it, and how one model of it is trained.

    Attributes
    ----------
    name : str
        Name of the function in :mod:`attnscale.experiments`.
    claim : str
        The claim's id in docs/claims.md.
    question, refuted_if : str
        What is asked, and what would refute the claim; both are written before the first full run.
    config : type
        A frozen dataclass of numbers, text and tuples: all that defines the experiment but the seeds. Its
        defaults are the full run; ``config.reduced()`` takes less than a minute.
    cells : callable
        ``cells(config)``: the axes of separately trained models.
    measure : callable
        ``measure(config, cell, seed, training)``: trains and evaluates the model of one cell and seed.
        The arrays that it returns, by name, depend on these arguments and on nothing else.
    variables : callable
        ``variables(config)``: a :class:`Variable` for each array that ``measure`` returns; the first is the
        main one.
    """

    name: str
    claim: str
    question: str
    refuted_if: str
    config: type[Any]
    cells: Callable[[Any], Cells]
    measure: Callable[[Any, dict[str, Any], int, Training], Mapping[str, Any]]
    variables: Callable[[Any], Mapping[str, Variable]]
